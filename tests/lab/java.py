"""Runs Kafka's own programs from the jars that `make setup` fetched: without a Kafka distribution or JDK."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from zipfile import ZipFile

from tests.lab.processes import LabError

# For programs that end soon: less time to start, less memory.
SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
KAFKA_VERSION = "4.3.0"
JARS = Path(__file__).parents[2] / "build" / "jars" / f"kafka-{KAFKA_VERSION}"


def java(main_class: str, *arguments: str | Path, heap_mb: int = 128, options: tuple[str, ...] = ()) -> list[str]:
    """Return the command line of one of Kafka's main classes, which logs warnings to standard error.

    Raises:
        LabError: the jars are not there.
    """
    if not any(JARS.glob("kafka_2.13-*.jar")):
        raise LabError(f"no Kafka jars in {JARS}: run `make setup`")
    return [
        "java",
        f"-Xmx{heap_mb}m",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dlog4j2.statusLoggerLevel=OFF",
        *options,
        "-cp",
        f"{JARS}/*",
        main_class,
        *map(str, arguments),
    ]


@cache
def client_apis() -> frozenset[str]:
    """Return the APIs that clients may send to a broker, by Kafka's own message definitions.

    The others are spoken between a broker and its controller, or are names of metrics only (FetchConsumer).
    """
    names = set()
    with ZipFile(JARS / f"kafka-clients-{KAFKA_VERSION}.jar") as jar:
        for member in jar.namelist():
            if found := re.fullmatch(r"common/message/(\w+)Request\.json", member):
                listeners = re.search(rb'"listeners": \[(.*?)\]', jar.read(member))
                if listeners and b"broker" in listeners[1]:
                    names.add(found[1])
    return frozenset(names)
