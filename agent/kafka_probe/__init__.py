"""Observes from the kernel which processes use a Kafka broker, and how they use it."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("kafka-probe")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"
