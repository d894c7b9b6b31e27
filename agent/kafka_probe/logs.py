"""Log lines on standard error: text for people, JSON for collectors. Configures only the standard library's logging."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import orjson

from kafka_probe.text import MESSAGE_LIMIT, LineFormatter, printable, printable_lines

if TYPE_CHECKING:
    from kafka_probe.config import Config


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage(), MESSAGE_LIMIT),
        }
        if record.exc_info:
            line["exception"] = printable_lines(self.formatException(record.exc_info))
        return orjson.dumps(line).decode()


def configure(config: Config) -> None:
    """Make the root logger write to standard error, with the settings `log_level` and `log_format`."""
    handler = logging.StreamHandler(sys.stderr)
    text = LineFormatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    handler.setFormatter(_JsonFormatter() if config.log_format == "json" else text)
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)
