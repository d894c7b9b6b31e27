"""Kafka's own programs, run from the jars that `make setup` fetched: no Kafka distribution and no JDK needed."""

from __future__ import annotations

from pathlib import Path

from tests.lab.processes import LabError

# For programs that end after a second or two: less time to start, less memory.
SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
JARS = Path(__file__).parents[2] / "build" / "jars" / "kafka-4.3.0"


def java(main_class: str, *arguments: str | Path, heap_mb: int = 128, options: tuple[str, ...] = ()) -> list[str]:
    """The command line of one of Kafka's main classes, logging warnings to standard error.

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
