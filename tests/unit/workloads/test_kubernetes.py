"""Pod names by a watch: the official client over real connections to a stand-in for the API server.

No API server can be had here. tests/lab/api_server.py speaks as much of its protocol as a watch needs.
"""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from subprocess import Popen
from typing import Any, Literal

import orjson
import pytest

from kafka_probe.agent import Agent
from kafka_probe.config import Config
from kafka_probe.events import Event
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.sinks.outbox import encode
from kafka_probe.workloads import Owner, kubernetes
from kafka_probe.workloads.kubernetes import PodWatch, Setting
from kafka_probe.workloads.pods import GONE_S, NAMELESS, Pods
from tests.builders.event_schema import assert_valid
from tests.builders.events import StillSink
from tests.builders.samples import ended, opened, request, stream
from tests.lab.api_server import ApiServer, pod
from tests.lab.processes import wait_until

METADATA = ApiKey.METADATA
NODE = "node-1"


class Watching:
    """A watch that is running, and what it knows. `later`: seconds by which the clock of what is gone runs ahead."""

    def __init__(self, directory: Path, setting: Setting = "auto", node: str = NODE) -> None:
        self.later = 0.0
        self.pods = Pods(clock=lambda: self.later)
        self.watch = PodWatch(setting, node, self.pods, directory)
        self.watch.start()

    @property
    def failed(self) -> int:
        return self.watch.losses["kubernetes_failed"]

    def name(self, container_id: str) -> object:
        names = self.pods.names(container_id)
        return names["pod"] if names else None

    def learns(self, container_id: str, name: str = "orders-0") -> None:
        wait_until(lambda: self.name(container_id) == name, f"the name {name}", every_s=0.01)


Watch = Callable[..., Watching]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """Run the API server of a cluster in whose pod the test is: its service account stands in `tmp_path`."""
    for variable in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(variable)
    with ApiServer(tmp_path) as server:
        (tmp_path / "token").write_text(server.token)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        yield server


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Start a watch that loses little time between its attempts; it is closed when the test ends."""
    monkeypatch.setattr(kubernetes, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(kubernetes, "LONGEST_PAUSE_S", 0.1)
    started: list[Watching] = []

    def watch(setting: Setting = "auto", node: str = NODE) -> Watching:
        started.append(Watching(tmp_path, setting, node))
        return started[-1]

    yield watch
    for each in started:
        each.watch.close()
        assert not each.watch._thread.is_alive()


@pytest.fixture
def kubeconfig(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test outside of a pod, with a kubeconfig."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(server.kubeconfig))


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return all logged warnings and errors."""
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def container() -> str:
    return secrets.token_hex(32)


def test_pods_that_are_there_are_named_and_those_of_other_nodes_are_not_asked_for(
    server: ApiServer, watch: Watch
) -> None:
    mine, other = container(), container()
    server.put(pod(other, name="elsewhere", node="node-2"))
    server.put(pod(mine, app="orders"))
    watching = watch()
    watching.learns(mine)
    assert watching.pods.names(mine) == {
        "pod": "orders-0",
        "namespace": "shop",
        "labels": {"app": "orders"},
        "owner_kind": None,
        "owner_name": None,
    }
    assert watching.name(other) is None
    assert {query["fieldSelector"] for query in server.asked} == {"spec.nodeName=node-1"}
    assert server.lists()[0]["resourceVersion"] == "0"
    assert watching.failed == 0


def test_a_pod_that_comes_later_is_named_and_one_that_changes_changes(server: ApiServer, watch: Watch) -> None:
    first, second = container(), container()
    server.put(pod(first))
    watching = watch()
    watching.learns(first)
    server.put(pod(name="orders-1"))
    server.put(pod(second, name="orders-1"))
    watching.learns(second, "orders-1")
    server.put(pod(second, name="orders-1", tier="gold"))
    wait_until(lambda: (watching.pods.names(second) or NAMELESS)["labels"] == {"tier": "gold"}, "the new labels")
    assert len(server.lists()) == 1


def test_a_pod_is_named_for_a_while_after_its_end(server: ApiServer, watch: Watch) -> None:
    gone, stays = container(), container()
    server.put(pod(gone))
    server.put(pod(stays, name="orders-1"))
    watching = watch()
    watching.learns(gone)
    server.delete(pod(gone))
    server.put(pod(stays, name="orders-1", seen="all"))
    wait_until(lambda: (watching.pods.names(stays) or NAMELESS)["labels"] == {"seen": "all"}, "what came after its end")
    assert watching.name(gone) == "orders-0"
    watching.later = GONE_S
    server.bookmark()
    wait_until(lambda: watching.name(gone) is None, "it to be forgotten")
    assert watching.name(stays) == "orders-1"


