"""Connections: the kernel's samples, in order, become frames of connections whose owner, client and end are known."""
