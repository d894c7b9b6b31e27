"""Makes the records of the topics of traffic and of dead letters. The last record per key is right.

Spark repeats a micro-batch after a crash, with the same number and the same records. Each row is sent under a key made
of what the row is about and the batch number.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from kafka_probe_pipeline.traffic import KEYS, with_percentiles, without_overflows

# A line beyond it would make a dead letter larger than a broker takes, and stop the job for ever: JSON has up to 12
# bytes per character.
DEAD_LETTER_CHARACTERS = 80_000

MESSAGE = StructType([StructField("key", StringType()), StructField("value", StringType())])


def traffic_messages(rows: DataFrame) -> DataFrame:
    """Return rows with their `batch_id` as Kafka records: JSON, with a hash of window, dimensions and batch as key.

    A topic is its id there, if it has one: a row whose name became known replaces the one that it was before. Each has
    the percentiles of its own histogram; of several rows add the histograms, never the percentiles.
    """
    topic = F.when(F.col("topic_id").isNull(), F.col("topic")).alias("topic")
    keys = (topic if name == "topic" else F.col(name) for name in (*KEYS, "batch_id"))
    complete = rows.transform(with_percentiles).transform(without_overflows)
    return complete.select(
        F.sha2(F.to_json(F.struct(*keys)), 256).alias("key"), _json(F.struct(*complete.columns)).alias("value")
    )


def dead_letters(malformed: DataFrame) -> DataFrame:
    """Return malformed lines as Kafka records; the key is the position of the line. Very long lines are cut."""
    return malformed.select(
        F.concat_ws("-", "topic", "partition", "offset", "line_number").alias("key"),
        _json(
            F.struct(
                "reason",
                F.substring("line", 1, DEAD_LETTER_CHARACTERS).alias("line"),
                F.length("line").alias("length"),
                "topic",
                "partition",
                "offset",
                "line_number",
            )
        ).alias("value"),
    )


def _json(row: Column) -> Column:
    """Return the row as JSON that is safe to print: what is not printable ASCII is escaped."""
    written = F.to_json(row, {"writeNonAsciiCharacterAsCodePoint": "true"})
    return F.replace(written, F.lit("\x7f"), F.lit("\\u007f"))


def send(messages: DataFrame, topic: str, kafka: dict[str, str]) -> None:
    """Write key and value to a topic, at least once."""
    options = {f"kafka.{name}": value for name, value in kafka.items()}
    messages.write.format("kafka").options(**options).option("topic", topic).save()
