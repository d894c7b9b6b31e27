"""The Kafka protocol without I/O: bytes that the kernel copied in, facts out. Bad bytes are a status, no exception."""
