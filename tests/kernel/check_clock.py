"""A guest's wall clock is set an hour ahead and two back, while an agent watches: no duration is moved.

Part of `make test-kernels`, not of `make test`: nobody does that to the machine that the tests run on.
"""

from __future__ import annotations

import json

import pytest

from tests.kernel.archive import kernel
from tests.kernel.machine import Job, run
from tests.kernel.matrix import FILES, LOGS
from tests.kernel.root import root_disk

pytestmark = pytest.mark.root

SERIES, PORT = "6.12", 9092
STEPS_S = (3600, -7200)
TALK = f"""
import json, time
from pathlib import Path
from tests.golden.conversation import conversation, exchange
from tests.lab.processes import wait_until

reports = lambda: Path("/results/events").read_bytes().count(b'"kind":"agent"')

def wait_for_reports():
    before = reports()
    wait_until(lambda: reports() >= before + 2, "two reports", timeout_s=60)

with conversation({PORT}) as talk:
    opened_s = time.monotonic()
    for number, step_s in enumerate({STEPS_S}):
        exchange(talk, [2 * number])
        time.clock_settime(time.CLOCK_REALTIME, time.time() + step_s)
        exchange(talk, [2 * number + 1])
        wait_for_reports()
    lasted_s = time.monotonic() - opened_s
wait_for_reports()
Path("/results/truth.json").write_text(json.dumps({{"lasted_s": lasted_s, "ended_s": time.time()}}))
"""
SCRIPT = f"""
export HOME=/root PATH=/usr/sbin:/usr/bin LANG=C.UTF-8 PYTHONPATH=agent:.
ip link set lo up
python3 -m kafka_probe run --sink stdout --ports {PORT} --interval-s 1 --ready-file /tmp/ready >/results/events &
agent=$!
until [ -e /tmp/ready ]; do kill -0 $agent || exit 1; sleep 0.1; done
python3 - <<'END' || exit 1
{TALK}
END
kill $agent
wait $agent
"""


def test_steps_of_the_wall_clock_move_no_duration() -> None:
    outcome = run(kernel(SERIES), root_disk(), Job(FILES, SCRIPT), LOGS / "clock.log", timeout_s=900)
    assert outcome.status == 0, (LOGS / "clock.log").read_text()
    truth = json.loads(outcome.results["truth.json"])
    events = [json.loads(line) for line in outcome.results["events"].splitlines()]
    by_kind = {kind: [e for e in events if e["kind"] == kind] for kind in ("open", "flow", "close", "agent")}
    assert [close["age_us"] / 1e6 for close in by_kind["close"]] == [pytest.approx(truth["lasted_s"], abs=2)] * 2
    for side in ("connecting", "accepting"):
        assert sum(flow["requests"] for flow in by_kind["flow"] if flow["side"] == side) == 2 * len(STEPS_S)
    for event in (*by_kind["flow"], *by_kind["agent"]):
        assert 0 <= event["ts"] - event["since"] < 60e6
    last = by_kind["agent"][-1]
    assert last["complete_until"] / 1e6 == pytest.approx(truth["ended_s"], abs=10)
    assert not any(last["losses"].values())
    stepped = [
        later["ts"] - sooner["ts"] for sooner, later in zip(by_kind["agent"], by_kind["agent"][1:], strict=False)
    ]
    assert max(stepped) > 3500e6
    assert min(stepped) < -7100e6
