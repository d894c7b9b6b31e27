"""Two CPUs see a new connection at the same time: bpf/connection.h opens it once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.builders.wire import API_VERSIONS, request
from tests.lab.classifier import Classifier, Direction, classifier

WHOLE = 1 << 20
ESTABLISHED, CLOSE, CLOSE_WAIT = 1, 7, 8


@pytest.fixture(scope="module", params=[False, True], ids=["named port", "any port"])
def programs(request: pytest.FixtureRequest) -> Iterator[Classifier]:
    with classifier(any_port=request.param) as found:
        yield found


@pytest.fixture(params=[False, True], ids=["before", "meanwhile"])
def tried(programs: Classifier, request: pytest.FixtureRequest) -> Classifier:
    """Return a classifier, with a connection that another CPU has inserted but not filled."""
    programs.connect(server_side=True)
    programs.begin_elsewhere(meanwhile=request.param)
    return programs


@pytest.mark.parametrize("direction", Direction)
def test_a_call_leaves_the_connection_alone_and_counts_its_bytes_as_a_gap(
    tried: Classifier, direction: Direction
) -> None:
    before = tried.losses().get("gap", 0)
    tried.move(direction, request(API_VERSIONS, 3).wire, WHOLE)
    assert tried.is_untouched
    assert tried.losses()["gap"] == before + 1
    assert len(tried.samples()) == 0


@pytest.mark.parametrize("state", [CLOSE, CLOSE_WAIT])
def test_only_the_state_is_kept_of_a_connection_that_ends_meanwhile(tried: Classifier, state: int) -> None:
    if tried.any_port:  # a connection without payload is not followed there
        tried.begin_elsewhere(meanwhile=False)
    tried.change_state(ESTABLISHED, state)
    assert tried.is_untouched
    assert tried.first_state == state
    assert len(tried.samples()) == 0
