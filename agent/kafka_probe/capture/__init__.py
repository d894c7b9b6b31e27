"""Capture: what the kernel saw comes out as rows of a NumPy structured array. Nothing here knows what Kafka means."""
