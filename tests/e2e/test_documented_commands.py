"""Every documented command is run: here, beside a real broker with a client, or by the test named below.

Commands are the lines of `sh` blocks in README.md, SECURITY.md and docs/, and the answers in README's table.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.builders.event_schema import assert_valid
from tests.lab.broker import Broker
from tests.lab.processes import wait_until
from tests.lab.product import read_events

pytestmark = [pytest.mark.root, pytest.mark.broker]

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
HOST = (ROOT / "docs/guide/host.md").read_text()


def _commands(text: str) -> Iterator[str]:
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from (line for line in block.replace("\\\n", "").splitlines() if line and not line.startswith("#"))
    yield from re.findall(r"^\| [^|]+[?:] \| `([^`]+)` \|$", text, re.MULTILINE)


BY_DOCUMENT = {str(path.relative_to(ROOT)): [*_commands(path.read_text())] for path in DOCUMENTS}
COMMANDS = list(dict.fromkeys(chain(*BY_DOCUMENT.values())))

# What takes minutes, needs an agent at work, or is the caller of this very test, by the start of the command: the file
# that runs the same, and how. READ: it takes the command from the document. Else: its words that run the command.
READ = "READ"
ELSEWHERE = {
    "make demo KEEP=1": ("tests/e2e/check_demo.py", '"make", "demo", "KEEP=1"'),
    "make demo BOOTSTRAP=": ("tests/e2e/check_demo.py", '"make", "demo", f"BOOTSTRAP='),
    "make demo": ("tests/e2e/check_demo.py", '"make", "demo"'),
    "make test": (".ci/run", "make test"),
    "make setup": ("tests/unit/test_setup.py", '"make", "-s", "setup-tests"'),
    "make soak": ("tests/nodes/check_soak.py", "endure(MINUTES"),
    ".venv/bin/kafka-probe inspect": ("tests/unit/console/test_inspect.py", READ),
    **{
        f".venv/bin/kafka-probe {name} --tables": ("tests/unit/console/test_answers.py", READ)
        for name in ("agents", "disconnects", "storms")
    },
    **{
        f".venv/bin/kafka-probe {name} --tables": (f"tests/unit/console/test_{name}.py", READ)
        for name in (
            *("admin", "changes", "clients", "connections", "groups", "idle", "map", "producers", "rebalances"),
            *("upgrade", "who", "why"),
        )
    },
    "eval": ("tests/unit/console/test_completion.py", READ),
    ".venv/bin/kafka-probe unused": ("tests/e2e/test_unused.py", READ),
    ".venv/bin/kafka-probe topic": ("tests/unit/console/test_topics.py", READ),
    ".venv/bin/kafka-probe-pipeline": ("tests/pipeline/test_job.py", READ),
    ".venv/bin/pip": ("tests/unit/test_deploy.py", READ),
    ". .venv/bin/activate": ("tests/lab/spark.py", "ACTIVE = {"),
    "spark-submit --packages": ("tests/pipeline/check_job.py", '"spark-submit"'),
    "spark-submit --master spark:": ("tests/nodes/check_cluster.py", 'documented("spark-submit --master spark:")'),
    "spark-submit --master k8s:": (
        "tests/nodes/check_spark_on_kubernetes.py",
        'documented("spark-submit --master k8s:")',
    ),
    "kubectl apply": ("tests/unit/test_spark_application.py", "agent/deploy/kubernetes/spark-application.yaml"),
    "curl": ("tests/e2e/test_server.py", READ),
    # No registry and no cluster can be had: the images are built and not pushed, what Helm would send to a cluster is
    # rendered, and that is compared with the arguments of kubectl.
    "podman": ("tests/nodes/check_image.py", READ),
    "helm": ("tests/nodes/check_chart.py", READ),
    "kubectl": ("tests/nodes/check_chart.py", READ),
    # As sysctl does, the test writes the kernel's switch.
    "sudo sysctl": ("tests/unit/capture/test_loader.py", 'Path("/proc/sys/kernel/bpf_stats_enabled")'),
    # In a machine of their own, a container with systemd.
    "sudo apt-get": ("tests/nodes/check_service.py", READ),
    "sudo python3": ("tests/nodes/check_service.py", READ),
    "sudo /opt": ("tests/nodes/check_service.py", READ),
    "sudo install": ("tests/nodes/check_service.py", READ),
    "sudo systemctl": ("tests/nodes/check_service.py", READ),
    "sudo systemd-run": ("tests/nodes/check_service.py", READ),
    "sudo journalctl": ("tests/nodes/check_service.py", READ),
    "sudo rm": ("tests/nodes/check_service.py", READ),
}
STARTS = {command: next(filter(command.startswith, ELSEWHERE), None) for command in COMMANDS}
AGENT = [command for command, start in STARTS.items() if start is None]
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Yield a broker with a client at work."""
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        over = threading.Event()
        client = threading.Thread(target=_produce, args=(running.bootstrap, over))
        client.start()
        try:
            yield running
        finally:
            over.set()
            client.join()


