"""The unit works with systemd, installed by the guide's commands, in a container that stands in for a machine.

It has its own processes, and a network that it shares with a broker and its client only. So these two are seen by their
traffic, but not found among the machine's processes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_probe.config import Config
from kafka_probe.privileges import Capability
from tests.lab.broker import Broker
from tests.lab.network import Namespace
from tests.lab.processes import wait_until
from tests.lab.product import read_events
from tests.nodes.chart import ROOT
from tests.nodes.images import BASE, here
from tests.nodes.podman import podman

pytestmark = pytest.mark.root

UNIT = ROOT / "agent/deploy/systemd/kafka-probe.service"
MACHINE = "localhost/machine"
GUIDE = (ROOT / "docs/guide/service.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
INSTALL, (CHECK, START), OPERATE, UPGRADE, REMOVE = (block.replace("sudo ", "").splitlines() for block in BLOCKS)
STATUS, JOURNAL, RELOAD, RESTART = OPERATE
PRODUCED = ("shop", "Produce")
TO_ATTACH = {Capability.BPF, Capability.PERFMON}
TO_NAME = {Capability.SYS_PTRACE, Capability.DAC_READ_SEARCH}


class Machine:
    """A machine that has booted."""

    def __init__(self, container: str) -> None:
        self._container = container

    def run(self, command: str) -> str:
        return podman("exec", self._container, "/bin/bash", "-c", command)

    def show(self, name: str) -> str:
        """Return a property of the service."""
        return self.run(f"systemctl show --property={name} --value kafka-probe").strip()

    def log(self) -> str:
        """Return the log of the service since its last start."""
        return self.run(
            "journalctl --output=cat _SYSTEMD_INVOCATION_ID=$(systemctl show -p InvocationID --value kafka-probe)"
        )

    def events(self) -> list[dict[str, Any]]:
        """Return the events since the service's last start, while they go into the journal."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def spooled(self) -> list[str]:
        """Return the files of events that wait in the service's directory."""
        return self.run("find /var/lib/kafka-probe/ -name '*.ndjson.gz'").splitlines()

    def wait_attached(self) -> None:
        wait_until(lambda: "programs attached" in self.log(), "the service to attach")


@pytest.fixture(scope="module")
def network() -> Iterator[Namespace]:
    network = Namespace()
    yield network
    network.close()


