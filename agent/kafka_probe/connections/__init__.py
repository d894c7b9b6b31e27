"""Connections: turns the kernel's samples into frames, and tracks the owner, client and close of each connection."""
