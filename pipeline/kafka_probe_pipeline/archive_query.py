"""The query of the archive: keeps the frames that agents sent, a row per sample, and sends malformed lines on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_probe_pipeline import frames, output, source, spark_session
from kafka_probe_pipeline.config import PipelineConfig
from kafka_probe_pipeline.messages import dead_letters, send
from kafka_probe_pipeline.progress import Progress
from kafka_probe_pipeline.tables import Table


@dataclass(frozen=True, slots=True)
class ArchiveQuery:
    """One micro-batch, the same however often it is called with the same batch."""

    name: ClassVar = "archive"
    kinds: ClassVar = ("frames",)
    config: PipelineConfig
    progress: Progress

    def __call__(self, parsed: DataFrame, batch_id: int) -> None:
        began_s = time.monotonic()
        spark = spark_session.for_its_cores(parsed.sparkSession)
        output.require(spark, self.config, self.name, batch_id)
        parsed.persist(source.STORAGE)
        try:
            counts = parsed.groupBy("reason").agg(F.count("*"), F.max(F.unix_micros("timestamp"))).collect()
            by_reason = {reason: count for reason, count, _ in counts}
            newest_us = max((newest_us for *_, newest_us in counts), default=0)
            if None in by_reason:
                rows = parsed.transform(source.received).transform(frames.frames)
                Table(spark, self.config, "frames").append(rows, batch_id, newest_us)
            if by_reason.keys() - {None}:
                send(dead_letters(source.malformed(parsed)), self.config.dead_letter_topic, self.config.kafka)
            self.progress.batch(self.name, by_reason.pop(None, 0), newest_us, began_s)
            self.progress.lines(by_reason)
        finally:
            parsed.unpersist()
