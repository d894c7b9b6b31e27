"""Who is talking to a Kafka broker, and about what, seen from the kernel."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("kafka-probe")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"
