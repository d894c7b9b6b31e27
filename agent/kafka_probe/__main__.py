"""Runs the command `kafka-probe` for `python -m kafka_probe`."""

from kafka_probe.cli import main

main()
