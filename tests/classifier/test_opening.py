"""Two CPUs see a new connection at the same time: bpf/connection.h opens it once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.builders.wire import API_VERSIONS, request
from tests.lab.classifier import Classifier, Direction, classifier

WHOLE = 1 << 20
ESTABLISHED, SYN_SENT, CLOSE, CLOSE_WAIT = 1, 2, 7, 8


@pytest.fixture(scope="module", params=[False, True], ids=["named port", "any port"])
def programs(request: pytest.FixtureRequest) -> Iterator[Classifier]:
    with classifier(any_port=request.param) as found:
        yield found


@pytest.fixture(params=[False, True], ids=["before", "meanwhile"])
def half_open(programs: Classifier, request: pytest.FixtureRequest) -> Classifier:
    """Return a classifier, with a connection that another CPU has inserted but not filled."""
    programs.connect(server_side=True)
    programs.begin_elsewhere(meanwhile=request.param)
    return programs


@pytest.mark.parametrize("direction", Direction)
def test_a_call_leaves_the_connection_alone_and_counts_its_bytes_as_a_gap_on_a_named_port(
    half_open: Classifier, direction: Direction
) -> None:
    before = half_open.losses().get("gap", 0)
    half_open.move(direction, request(API_VERSIONS, 3).wire, WHOLE)
    assert half_open.is_untouched
    assert half_open.losses().get("gap", 0) == before + (not half_open.any_port)
    assert len(half_open.samples()) == 0


@pytest.mark.parametrize("state", [CLOSE, CLOSE_WAIT])
def test_only_the_state_is_kept_of_a_connection_that_ends_meanwhile(half_open: Classifier, state: int) -> None:
    if half_open.any_port:  # a connection without payload is not followed there
        half_open.begin_elsewhere(meanwhile=False)
    half_open.change_state(ESTABLISHED, state)
    assert half_open.is_untouched
    assert half_open.first_state == state
    assert len(half_open.samples()) == 0


def test_a_socket_that_connects_again_does_not_take_the_entry_from_the_program_that_fills_it(
    programs: Classifier,
) -> None:
    programs.connect(server_side=False)
    programs.begin_elsewhere(meanwhile=False)
    programs.change_state(SYN_SENT, ESTABLISHED)
    assert programs.is_untouched
    assert len(programs.samples()) == 0
