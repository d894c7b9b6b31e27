"""The images work: the agent under the chart's own security context, beside a container like a pod.

There is no kubelet here: Podman starts the containers by the rendered manifest (tests/nodes/podman.py). The node
is a network namespace; its pods have theirs, behind a bridge with NAT; and behind a second NAT is the broker's node.
"""

from __future__ import annotations

import json
import re
import socket
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from kafka_probe.privileges import Capability
from tests.lab.broker import Broker
from tests.lab.network import Namespace, Network, nat
from tests.lab.processes import LabError, wait_until
from tests.lab.product import Agent, read_events
from tests.nodes.chart import ROOT, Manifest, container, manifests, pod
from tests.nodes.images import built, here
from tests.nodes.podman import as_a_kubelet, logs, podman, pods_cgroup, running

pytestmark = [pytest.mark.root, pytest.mark.broker, pytest.mark.spark]

NODE, BROKERS_NODE = "node-1", "broker-1"
PORT, RECORDS = 9092, 200
JOB = "/opt/kafka-probe/lib/python3.11/site-packages/kafka_probe_pipeline/job.py"
# Of connections that an agent found in mid-frame when it started: those of the other agent and of the lab.
IN_MID_FRAME = {"resync", "frame_truncated", "request_unanswered", "response_unmatched"}
GUIDE = (ROOT / "docs/guide/kubernetes.md").read_text()
TOOLS = ("gcc", "cc", "clang", "make", "pip", "pip3", "git", "curl")


@pytest.fixture(scope="module")
def agent_image() -> str:
    return built("agent")


@pytest.fixture(scope="module")
def pipeline_image() -> str:
    return built("pipeline")


def as_charted(settings: dict[str, Any], directory: Path, **values: Any) -> tuple[list[str], Manifest]:
    """Return the flags that start the agent's container of a chart with these values, and its manifest."""
    documents = manifests({"settings": settings, **values}, directory)
    return as_a_kubelet(pod(documents), documents, directory, NODE), container(documents)


def shell(image: str, script: str, *flags: str) -> str:
    return podman("run", "--rm", "--network=none", "--entrypoint=/bin/bash", *flags, image, "-c", script)


@pytest.mark.parametrize("target", ["agent", "pipeline"])
def test_the_documented_command_builds_it(target: str) -> None:
    commands = set(re.findall(r"^podman build (.+) \.$", GUIDE + (ROOT / "README.md").read_text(), re.MULTILINE))
    (command,) = (command for command in commands if ("--target pipeline" in command) == (target == "pipeline"))
    *words, tagged = command.replace("--file ", f"--file {ROOT}/").split()
    podman("build", *words, tagged, *here(), ROOT)
    assert image_id(tagged) == image_id(built(target))


def image_id(name: str) -> str:
    return podman("image", "inspect", "--format", "{{.Id}}", name)


@pytest.mark.parametrize("target", ["agent", "pipeline"])
def test_there_is_nothing_to_build_with_and_nothing_that_everybody_may_write(target: str) -> None:
    image = built(target)
    assert shell(image, f"type -P {' '.join(TOOLS)} || true") == ""
    assert shell(image, "find / -xdev -perm -o+w ! -perm -1000 ! -type l", "--user=0") == ""


@pytest.mark.parametrize("target", ["agent", "pipeline"])
def test_it_is_as_small_as_documented(target: str) -> None:
    size = int(podman("image", "inspect", "--format", "{{.Size}}", built(target)))
    (documented,) = re.findall(rf"`{target}` has ([\d,]+) MB", GUIDE)
    assert size / 1e6 == pytest.approx(int(documented.replace(",", "")), rel=0.05)


