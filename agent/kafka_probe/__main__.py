"""`python -m kafka_probe` is the command `kafka-probe`."""

from kafka_probe.cli import main

main()
