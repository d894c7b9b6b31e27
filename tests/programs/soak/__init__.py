"""Runs for long: for faults that show only after very many connections."""
