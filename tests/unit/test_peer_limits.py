"""Budgets that peers share."""

from __future__ import annotations

from collections import Counter

from kafka_probe.peer_limits import SharedBudget


def test_what_leaves_a_place_may_be_taken_again() -> None:
    place = SharedBudget(1000, Counter())
    assert place.take("10.0.0.1", 600, "text_limit")
    assert not place.take("10.0.0.1", 400, "text_limit")
    place.give_back(600)
    assert place.used_bytes == 0
    assert place.take("10.0.0.1", 400, "text_limit")
