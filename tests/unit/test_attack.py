"""The judge of `make attack` finds unreported requests, and how many of them the losses explain."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.builders.events import SECOND_US, agent, flow
from tests.builders.wire import MARKER
from tests.lab.times import Times
from tests.programs.attack.judge import Reported, faults, figures
from tests.programs.attack.lab import Phase

LIMIT_BYTES = 512 << 20


def line(event: dict[str, Any]) -> bytes:
    return json.dumps({"node": "attacked-0", **event}).encode()


def reported(*responses: int, losses: int = 0) -> Reported:
    """Return reports of an agent with these responses per interval of five seconds, and all losses in the third."""
    found = Reported()
    for number, count in enumerate(responses, 1):
        end_us = 5 * number * SECOND_US
        for side in ("client", "server"):
            found.take(line(flow(end_us, side=side, responses=count, local="127.0.0.1:9092")), b":9092")
        found.take(line(agent(end_us, losses={"ring_full": losses if number > 2 else 0})), b":9092")
    return found


# Ten requests per second; the flood is from 6 s to 14 s, the next one begins at 22 s.
WIRE = Times({("ab", n): (n * SECOND_US // 10, n * SECOND_US // 10) for n in range(1, 251)})
PAGES = Counter({"200": 3})
FLOOD = Phase("topics", 6 * SECOND_US, 14 * SECOND_US, pages=PAGES)
NEXT_US = 22 * SECOND_US


def judged(found: Reported) -> tuple[float, list[str]]:
    row = figures(FLOOD, NEXT_US, found, WIRE, LIMIT_BYTES)
    return row["reported_percent"], list(faults(row, may_lose=False))


def test_all_that_is_reported_until_the_next_flood_counts() -> None:
    assert judged(reported(50, 20, 50, 80, 50)) == (100.0, [])


def test_what_is_missing_is_a_part_of_the_requests_during_the_flood() -> None:
    percent, found = judged(reported(50, 30, 50, 50, 50, losses=20))
    assert percent == 75.31  # 20 of 81
    assert found == ["topics: 75.31 % of honest requests reported"]


def test_of_a_loss_that_outlasts_the_flood_no_less_than_nothing_is_reported() -> None:
    percent, found = judged(reported(50, 0, 0, 0, 50, losses=150))
    assert percent == 0
    assert found == ["topics: 0 % of honest requests reported"]


def test_honest_clients_that_do_nothing_during_the_flood_are_a_fault() -> None:
    calm = {key: us for key, us in WIRE.exchanges.items() if not FLOOD.began_us <= us[0] <= FLOOD.ended_us}
    row = figures(FLOOD, NEXT_US, reported(50, 10, 0, 50), Times(calm), LIMIT_BYTES)
    assert "topics: honest clients did nothing" in faults(row, may_lose=True)


def test_losses_have_to_explain_what_is_missing() -> None:
    _, found = judged(reported(50, 30, 50, 50, 50, losses=18))
    assert found[1:] == ["topics: 20 honest requests missing, losses explain 18"]


@pytest.mark.parametrize(
    ("missing", "losses", "expected"),
    [(100, 0, []), (101, 0, ["topics: 101 honest requests missing, losses explain 0"]), (101, 1, [])],
)
def test_what_is_more_than_a_tenth_of_a_second_has_to_be_explained_also_below_one_percent(
    missing: int, losses: int, expected: list[str]
) -> None:
    row = figures(FLOOD, NEXT_US, reported(50), WIRE, LIMIT_BYTES)
    many = {"honest_requests": 50_000, "seconds": 50.0, "reported_percent": 99.8, "losses": {"ring_full": losses}}
    assert list(faults(row | many | {"missing": missing}, may_lose=False)) == expected


def test_a_second_capture_that_saw_nothing_or_a_marker_is_a_fault() -> None:
    row = figures(FLOOD, NEXT_US, reported(50, 50, 50, 50, 50), WIRE, LIMIT_BYTES)
    for ring, expected in (
        ({"samples": 9, "markers": 0}, []),
        ({"samples": 9, "markers": 2}, ["topics: 2 markers in the ring"]),
        ({"samples": 0, "markers": 0}, ["topics: the second capture saw nothing"]),
    ):
        assert list(faults(row | {"done": {"ring": ring}}, may_lose=False)) == expected


@pytest.mark.parametrize(
    ("losses", "expected"), [(21, []), (20, ["topics: 23 requests of all clients missing, losses explain 20"])]
)
def test_losses_have_to_explain_what_is_missing_of_the_flood_too(losses: int, expected: list[str]) -> None:
    found = reported(50, 50, 50, 50, 50, losses=losses)
    found.take(line(flow(10 * SECOND_US, side="client", responses=90, local=None)), b":9092")
    found.take(line(flow(10 * SECOND_US, side="server", responses=87, local=None)), b":9092")
    phase = Phase("topics", FLOOD.began_us, FLOOD.ended_us, done={"requests": 100}, pages=PAGES)
    row = figures(phase, NEXT_US, found, WIRE, LIMIT_BYTES)
    assert row["missing_of_all"] == 23
    assert list(faults(row, may_lose=False)) == expected


def test_sides_of_revisions_with_other_names_count_as_well() -> None:
    found = Reported()
    for side in ("connecting", "accepting"):
        found.take(line(flow(5 * SECOND_US, side=side, responses=3, local="127.0.0.1:9092")), b":9092")
    assert found.answered == {side: {5 * SECOND_US: 3} for side in ("client", "server")}


@pytest.mark.parametrize(("may_lose", "explained"), [(True, 20), (False, 0)])
def test_what_a_peer_may_not_write_explains_honest_requests_from_the_flood_s_address_only(
    may_lose: bool, explained: int
) -> None:
    row = figures(FLOOD, NEXT_US, reported(50, 30, 50, 50, 50), WIRE, LIMIT_BYTES) | {"losses": {"peer_limited": 20}}
    found = [fault for fault in faults(row, may_lose=may_lose) if "explain" in fault]
    assert found == ([] if explained else ["topics: 20 honest requests missing, losses explain 0"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"pages": {"429": 9}}, "topics: no page was answered, but {'429': 9}"),
        ({"done": {"done": 24, "planned": 100}}, "topics: 24 of 100 steps done"),
        ({"done": {"refused by the broker": ["too large"]}}, "topics: the broker refused 1 forged records"),
    ],
)
def test_a_flood_that_did_nothing_and_pages_that_nobody_got_are_faults(
    fields: dict[str, object], expected: str
) -> None:
    row = figures(FLOOD, NEXT_US, reported(50, 50, 50, 50, 50), WIRE, LIMIT_BYTES)
    assert list(faults(row, may_lose=False)) == []
    assert list(faults(row | fields, may_lose=False)) == [expected]


def test_losses_that_only_a_flood_has_explain_nothing() -> None:
    row = figures(FLOOD, NEXT_US, reported(50, 30, 50, 50, 50), WIRE, LIMIT_BYTES)
    row["losses"] = {"before_proof": 200_000}
    assert list(faults(row, may_lose=True)) == ["topics: 20 honest requests missing, losses explain 0"]


def test_memory_above_the_limit_is_a_fault() -> None:
    row = figures(
        Phase("topics", 6 * SECOND_US, 14 * SECOND_US, peak_bytes=LIMIT_BYTES + (1 << 20), pages=PAGES),
        NEXT_US,
        reported(50, 50, 50, 50),
        WIRE,
        LIMIT_BYTES,
    )
    assert list(faults(row, may_lose=False)) == ["topics: 513.0 MiB of memory, the limit is 512.0"]


def test_a_marker_and_a_line_that_is_no_json_are_found_in_events() -> None:
    found = reported(50)
    found.take(b'{"node":"attacked-0", ' + MARKER, b":9092")
    found.find_markers(MARKER + b"\n")
    assert dict(found.faults) == {"markers in events": 1, "an event that is not JSON": 1}
