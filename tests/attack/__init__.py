"""Floods by somebody who tries to harm the agent, and what they do to it and to honest clients: `make attack`."""