def test_the_charts_rights_are_all_that_the_agent_needs(agent_image: str, tmp_path: Path) -> None:
    rights, _ = as_charted({"sink": "stdout"}, tmp_path)
    output = podman("run", "--rm", "--network=none", *rights, agent_image, "check")
    assert [line for line in output.splitlines() if not line.startswith("ok ")] == []
    status = shell(agent_image, "cat /proc/self/status; ! touch /opt/kafka-probe/new 2>/dev/null", *rights)
    (effective,) = re.findall(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    given = (Capability.BPF, Capability.PERFMON, Capability.SYS_PTRACE, Capability.DAC_READ_SEARCH)
    assert int(effective, 16) == sum(1 << capability for capability in given)


def test_it_has_the_official_client_of_kubernetes(agent_image: str) -> None:
    imported = "/opt/kafka-probe/bin/python -c 'from kubernetes import watch; print(watch.Watch.__name__)'"
    assert shell(agent_image, imported) == "Watch\n"


@pytest.mark.parametrize("capability", ["BPF", "PERFMON"])
def test_with_less_it_could_not_start(agent_image: str, tmp_path: Path, capability: str) -> None:
    rights, _ = as_charted({"sink": "stdout"}, tmp_path)
    rights.remove(f"--cap-add={capability}")
    with pytest.raises(LabError, match="not permitted to load BPF programs"):
        podman("run", "--rm", "--network=none", *rights, agent_image, "check")


@dataclass(frozen=True, slots=True)
class Scene:
    """Two nodes and the events of an agent on each about a client in a pod of the first."""

    network: Network
    bootstrap: str
    client: str
    pod_uid: str
    agents_log: str
    agents_status: str
    events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def scene(agent_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("nodes")
    with nat() as network, ExitStack() as stack:
        with network.broker.inside():
            broker = Broker(directory / "broker", host=network.broker.address, port=PORT)
            stack.enter_context(broker)
            to = ("--bootstrap-servers", broker.bootstrap, "--interval-s", "1")
            where = ("--node", BROKERS_NODE, "--netns", network.broker.path)
            brokers_agent = stack.enter_context(Agent(directory, *to, *where))
        settings = {"bootstrap_servers": [broker.bootstrap], "side": "client", "interval_s": 1}
        flags, charted = as_charted(settings, directory)
        with network.clients[0].inside():
            with running(agent_image, flags, *charted["args"]) as agent:
                wait_until(lambda: succeeds(agent, charted["readinessProbe"]), "the agent to be ready")
                assert succeeds(agent, charted["livenessProbe"])
                # Else Podman's bridge has the address of one of its ports, and loses it when that container goes.
                network.clients[0].run("ip", "link", "set", "podman0", "address", "02:00:00:00:00:01")
                client, pod_uid = a_pods_client(agent_image, broker.bootstrap, directory)
                agents_log, status = logs(agent), Path(f"/proc/{pid_of(agent)}/status").read_text()
            brokers_agent.stop()
        with network.broker.inside():
            events = read_events(broker.bootstrap)
        yield Scene(network, broker.bootstrap, client, pod_uid, agents_log, status, events)


def pid_of(container: str) -> int:
    """Return the id of a running container's first process, as this host numbers it."""
    return int(podman("inspect", "--format", "{{.State.Pid}}", container))


def succeeds(container: str, probe: Manifest) -> bool:
    """Return True if a probe of the chart succeeds in a running container."""
    try:
        podman("exec", container, *probe["exec"]["command"])
    except LabError:
        return False
    return True


def a_pods_client(image: str, bootstrap: str, directory: Path) -> tuple[str, str]:
    """Run a real producer in a container in a pod's cgroup. Return the ids of container and pod."""
    pod_uid = str(uuid.uuid4())
    report = directory / "report"
    report.mkdir()
    files = (f"--volume={ROOT / 'tests'}:/lab/tests:ro", f"--volume={report}:/report", "--env=PYTHONPATH=/lab")
    program = ("--entrypoint=/opt/kafka-probe/bin/python", image, "-m", "tests.lab.kafka_python_client", "produce")
    what = ("--bootstrap", bootstrap, "--client-id", "shop", "--topics", "orders", "--records", str(RECORDS))
    how = ("--rate", "50", "--report", "/report/report.json")
    with pods_cgroup(pod_uid) as cgroup:
        client = podman("create", f"--cgroup-parent={cgroup}", *files, *program, *what, *how).strip()
        try:
            podman("start", "--attach", client)
        finally:
            podman("rm", "--force", client)
    assert json.loads((report / "report.json").read_text())["orders"]["records"] == RECORDS
    return client, pod_uid


def test_the_client_is_known_by_its_container_on_its_node(scene: Scene) -> None:
    flows = [e for e in scene.events if e["kind"] == "flow" and e["node"] == NODE and e["client"]["id"] == "shop"]
    assert flows
    for flow in flows:
        workload = flow["workload"]
        assert (workload["container_id"], workload["runtime"]) == (scene.client, "podman")
        assert workload["pod_uid"] == scene.pod_uid
        assert workload["cgroup"] == f"/kubepods/burstable/pod{scene.pod_uid}/libpod-{scene.client}"
        assert flow["side"] == "client"
    records = sum(topic["records"] for flow in flows if flow["api"] == "Produce" for topic in flow["topics"])
    assert records == RECORDS


def test_the_broker_saw_the_address_of_the_gateway(scene: Scene) -> None:
    opened = [e for e in scene.events if e["kind"] == "open" and e["node"] == BROKERS_NODE and e["side"] == "server"]
    addresses = {event["peer"].rpartition(":")[0] for event in opened}
    assert addresses == {scene.network.gateway_address, scene.network.broker.address}


def test_nothing_was_lost_on_either_node(scene: Scene) -> None:
    last = {e["node"]: e["losses"] for e in scene.events if e["kind"] == "agent"}
    assert set(last) == {NODE, BROKERS_NODE}
    for losses in last.values():
        assert {reason for reason, count in losses.items() if count} <= IN_MID_FRAME


def test_all_that_it_lacks_is_the_right_to_enter_pods(scene: Scene) -> None:
    complaints = [line for line in scene.agents_log.splitlines() if " WARNING " in line or " ERROR " in line]
    assert len(complaints) == 1
    assert " network namespaces cannot be entered without CAP_SYS_ADMIN)" in complaints[0]


def test_once_attached_it_has_given_up_what_it_needed_for_that(scene: Scene) -> None:
    kept = 1 << Capability.SYS_PTRACE | 1 << Capability.DAC_READ_SEARCH
    found = dict(re.findall(r"^(Cap\w+):\s*([0-9a-f]+)$", scene.agents_status, re.MULTILINE))
    assert {name: int(found[name], 16) for name in ("CapPrm", "CapEff", "CapInh")} == {
        "CapPrm": kept, "CapEff": kept, "CapInh": 0,
    }  # fmt: skip


TALK = f"""
import socket, time
with socket.create_server(("127.0.0.1", {PORT})) as listener, socket.create_connection(listener.getsockname()):
    accepted = listener.accept()
    time.sleep(300)  # until the container is removed; not for ever, should nobody do that
"""


def test_with_the_right_to_enter_pods_it_lists_what_is_open_there(agent_image: str, tmp_path: Path) -> None:
    talk = ("--network=none", "--entrypoint=/opt/kafka-probe/bin/python", agent_image, "-c", TALK)
    flags, charted = as_charted({"sink": "stdout", "interval_s": 1}, tmp_path, listOlderConnections=True)
    pod = podman("run", "--detach", *talk).strip()
    try:
        with running(agent_image, flags, *charted["args"]) as agent:

            def listed() -> list[dict[str, Any]]:
                events = [json.loads(line) for line in logs(agent).splitlines() if line.startswith("{")]
                opened = [event for event in events if event["kind"] == "open" and event["found"] == "listed"]
                return [event for event in opened if event["workload"]["container_id"] == pod]

            wait_until(lambda: bool(listed()), "what is open in the pod to be listed")
            assert {event["workload"]["pid"] for event in listed()} == {pid_of(pod)}
            assert "CAP_SYS_ADMIN" not in logs(agent)
    finally:
        podman("rm", "--force", "--time", "1", pod)


def test_the_pipelines_image_names_the_pod_behind_the_brokers_connection(
    scene: Scene, pipeline_image: str, tmp_path: Path
) -> None:
    """The container starts with the arguments that Spark gives to the driver's pod."""
    tmp_path.chmod(0o777)
    properties = tmp_path / "spark.properties"
    properties.write_text("spark.master=local[2]\nspark.driver.memory=1g\nspark.sql.shuffle.partitions=2\n")
    driver = ("driver", "--properties-file", "/out/spark.properties", "--class", "org.apache.spark.deploy.PythonRunner")
    job = (f"local://{JOB}", "run", "--once", "--bootstrap-servers", scene.bootstrap, "--output", "/out/tables")
    flags = (f"--volume={tmp_path}:/out", "--env=SPARK_DRIVER_BIND_ADDRESS=127.0.0.1", "--cap-drop=ALL", "--rm")
    with scene.network.clients[0].inside():
        podman("run", *flags, pipeline_image, *driver, *job)
    opens = DeltaTable(str(tmp_path / "tables" / "opens")).to_pyarrow_table().to_pylist()
    clients = {one["flow_id"]: one for one in opens if one["side"] == "client"}
    found = [one for one in opens if one["side"] == "server" and one["client"]["id"] == "shop"]
    assert found
    for one in found:
        assert one["peer"].startswith(f"{scene.network.gateway_address}:")
        assert clients[one["flow_id"]]["workload"]["container_id"] == scene.client
        assert clients[one["flow_id"]]["workload"]["pod_uid"] == scene.pod_uid


def test_an_executors_pod_turns_to_its_driver(pipeline_image: str) -> None:
    """No scheduler for Kubernetes runs here: the executor's connection shows that it accepts the arguments."""
    node = Namespace()
    try:
        with node.inside():
            listener = socket.create_server(("127.0.0.1", 0))
            variables = {
                "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{listener.getsockname()[1]}",
                "SPARK_EXECUTOR_ID": "1",
                "SPARK_EXECUTOR_CORES": "1",
                "SPARK_EXECUTOR_MEMORY": "256m",
                "SPARK_APPLICATION_ID": "spark-1",
                "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
                "SPARK_EXECUTOR_POD_NAME": "executor-1",
                "SPARK_RESOURCE_PROFILE_ID": "0",
                "SPARK_JAVA_OPT_0": "-XX:TieredStopAtLevel=1",
            }
            flags = [
                "--network=host",
                "--cap-drop=ALL",
                *(f"--env={name}={value}" for name, value in variables.items()),
            ]
            container = podman("run", "--detach", *flags, pipeline_image, "executor").strip()
            try:
                with listener:
                    listener.settimeout(60)
                    listener.accept()[0].close()
            finally:
                podman("rm", "--force", "--time", "1", container)
    finally:
        node.close()
