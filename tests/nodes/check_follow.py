"""`follow` on the host shows the load of clients there at a broker in a container, with the container's name."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.broker import Broker
from tests.lab.following import FETCHED, documented, exchanges, following, load, wait_for_requests, without_numbers
from tests.lab.processes import LabError
from tests.lab.tcpdump import Capture
from tests.lab.topics import create_topics
from tests.lab.walker import walk
from tests.nodes.images import BASE, make_base
from tests.nodes.podman import STORE, command, podman

pytestmark = [pytest.mark.root, pytest.mark.broker]

NAME, NETWORK = "load-broker", "kafka-probe-load"
SUBNET, HOST, PORT = "10.57.77.0/24", "10.57.77.2", 9092
JARS = Path(__file__).parents[2] / "build" / "jars"
JAVA = "/usr/lib/jvm", "/etc/java-17-openjdk"
USUAL_STORE = Path("/var/lib/containers/storage")
# The agent reads the files of engines as the first process of the host sees them. In a sandbox that process may not be
# examined, so the agent's own stands in for it.
FIRST_PROCESS = ("unshare", "--mount", "sh", "-c", 'mount --bind /proc/$$ /proc/1 && exec "$@"', "sh")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Yield a broker in a container of Podman, whose state files are at their usual place."""
    make_base()
    if USUAL_STORE.is_symlink() and USUAL_STORE.readlink() == STORE / "root":
        USUAL_STORE.unlink()  # of a run that was killed
    if USUAL_STORE.exists():
        raise LabError(f"{USUAL_STORE} belongs to another Podman")
    directory = tmp_path / "broker"
    directory.mkdir()
    volumes = (f"--volume={path}:{path}:ro" for path in (JARS, *JAVA))
    java = f"--env=PATH={Path(shutil.which('java') or '').resolve().parent}:/usr/bin:/bin"
    flags = (java, "--name", NAME, "--network", NETWORK, "--ip", HOST, *volumes, f"--volume={directory}:{directory}")
    USUAL_STORE.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as after:
        USUAL_STORE.symlink_to(STORE / "root")
        after.callback(USUAL_STORE.unlink)
        after.callback(podman, "network", "rm", "--force", NETWORK)
        podman("network", "create", "--subnet", SUBNET, NETWORK)
        after.callback(podman, "rm", "--force", "--ignore", "--time", "1", NAME)
        podman("run", "--detach", *flags, BASE, "sleep", "600")
        within = [str(word) for word in command("exec", NAME)]
        yield after.enter_context(Broker(directory, host=HOST, port=PORT, within=within))


def test_the_load_is_shown_whole_at_either_end(broker: Broker, tmp_path: Path) -> None:
    create_topics(broker.bootstrap, ["load"], partitions=1)
    named = ("--container-names", "true")
    with (
        following(tmp_path / "client", PORT, "client") as client,
        following(tmp_path / "server", PORT, "server", *named, within=FIRST_PROCESS) as server,
    ):
        bridge = podman("network", "inspect", NETWORK, "--format", "{{.NetworkInterface}}").strip()
        with Capture(tmp_path / "bridge.pcap", PORT, HOST, bridge) as capture:
            load(broker.bootstrap)
            capture.stop()
        requests = walk(capture.file, PORT).requests.items()
        wire = Counter({(name, api, version): n for (api, version, name), n in requests if name and "load-" in name})
        for output in (client, server):
            wait_for_requests(output, wire.total())
    for output in (client, server):
        assert exchanges(output.read_text()) == (wire, wire.total())
    assert FETCHED.search(client.read_text()), client.read_text()
    assert without_numbers(documented(NAME)) - without_numbers(server.read_text()) == set()
