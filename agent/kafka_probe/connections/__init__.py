"""Connections: the kernel's records, in order, become frames of connections whose owner, client and end are known."""
