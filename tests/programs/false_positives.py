"""Runs `make false-positives`: ten million conversations of other protocols, counting those taken for Kafka."""

from __future__ import annotations

import sys
import time

from tests.lab.classifier import OTHERS, classifier

CONVERSATIONS = 10_000_000
SEED = 1


def main() -> int:
    wrong = 0
    start = time.monotonic()
    print(f"{'protocol':16}  {'port':9}  conversations  taken for Kafka")
    for any_port in (False, True):
        with classifier(any_port=any_port) as tried:
            share = -(-CONVERSATIONS // (2 * len(OTHERS)))
            for protocol in OTHERS:
                taken = tried.taken_for_kafka(protocol, SEED, share)
                wrong += taken
                print(f"{protocol:16}  {'any' if any_port else 'named':9}  {share:13,}  {taken:15,}", flush=True)
    print(f"{wrong} of {CONVERSATIONS:,} in {time.monotonic() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
