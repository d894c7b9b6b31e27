"""Builds the events of both ends of a connection that closed, from facts of the closes."""

from __future__ import annotations

from collections.abc import Mapping

from tests.builders.spark_events import BROKER, CLIENT, SECOND_US, Event, closed, opened

Ends = Mapping[str, Event | None]
"""Facts of each end's close; None: the end is open; absent: no agent watched it."""

BY_ITSELF: Event = {"closed_by": "local"}
RESET: Event = {"how": "rst_received"}
BRIEF: Event = {"silence_us": SECOND_US // 5}
IGNORED: Event = {**BY_ITSELF, "unacked_bytes": 80, "unanswered_retransmits": 3}
EXITED: Event = {**BY_ITSELF, "owner_exiting": True}
STOPPED: Event = {**BY_ITSELF, "listener_closed_us": SECOND_US}
AUTHENTICATED: Event = {**BY_ITSELF, "last_api": "SaslAuthenticate", "silence_us": 3 * SECOND_US}


def after(silence_us: int, **facts: object) -> Event:
    """Return facts of an end that closed by itself after this silence."""
    return {**BY_ITSELF, "silence_us": silence_us, **facts}


def silent(us: int) -> Event:
    """Return facts of an end that closed by itself this long after its last exchange."""
    return after(us, received_idle_us=us)


def closed_first(end: str, facts: Event) -> Ends:
    """Return facts of two watched ends, of which one closed first."""
    return {end: BY_ITSELF | facts, CLIENT if end == BROKER else BROKER: {}}


def events_of(ends: Ends, number: int = 1, opaque: str | None = None) -> list[Event]:
    """Return the events of the ends of a connection."""
    reported = [opened(end, number, opaque=opaque) for end in ends]
    return reported + [closed(end, number, opaque=opaque, **facts) for end, facts in ends.items() if facts is not None]
