"""Floods the agent as an attacker would, and measures the effect on it and on honest clients: `make attack`."""