@pytest.mark.parametrize("how", ["end", "drop"])
def test_a_watch_that_ends_or_breaks_goes_on_where_it_was(
    server: ApiServer, watch: Watch, how: Literal["end", "drop"], warnings: Callable[[], list[str]]
) -> None:
    first, second = container(), container()
    server.put(pod(first))
    watching = watch()
    watching.learns(first)
    server.put(pod(second, name="orders-1"))
    watching.learns(second, "orders-1")
    server.bookmark()
    if how == "end":
        server.end()
    else:
        wait_until(lambda: (watching.watch._watch.resource_version or "0") == str(server._version), "the bookmark")
        server.drop()
    wait_until(lambda: len(server.watches()) > 1, "the next watch")
    assert server.watches()[1]["resourceVersion"] == str(server._version)
    assert len(server.lists()) == 1
    assert (watching.failed, warnings()) == (0, [])


@pytest.mark.parametrize("gone", ["event", "status"])
def test_a_version_that_is_too_old_leads_to_a_new_list_and_no_name_is_lost(
    server: ApiServer, watch: Watch, gone: Literal["event", "status"], warnings: Callable[[], list[str]]
) -> None:
    ended, stays, new = container(), container(), container()
    server.gone = gone
    server.put(pod(ended))
    server.put(pod(stays, name="orders-1"))
    watching = watch()
    watching.learns(stays, "orders-1")
    wait_until(lambda: bool(server.watches()), "the watch")
    server.compact(deleted=pod(ended), put=pod(new, name="orders-2"))
    watching.learns(new, "orders-2")
    assert len(server.lists()) == 2
    assert (watching.name(ended), watching.name(stays)) == ("orders-0", "orders-1")
    watching.later = GONE_S
    server.bookmark()
    wait_until(lambda: watching.name(ended) is None, "the one that ended meanwhile to be forgotten")
    assert (watching.failed, warnings()) == (0, [])


def test_without_permission_one_warning_says_what_to_do_and_it_goes_on_trying(
    server: ApiServer, watch: Watch, warnings: Callable[[], list[str]]
) -> None:
    mine = container()
    server.put(pod(mine))
    server.refuses = HTTPStatus.FORBIDDEN
    watching = watch()
    wait_until(lambda: watching.failed > 3, "several attempts")
    (warning,) = warnings()
    assert "the API server answers 403 Forbidden: let the agent's service account list and watch pods" in warning
    assert watching.name(mine) is None
    server.refuses = None
    watching.learns(mine)


def test_a_server_that_is_away_at_first_is_found_when_it_is_there(
    server: ApiServer, watch: Watch, caplog: pytest.LogCaptureFixture, warnings: Callable[[], list[str]]
) -> None:
    caplog.set_level(logging.INFO, "kafka_probe")
    server.stop()
    watching = watch()
    wait_until(lambda: watching.failed > 3, "several attempts")
    (warning,) = warnings()
    assert "Connection refused: check network and service account" in warning
    server.start()
    first, second = container(), container()
    server.put(pod(first))
    watching.learns(first)
    server.put(pod(second))
    watching.learns(second)
    wait_until(lambda: "New pods have names again" in caplog.text, "the good news")
    assert len(warnings()) == 1


