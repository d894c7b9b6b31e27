"""Runs a second capture of a port that checks everything that leaves the kernel, until a signal ends it.

    python -m tests.programs.attack.ring PORT

It attaches again every few seconds, so that it also begins in the middle of records. Standard output is what it found,
as JSON: {"attached": a, "samples": n, "bytes": b, "markers": m}.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from contextlib import closing
from threading import Event

import numpy as np

from kafka_probe.capture.sample import DATA_BYTES
from tests.builders.wire import MARKER
from tests.lab.capture import Capture

ATTACHED_S = 4.0
_READ_S = 0.2


def main() -> None:
    found = {"attached": 0, "samples": 0, "bytes": 0, "markers": 0}
    stopped = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    while not stopped.is_set():
        with closing(Capture(int(sys.argv[1]))) as capture:
            found["attached"] += 1
            until_s = time.monotonic() + ATTACHED_S
            while not stopped.wait(_READ_S) and time.monotonic() < until_s:
                while len(samples := capture.samples()):
                    whole = samples.tobytes()
                    # Only the used bytes of each sample, so that a marker that spans two samples is found, too.
                    data = samples["data"][np.arange(DATA_BYTES) < samples["size"][:, np.newaxis]].tobytes()
                    found["samples"] += len(samples)
                    found["bytes"] += len(whole)
                    found["markers"] += max(whole.count(MARKER), data.count(MARKER))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
