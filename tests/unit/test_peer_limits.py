"""Budgets that peers share."""

from __future__ import annotations

from collections import Counter

import pytest

from kafka_probe.peer_limits import SharedBudget, network_of


def test_a_peer_earns_no_share_of_the_bytes_that_it_gives_back_itself() -> None:
    budget = SharedBudget(8000, Counter())
    assert budget.take("others", 4000, "text_limit")
    assert budget.take("10.0.0.1", 1, "text_limit")
    taken = 0
    while budget.take("10.0.0.1", 100, "text_limit"):
        taken += 100
        for _ in range(10):
            budget.give_back(100, "10.0.0.1")
            assert budget.take("10.0.0.1", 100, "text_limit")
    assert taken <= 1000 + 100


def test_bytes_given_back_may_be_taken_again() -> None:
    budget = SharedBudget(1000, Counter())
    assert budget.take("10.0.0.1", 600, "text_limit")
    assert not budget.take("10.0.0.1", 400, "text_limit")
    budget.give_back(600)
    assert budget.used_bytes == 0
    assert budget.take("10.0.0.1", 400, "text_limit")


@pytest.mark.parametrize(
    ("hosts", "same"),
    [
        (("10.0.0.1", "::ffff:10.0.0.1"), True),
        (("10.0.0.1", "10.0.0.2"), False),
        (("2001:db8::1", "2001:db8::ffff:2"), True),
        (("2001:db8::1", "2001:db8:0:1::1"), False),
        (("::a00:1", "10.0.0.1"), False),
        (("fe80::1%lo", "fe80::2"), True),
    ],
)
def test_a_network_is_an_ipv4_address_or_an_ipv6_64(hosts: tuple[str, str], same: bool) -> None:
    assert (len({*map(network_of, hosts)}) == 1) is same
