"""Runs `make fuzz`: a coverage-guided fuzzer on the decoder, seeded with the recorded frames, for MINUTES minutes.

An input is a byte each of flags, API key and version, then a frame's data. Whatever it is, decoding must not raise, and
what it finds must lie in the data and be no more than the data has bytes: so time and memory are bounded by them. An
input that breaks this is kept in build/fuzz, and the exit status is not 0.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["kafka_probe.protocol"]):
    from kafka_probe.protocol import decoder
    from kafka_probe.protocol.facts import MeasureKind, Shape, measure_values
    from kafka_probe.protocol.plan import PlanStep
    from kafka_probe.protocol.reader_compiler import Reader, compiled

from tests.builders.recordings import exchanges, names, read

DIRECTORY = Path("build/fuzz")
RESPONSE, COPIED_ALL = 1, 2
KEYS, VERSIONS = 96, 24  # one more at either end than exist, and then some
MAX_BYTES, SLOW_S = 2048, 5
SEEDS_PER_KIND = 3
SET_MEASURES = 7  # of one record set, which has 40 bytes at least


def main() -> None:
    """Run until the time is over or a check fails; does not return."""
    # the readers are compiled when they are first needed, so no import brings them
    vars(decoder)["compiled"] = instrumented
    corpus = DIRECTORY / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for name, seed in seeds():
        (corpus / name).write_bytes(seed)
    seconds = int(float(os.environ.get("MINUTES", "10")) * 60)
    flags = [f"-max_total_time={seconds}", f"-max_len={MAX_BYTES}", f"-timeout={SLOW_S}", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *flags, f"-artifact_prefix={DIRECTORY}/", str(corpus)], check)
    atheris.Fuzz()


@cache
def instrumented(steps: tuple[PlanStep, ...], kinds: frozenset[MeasureKind]) -> Reader:
    """Return a plan's reader that reports its branches to the fuzzer."""
    reader: Reader = atheris.instrument_func(compiled(steps, kinds))
    return reader


def seeds() -> list[tuple[str, bytes]]:
    """Return some recorded frames of every API, version and direction."""
    kinds: Counter[tuple[int, int, int]] = Counter()
    found = []
    for name in names():
        for request in exchanges(read(name)):
            for flags, frame, header_bytes in ((0, request.frame, 8), (RESPONSE, request.response, 4)):
                kind = request.api_key, request.api_version, flags
                if frame is not None and kinds[kind] < SEEDS_PER_KIND:
                    kinds[kind] += 1
                    data = bytes((flags | COPIED_ALL, request.api_key + 1, request.api_version + 1))
                    found.append(("-".join(map(str, (*kind, kinds[kind]))), data + frame.data[header_bytes:]))
    return found


def check(fuzzed: bytes) -> None:
    """Decode one input; an assertion that fails ends the run."""
    if len(fuzzed) < 3:
        return
    flags, key, version, data = fuzzed[0], fuzzed[1] % KEYS - 1, fuzzed[2] % VERSIONS - 1, fuzzed[3:]
    decoded = decoder.decode(bool(flags & RESPONSE), key, version, data, copied_all=bool(flags & COPIED_ALL))
    shape = decoded.shape()
    assert 0 <= shape.used_bytes <= len(data)
    assert len(shape.mask) == len(data)
    assert all(0 <= measure.offset <= len(data) - measure.width for measure in shape.measures)
    assert len(measure_values(shape, data)) == len(shape.measures)
    assert facts_found(shape) <= len(data)


def facts_found(shape: Shape) -> int:
    """Return the number of decoded facts, each of which takes at least a byte."""
    facts = shape.facts
    topics = facts.topics + facts.forgotten
    measures = len(shape.measures) - (SET_MEASURES - 1) * len(facts.record_sets)
    return len(facts.values) + len(topics) + sum(len(topic.partitions) for topic in topics) + measures


if __name__ == "__main__":
    main()