def _produce(bootstrap: str, over: threading.Event) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, client_id="documents")
    while not over.wait(0.05):
        producer.send("orders", b"one").get(timeout=PATIENCE_S)
    producer.close()


@pytest.mark.parametrize("start", ELSEWHERE)
def test_what_runs_elsewhere_is_documented_and_runs_there(start: str) -> None:
    commands = [command for command, its_start in STARTS.items() if its_start == start]
    assert commands
    file, words = ELSEWHERE[start]
    text = (ROOT / file).read_text()
    if words == READ:
        read = set(chain(*(its for document, its in BY_DOCUMENT.items() if f'"{document}"' in text)))
        assert [command for command in commands if command not in read] == []
    else:
        assert words in text


@pytest.mark.parametrize("target", sorted({start.split()[1] for start in ELSEWHERE if start.startswith("make ")}))
def test_make_has_the_target(target: str) -> None:
    subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("command", AGENT)
def test_the_command_works_and_ends_well(command: str, broker: Broker, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    here = {
        "/etc/kafka-probe.toml": str(settings_file(broker, tmp_path)),
        "/var/lib/kafka-probe": str(tmp_path / "spool"),
        "billing-live.pcapng": str(tmp_path / "billing-live.pcapng"),
        "kafka-1:9092": broker.bootstrap,
    }
    command = re.sub(r"^(sudo )?\.venv/bin/", f"{Path(sys.executable).parent}/", command)
    for documented, used in here.items():
        command = command.replace(documented, used)
    variables = {
        "KAFKA_PROBE_PORTS": str(broker.port),
        "KAFKA_PROBE_READY_FILE": str(ready),
        "KAFKA_PROBE_CACHE_DIR": os.environ["LAB_CACHE_DIR"],
        "PATH": os.environ["PATH"],
    }
    sent_before = len(read_events(broker.bootstrap))
    piped = "|" in command
    with subprocess.Popen(
        ["bash", "-c", f"set -o pipefail; {command}" if piped else f"exec {command}"],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_until(lambda: ready.exists() or process.poll() is not None, command, timeout_s=PATIENCE_S)
            if not piped:
                process.send_signal(signal.SIGINT)
            output, log = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0, log
    if " run " in command and not piped:
        assert len(read_events(broker.bootstrap)) > sent_before, log
    else:
        assert output or "losses: " in log
    for line in output.splitlines():
        if line.startswith("{"):
            assert_valid(json.loads(line))


def settings_file(broker: Broker, directory: Path) -> Path:
    """Write the documented file for this broker, which has another name and no users; return its path."""
    block = re.search(r"^```toml\n(.*?)^```", HOST, re.MULTILINE | re.DOTALL)
    assert block
    text = re.sub(r"kafka-[12]:\d+", broker.bootstrap, block[1])
    file = directory / "kafka-probe.toml"
    file.write_text(re.sub(r"^(security|sasl)_.*\n", "", text, flags=re.MULTILINE))
    return file
