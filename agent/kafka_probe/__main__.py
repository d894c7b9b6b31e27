"""The process of the command `kafka-probe`, also as `python -m kafka_probe`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn

from kafka_probe.cli import execute


def main() -> NoReturn:
    """Run the command and end the process; this is the entry point of the package."""
    status = execute()
    if "pyarrow" in sys.modules:
        # Arrow may still read ahead. Before 3.14, Python ends such a thread in the middle of C++, which aborts.
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
