"""The destinations of events. A new one implements `Sink` of sink.py, as kafka.py and stdout.py do.

A sink takes events without blocking the capture loop, keeps at most a fixed number of bytes, and counts by reason every
event that it could not deliver. It never changes an event.

`config.py` names the sinks of `run`; `cli.py` makes them, for events in `_sink` and for archived frames in
`_archive_sink`; scripts/docs.py imports their `LOSSES`, and the chart's templates ask whether a sink needs brokers and
a spool.
"""
