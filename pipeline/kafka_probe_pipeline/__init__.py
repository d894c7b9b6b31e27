"""The streaming job that sums what all agents saw: events topic in, traffic per window out."""
