"""Budgets that peers share."""

from __future__ import annotations

from collections import Counter

from kafka_probe.peer_limits import SharedBudget


def test_bytes_given_back_may_be_taken_again() -> None:
    budget = SharedBudget(1000, Counter())
    assert budget.take("10.0.0.1", 600, "text_limit")
    assert not budget.take("10.0.0.1", 400, "text_limit")
    budget.give_back(600)
    assert budget.used_bytes == 0
    assert budget.take("10.0.0.1", 400, "text_limit")