@pytest.fixture(scope="module")
def broker(network: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with network.inside(), Broker(tmp_path_factory.mktemp("broker"), port=9092) as broker:
        yield broker


@pytest.fixture(scope="module")
def machine(network: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Run a machine with the service as installed, except that its events go into the journal."""
    containerfile = tmp_path_factory.mktemp("machine") / "Containerfile"
    steps = [
        f"FROM {BASE}",
        "RUN apt-get update && apt-get install --yes --no-install-recommends dbus systemd",
        "WORKDIR /clone",
        "COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./",
        *(f"COPY {folder} {folder}" for folder in ("bpf", "agent", "pipeline")),
        *(f"RUN {command}" for command in INSTALL),
        'CMD ["/lib/systemd/systemd"]',
    ]
    containerfile.write_text("\n".join(steps) + "\n")
    podman("build", "--file", containerfile, "--tag", MACHINE, *here(), ROOT)
    # Not --privileged, and cgroups of its own: its systemd must not change the settings and mounts of this kernel.
    rights = ("--cap-add=ALL", "--cgroupns=private", "--security-opt=seccomp=unconfined")
    with network.inside():
        container = podman("run", "--detach", "--systemd=always", "--network=host", *rights, MACHINE).strip()
    try:
        machine = Machine(container)
        wait_until(lambda: "starting" not in machine.run("systemctl is-system-running || true"), "the machine to boot")
        machine.run("echo KAFKA_PROBE_SINK=stdout >>/etc/kafka-probe/kafka-probe.env")
        assert "kafka-1:9092" in machine.run(f"{CHECK} || test $? = 3")  # there are none
        machine.run("echo KAFKA_PROBE_BOOTSTRAP_SERVERS=other:9092 >>/etc/kafka-probe/kafka-probe.env")
        assert "other:9092" in machine.run(f"{CHECK} || test $? = 3")
        machine.run("sed -i /other:9092/d /etc/kafka-probe/kafka-probe.env")
        machine.run(START)
        machine.wait_attached()
        yield machine
    finally:
        podman("rm", "--force", "--time", "1", container)


def test_it_runs_as_nobody_with_four_capabilities_and_two_once_attached(machine: Machine) -> None:
    status = machine.run(f"cat /proc/{machine.show('MainPID')}/status")
    facts = dict(line.split(":\t", 1) for line in status.splitlines())
    assert "0" not in facts["Uid"].split()
    held = {name: capabilities(int(facts[name], 16)) for name in ("CapBnd", "CapPrm", "CapEff", "CapAmb")}
    assert held == {"CapBnd": TO_ATTACH | TO_NAME, "CapPrm": TO_NAME, "CapEff": TO_NAME, "CapAmb": set()}
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")


def test_its_memory_has_a_ceiling_a_quarter_above_the_agents_own_limit(machine: Machine) -> None:
    limit_bytes = Config.model_fields["memory_limit"].default
    assert int(machine.show("MemoryMax")) == limit_bytes * 5 // 4


def capabilities(mask: int) -> set[int]:
    return {number for number in range(64) if mask >> number & 1}


def test_its_variables_are_read_and_its_secrets_are_roots(machine: Machine) -> None:
    wait_until(lambda: bool(machine.events()), "the service to report")
    assert machine.run("stat --format=%a:%U /etc/kafka-probe/kafka-probe.env") == "600:root\n"


def test_it_tells_of_the_traffic_of_its_host(
    machine: Machine, network: Namespace, broker: Broker, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    what = ("--client-id", "shop", "--topics", "orders", "--records", "100", "--rate", "1000", "--report", report)
    client = (sys.executable, "-m", "tests.lab.kafka_python_client", "produce", "--bootstrap", broker.bootstrap)
    network.run(*client, *what)

    def records() -> dict[str, int]:
        produced = [e for e in machine.events() if e["kind"] == "flow" and (e["client"]["id"], e["api"]) == PRODUCED]
        topics = [(event["side"], topic) for event in produced for topic in event["topics"]]
        assert {topic["topic"] for _, topic in topics} <= {"orders"}
        return {side: sum(topic["records"] for at, topic in topics if at == side) for side, _ in topics}

    sent = json.loads(report.read_text())["orders"]["records"]
    wait_until(lambda: records() == {"client": sent, "server": sent}, "both ends to be reported")


def test_its_programs_are_compiled_before_its_start_and_kept_where_only_root_can_write(machine: Machine) -> None:
    names = machine.run("ls /var/cache/kafka-probe/").splitlines()
    assert [len(name) for name in names] == [64] * 2
    assert set(machine.run("stat --format %a:%U /var/cache/kafka-probe/ /var/cache/kafka-probe/*").split()) == {
        "755:root",
        "644:root",
    }
    about_cache = [line for line in machine.log().splitlines() if "The cache" in line]
    assert ["has the programs for ports 9092" in line for line in about_cache] == [True]


def test_it_cannot_write_but_where_its_spool_is(machine: Machine) -> None:
    assert machine.show("StateDirectory") == "kafka-probe"
    inside = f"nsenter --target {machine.show('MainPID')} --mount"
    for place in ("/etc", "/usr", "/opt/kafka-probe", "/sys/fs/cgroup", "/var/cache/kafka-probe"):
        assert machine.run(f"{inside} touch {place}/new 2>&1 || true").endswith("Read-only file system\n")
    machine.run(f"{inside} touch /var/lib/kafka-probe/new")
    machine.run("rm /var/lib/kafka-probe/new")  # the agent refuses a directory with files of others


def test_a_reload_reads_the_settings_again(machine: Machine) -> None:
    before = machine.show("MainPID")
    machine.run("echo 'requests = \"errors\"' >>/etc/kafka-probe/kafka-probe.toml")
    machine.run(RELOAD)
    wait_until(lambda: "Settings reloaded: requests changed" in machine.log(), "the service to read them")
    assert machine.show("MainPID") == before


def test_its_status_and_its_log_are_shown(machine: Machine) -> None:
    assert "active (running)" in machine.run(STATUS)
    assert "programs attached" in machine.run(JOURNAL)


def test_an_upgrade_repeats_lines_of_the_installation_and_starts_it_anew(machine: Machine) -> None:
    before = machine.show("MainPID")
    *repeated, reload_units, restart = UPGRADE
    assert set(repeated) <= set(INSTALL)
    assert restart == RESTART
    machine.run(reload_units)
    machine.run(restart)
    assert machine.show("MainPID") != before
    machine.wait_attached()


def test_it_is_started_again_when_it_is_killed(machine: Machine) -> None:
    before = machine.show("MainPID")
    machine.run(f"kill -KILL {before}")
    wait_until(lambda: machine.show("MainPID") not in ("0", before), "the service to be started again")
    machine.wait_attached()


def test_it_is_not_started_again_with_settings_that_it_refuses(machine: Machine) -> None:
    machine.run("echo KAFKA_PROBE_PORTS=kafka >>/etc/kafka-probe/kafka-probe.env; systemctl restart kafka-probe")
    wait_until(lambda: machine.show("ActiveState") == "failed", "the service to give up")
    assert machine.show("ExecMainStatus") == "2"
    assert "KAFKA_PROBE_PORTS: must be auto, or ports" in machine.log()
    machine.run("sed -i /KAFKA_PROBE_PORTS/d /etc/kafka-probe/kafka-probe.env; systemctl start kafka-probe")
    machine.wait_attached()


def test_what_it_sent_while_the_brokers_were_away_outlives_it_in_its_directory(
    machine: Machine, network: Namespace, broker: Broker
) -> None:
    machine.run(
        "echo KAFKA_PROBE_SINK=kafka >>/etc/kafka-probe/kafka-probe.env;"
        f"echo KAFKA_PROBE_BOOTSTRAP_SERVERS={broker.bootstrap} >>/etc/kafka-probe/kafka-probe.env;"
        "systemctl restart kafka-probe"
    )
    wait_until(lambda: bool(numbers_by_agent(broker, network)), "its events to come to the broker", every_s=1)
    with network.inside():
        broker.stop()
    wait_until(lambda: "do not accept events" in machine.log(), "the service to notice that the broker is away")
    machine.run("systemctl stop kafka-probe")
    assert machine.show("Result") == "success"
    left = machine.run("find /var/lib/kafka-probe/ -name '*.ndjson.gz' -exec zcat {} +").splitlines()
    assert left

    with network.inside():
        broker.start()
    machine.run("systemctl start kafka-probe")
    wait_until(lambda: len(numbers_by_agent(broker, network)) > 1, "the next one to send something", every_s=1)
    wait_until(lambda: not machine.spooled(), "what was left to be sent")
    found = numbers_by_agent(broker, network)
    assert [event for event in map(json.loads, left) if event["seq"] not in found[event["agent_id"]]] == []
    for numbers in found.values():
        assert sorted(numbers) == [*range(len(numbers))]


def numbers_by_agent(broker: Broker, network: Namespace) -> dict[str, list[int]]:
    """Return the numbers of the events in the topic, by agent."""
    numbers: dict[str, list[int]] = {}
    with network.inside():
        for event in read_events(broker.bootstrap):
            numbers.setdefault(event["agent_id"], []).append(event["seq"])
    return numbers


def test_stopped_it_sends_what_is_left_and_ends_well(machine: Machine) -> None:
    machine.run("systemctl stop kafka-probe")
    assert (machine.show("Result"), machine.show("ExecMainStatus")) == ("success", "0")
    assert "losses: none" in machine.log()


def test_nothing_is_left_of_what_is_removed(machine: Machine) -> None:
    for command in REMOVE:
        machine.run(command)
    # /clone has the clone that it was installed from.
    assert machine.run(r"find / -xdev \( -path /proc -o -path /clone \) -prune -o -name '*kafka-probe*' -print") == ""