class Pauses(threading.Event):
    """The pauses between attempts, a thousand times faster."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.asked_s.append(timeout)
        return super().wait(timeout / 1000)


def test_the_longer_a_server_is_away_the_less_often_it_is_asked(server: ApiServer, tmp_path: Path) -> None:
    server.stop()
    watch = PodWatch("auto", NODE, Pods(), tmp_path)
    pauses = watch._stopping = Pauses()
    watch.start()
    wait_until(lambda: len(pauses.asked_s) >= 8, "several attempts")
    watch.close()
    for pause_s, longest_s in zip(pauses.asked_s, (2, 4, 8, 16, 32, 60, 60, 60), strict=False):
        assert longest_s / 2 <= pause_s <= longest_s


def test_a_token_that_was_renewed_is_read_again(server: ApiServer, watch: Watch, tmp_path: Path) -> None:
    first, second = container(), container()
    server.put(pod(first))
    watching = watch()
    watching.learns(first)
    server.token = "second"
    (tmp_path / "token").write_text(server.token)
    server.end()
    wait_until(lambda: len(server.lists()) > 1, "the new beginning after it was refused")
    server.put(pod(second, name="orders-1"))
    watching.learns(second, "orders-1")


def test_a_node_without_pods_has_another_name(
    server: ApiServer, watch: Watch, warnings: Callable[[], list[str]]
) -> None:
    server.put(pod(container()))
    watching = watch(node="node-1.example.org")
    wait_until(lambda: watching.failed > 1, "several attempts")
    (warning,) = warnings()
    assert (
        "has no pod on a node node-1.example.org: set --node or the variable NODE_NAME to the name of the node"
        in warning
    )


def test_a_server_whose_certificate_nobody_signed_is_not_believed(
    server: ApiServer, watch: Watch, tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    with ApiServer(tmp_path / "other") as other:
        (tmp_path / "ca.crt").write_text(other.authorities.read_text())
    watching = watch()
    wait_until(lambda: watching.failed > 1, "several attempts")
    assert "CERTIFICATE_VERIFY_FAILED" in warnings()[0]
    assert server.asked == []


def test_without_the_library_one_warning_says_how_to_install_it(
    server: ApiServer, watch: Watch, monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    watching = watch()
    wait_until(lambda: watching.failed > 1, "several attempts")
    (warning,) = warnings()
    assert "pip install '.[kubernetes]'" in warning
    assert server.asked == []


@pytest.mark.usefixtures("kubeconfig")
def test_outside_of_a_cluster_a_kubeconfig_does(server: ApiServer, watch: Watch) -> None:
    mine = container()
    server.put(pod(mine))
    watch("on").learns(mine)


@pytest.mark.parametrize(("setting", "in_pod"), [("off", True), ("auto", False)])
def test_where_it_is_not_wanted_nobody_is_asked(
    server: ApiServer, watch: Watch, setting: Setting, in_pod: bool, tmp_path: Path
) -> None:
    if not in_pod:
        (tmp_path / "token").unlink()
    watching = watch(setting)
    assert not watching.watch._thread.is_alive()
    assert (server.asked, watching.failed) == ([], 0)


def test_the_library_is_not_loaded_where_it_is_not_wanted() -> None:
    code = "import sys, kafka_probe.agent; sys.exit('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_thread_ends_when_it_is_closed_in_the_middle_of_a_watch(server: ApiServer, watch: Watch) -> None:
    mine = container()
    server.put(pod(mine))
    watching = watch()
    watching.learns(mine)
    wait_until(lambda: bool(server.watches()), "the watch")
    watching.watch.close()
    assert not watching.watch._thread.is_alive()
    assert watching.failed == 0


class Kept(StillSink):
    """A sink that keeps what it gets, as it is then."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def send(self, events: Sequence[Event]) -> None:
        self.events += [orjson.loads(encode(event)) for event in events]


@pytest.mark.usefixtures("kubeconfig")
def test_a_pod_that_is_known_after_its_connection_is_named_in_what_follows(
    server: ApiServer,
    start: Callable[[], Popen[bytes]],
    owner_of: Callable[..., Owner],
    make_cgroup: Callable[[Path], Path],
    unified: Path,
) -> None:
    mine = container()
    process, cgroup = start(), make_cgroup(unified) / f"kubepods/cri-containerd-{mine}.scope"
    cgroup.mkdir(parents=True)
    (cgroup / "cgroup.procs").write_text(str(process.pid))
    owner = owner_of(process.pid, cgroup_id=cgroup.stat().st_ino)
    sink = Kept()
    agent = Agent(Config(node=NODE, kubernetes="on"), sink)

    def report(*records: Any) -> list[dict[str, Any]]:
        for portion in agent._processor.split(stream(*records)):
            agent._processor.consume(portion)
        sink.events.clear()
        list(agent._reporter.report(0, time.time_ns(), time.time_ns()))
        for event in sink.events:
            assert_valid(event)
        return [event for event in sink.events if event["kind"] != "agent"]

    owned: dict[str, Any] = {"tgid": owner.pid, "start_ns": owner.start_boottime_ns, "cgroup_id": owner.cgroup_id}
    before = report(opened(1, **owned), request(METADATA, 12, 1))
    agent._pod_watch.start()
    try:
        server.put(pod(mine, app="orders"))
        wait_until(lambda: agent._processor._resolver._pods.names(mine) is not None, "the pod")
        after = report(request(METADATA, 12, 1), ended(1), opened(2, **owned))
    finally:
        agent._pod_watch.close()
    assert [(event["kind"], event["workload"]["pod"]) for event in before] == [("open", None), ("flow", None)]
    assert [event["kind"] for event in after] == ["open", "flow", "close"]
    assert {event["workload"]["container_id"] for event in (*before, *after)} == {mine}
    assert {(event["workload"]["pod"], event["workload"]["labels"]["app"]) for event in after} == {
        ("orders-0", "orders")
    }
