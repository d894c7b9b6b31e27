"""Names APIs by their keys, as Kafka's definitions do."""

from __future__ import annotations

from kafka_probe.protocol.schemas import apis


def api_name(key: int) -> str | None:
    """Return the name of the API in Kafka's definitions, without `Request`; None for an unknown key."""
    api = apis().get(key)
    return None if api is None else api.name
