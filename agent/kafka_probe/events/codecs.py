"""Names of compression codecs in events."""

from __future__ import annotations

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""The names, indexed by the code in a record batch's attributes."""
CODEC_NAMES = f"{', '.join(CODECS[:-1])} or {CODECS[-1]}"


def codec_name(code: int) -> str:
    """Return the name of a compression codec; the code if Kafka defines no name."""
    return CODECS[code] if code < len(CODECS) else str(code)
