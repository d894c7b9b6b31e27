"""An agent keeps correct times while a guest sleeps and its wall clock jumps an hour ahead and two back.

Part of `make test-kernels`, not of `make test`: nobody does that to the machine that the tests run on.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from kafka_probe.events import KINDS
from tests.kernel.archive import kernel
from tests.kernel.machine import Job, run
from tests.kernel.matrix import FILES, LOGS
from tests.kernel.root import root_disk

pytestmark = pytest.mark.root

SERIES, PORT = "6.12", 9092
STEPS_S = (3600, -7200)
SLEEP_S = 20
HEAD = """
import json, time
from pathlib import Path
from tests.lab.conversation import conversation, exchange
from tests.lab.processes import wait_until

reports = lambda: Path("/results/events").read_bytes().count(b'"kind":"agent"')

def wait_for_reports():
    before = reports()
    wait_until(lambda: reports() >= before + 2, "two reports", timeout_s=60)
"""
STEP = f"""
with conversation({PORT}) as talk:
    opened_s = time.monotonic()
    for number, step_s in enumerate({STEPS_S}):
        exchange(talk, [2 * number])
        time.clock_settime(time.CLOCK_REALTIME, time.time() + step_s)
        exchange(talk, [2 * number + 1])
        wait_for_reports()
    lasted_s = time.monotonic() - opened_s
wait_for_reports()
truth = {{"lasted_s": lasted_s, "ended_s": time.time()}}
"""
# All of a suspend to memory but the last step: the firmware of an emulated board, which would have to wake it.
SLEEP = f"""
def slept_s():
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()

with conversation({PORT}) as talk:
    opened_s = time.monotonic()
    exchange(talk, [0])
    wait_for_reports()
    before_s = slept_s()
    Path("/sys/power/mem_sleep").write_text("deep")
    Path("/sys/power/pm_test").write_text("core")
    Path("/sys/module/suspend/parameters/pm_test_delay").write_text("{SLEEP_S}")
    Path("/sys/power/state").write_text("mem")
    woken_s = time.time()
    exchange(talk, [1])
    wait_for_reports()
    lasted_s = time.monotonic() - opened_s
wait_for_reports()
truth = {{"lasted_s": lasted_s, "slept_s": slept_s() - before_s, "woken_s": woken_s, "ended_s": time.time()}}
"""


def run_with(what: str) -> tuple[dict[str, float], dict[str, list[dict[str, Any]]]]:
    """Return facts of a guest in which this was done while an agent watched, and the agent's events by kind."""
    write = 'Path("/results/truth.json").write_text(json.dumps(truth))'
    script = f"""
export HOME=/root PATH=/usr/sbin:/usr/bin LANG=C.UTF-8 PYTHONPATH=agent:.
ip link set lo up
python3 -m kafka_probe run --sink stdout --ports {PORT} --interval-s 1 --ready-file /tmp/ready >/results/events &
agent=$!
until [ -e /tmp/ready ]; do kill -0 $agent || exit 1; sleep 0.1; done
python3 - <<'END' || exit 1
{HEAD}{what}{write}
END
kill $agent
wait $agent
"""
    outcome = run(kernel(SERIES), root_disk(), Job(FILES, script), LOGS / "clock.log", timeout_s=900)
    assert outcome.status == 0, (LOGS / "clock.log").read_text()
    by_kind: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for event in map(json.loads, outcome.results["events"].splitlines()):
        by_kind[event["kind"]].append(event)
    for event in (*by_kind["flow"], *by_kind["agent"]):
        assert 0 <= event["ts"] - event["since"] < 60e6
    assert not any(by_kind["agent"][-1]["losses"].values())
    return json.loads(outcome.results["truth.json"]), by_kind


def test_steps_of_the_wall_clock_move_no_duration() -> None:
    truth, events = run_with(STEP)
    assert [close["age_us"] / 1e6 for close in events["close"]] == [pytest.approx(truth["lasted_s"], abs=2)] * 2
    for side in ("client", "server"):
        assert sum(flow["requests"] for flow in events["flow"] if flow["side"] == side) == 2 * len(STEPS_S)
    assert events["agent"][-1]["complete_until"] / 1e6 == pytest.approx(truth["ended_s"], abs=10)
    stepped = [later["ts"] - sooner["ts"] for sooner, later in pairwise(events["agent"])]
    assert max(stepped) > 3500e6
    assert min(stepped) < -7100e6


def test_what_a_host_slept_is_in_no_duration_and_times_are_right_after_it() -> None:
    truth, events = run_with(SLEEP)
    assert truth["slept_s"] > SLEEP_S - 5  # longer where the emulated machine is busy
    assert [close["age_us"] / 1e6 for close in events["close"]] == [pytest.approx(truth["lasted_s"], abs=2)] * 2
    for side in ("client", "server"):
        flows = [flow for flow in events["flow"] if flow["side"] == side]
        assert [flow["requests"] for flow in flows] == [1, 1]
        assert flows[-1]["ts"] / 1e6 >= truth["woken_s"]
    assert events["agent"][-1]["complete_until"] / 1e6 == pytest.approx(truth["ended_s"], abs=10)
    assert max(later["ts"] - sooner["ts"] for sooner, later in pairwise(events["agent"])) > (SLEEP_S - 5) * 1e6
