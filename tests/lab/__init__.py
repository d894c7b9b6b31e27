"""Provides the lab: a real broker, real clients in their own cgroups, and counts that do not use the product."""
