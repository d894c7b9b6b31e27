"""The program for spark-submit: `spark-submit --packages ... job.py run ...` is `kafka-probe-pipeline run ...`."""

from __future__ import annotations

from kafka_probe_pipeline.cli import main

if __name__ == "__main__":
    main()
