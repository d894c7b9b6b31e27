"""Answers from the pipeline's tables, without Spark: DuckDB over Delta Lake, as subcommands of `kafka-probe`."""
