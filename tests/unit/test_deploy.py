"""The deployment files, as far as they can be checked without a cluster or engine: tests/nodes runs them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.lab.http_server import serving

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "agent/deploy"
CHART = DEPLOY / "helm/kafka-probe"
UNIT = DEPLOY / "systemd/kafka-probe.service"
MANIFEST = (DEPLOY / "kubernetes/kafka-probe.yaml").read_text()
BUILDING = re.compile(r"gcc|g\+\+|make|-dev\b|build|pip|git|clang|venv")
EXPOSURE = 2.4  # of 10, by systemd-analyze; a service that asks for nothing has 9.6

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def stages() -> dict[str, str]:
    """Return the stages of the Containerfile, by name."""
    text = (DEPLOY / "Containerfile").read_text()
    return dict(re.findall(r"^FROM .+? AS (\S+)\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("target", ["agent", "pipeline"])
def test_a_final_stage_starts_anew_and_installs_nothing_to_build_with(target: str) -> None:
    assert f"FROM ${{BASE}} AS {target}\n" in (DEPLOY / "Containerfile").read_text()
    (packages,) = re.findall(r"apt-get install --yes --no-install-recommends (.*?) *(?:\\?\n)", stages()[target])
    assert [package for package in packages.split() if BUILDING.search(package)] == []


@pytest.mark.parametrize("name", ["build", "agent", "pipeline"])
def test_an_image_is_made_of_packages_with_hashes_at_the_versions_that_are_tested(name: str) -> None:
    _, *lines = (DEPLOY / f"requirements-{name}.txt").read_text().splitlines()
    tested = {line.partition(";")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    pinned = [re.fullmatch(r"(\S+==\S+) --hash=sha256:[0-9a-f]{64}", line) for line in lines]
    assert {found[1] if found else None for found in pinned} - tested <= {"setuptools==84.2.1"}


@pytest.mark.pinned
@pytest.mark.parametrize(
    ("name", "extras"), [("agent", ("conntrack", "kubernetes")), ("pipeline", ("pipeline", "alertmanager"))]
)
def test_the_packages_of_an_image_are_all_that_the_project_needs_there(name: str, extras: tuple[str, ...]) -> None:
    lines = (DEPLOY / f"requirements-{name}.txt").read_text().splitlines()[1:]
    assert {line.partition("==")[0] for line in lines} == needed("kafka-probe", *extras) - {"kafka-probe"}


@pytest.mark.pinned
@pytest.mark.parametrize("document", ["docs/guide/kubernetes.md", "docs/guide/disconnects.md"])
def test_the_packages_of_an_extra_that_a_guide_installs_are_pinned(document: str) -> None:
    command = re.compile(r"^\.venv/bin/pip install --constraint (\S+) --editable '\.\[(\w+)\]'$", re.MULTILINE)
    ((constraints, extra),) = command.findall((ROOT / document).read_text())
    pinned = {re.split("[=;]", line)[0] for line in (ROOT / constraints).read_text().splitlines()}
    assert f"extra == '{extra}'" in " ".join(requires("kafka-probe") or ()).replace('"', "'")
    assert needed("kafka-probe", extra) - {"kafka-probe"} - pinned == set()


def needed(name: str, *extras: str, python: str = "3.11") -> set[str]:
    """Return a package and all that it requires in an image, by the packages installed here."""
    found, wanted = {name}, [(name, extras)]
    while wanted:
        package, its_extras = wanted.pop()
        for line in requires(package) or ():
            requirement = Requirement(line)
            environments = ({"extra": extra, "python_version": python} for extra in (*its_extras, ""))
            if requirement.marker and not any(map(requirement.marker.evaluate, environments)):
                continue
            if (required := canonicalize_name(requirement.name)) not in found or requirement.extras:
                found.add(required)
                wanted.append((required, tuple(requirement.extras)))
    return found


def test_the_images_are_made_of_nothing_that_pip_finds_by_name_alone() -> None:
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", "")
    commands = re.findall(r"(?:^RUN|&&) +pip (.+?) *(?=&&|$)", text, re.MULTILINE)
    assert len(commands) == 6
    assert [one for one in commands if not re.search(r"--require-hashes|--no-index| \.$", one)] == []
    assert "PIP_NO_DEPS=1" in text
    assert all("--no-build-isolation" in one for one in commands if one.startswith("wheel"))


def test_everything_has_the_projects_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    labels = re.findall(r'image\.version="(.+)"', (DEPLOY / "Containerfile").read_text())
    assert [chart["version"], chart["appVersion"], *labels] == [VERSION] * 4


def container() -> dict[str, Any]:
    """Return the agent's container in the plain manifest."""
    documents = {document["kind"]: document for document in yaml.safe_load_all(MANIFEST)}
    found: dict[str, Any]
    (found,) = documents["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    return found


def test_the_manifest_gives_a_reason_for_each_capability() -> None:
    added = container()["securityContext"]["capabilities"]["add"]
    given = re.findall(r"^ +# [A-Z].+\.\n +- ([A-Z_]+)$", MANIFEST, re.MULTILINE)
    assert given == added == ["BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH"]


@contextmanager
def answering(status: int) -> Iterator[tuple[int, list[str]]]:
    """Run an HTTP server; yield its port, and the paths for which it is asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

    with serving(Handler) as port:
        yield port, asked


@pytest.mark.parametrize(("probe", "path"), [("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")])
def test_a_probe_asks_the_agent_how_it_is(probe: str, path: str) -> None:
    def succeeds(port: int) -> bool:
        command = [word.replace("/9465", f"/{port}") for word in container()[probe]["exec"]["command"]]
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0

    with answering(200) as (port, asked):
        assert succeeds(port)
        assert asked == [path]
    assert not succeeds(port)
    with answering(503) as (port, _):
        assert not succeeds(port)


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    # It looks whether the program is there, which is installed nowhere here.
    unit.write_text(UNIT.read_text().replace("/opt/kafka-probe/bin/kafka-probe", "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")


def test_the_unit_gives_the_service_little_beyond_what_it_needs() -> None:
    threshold = f"--threshold={EXPOSURE * 10:.0f}"
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", threshold, UNIT], capture_output=True, text=True
    )
    assert judged.returncode == 0, judged.stdout


def test_the_units_example_of_variables_holds_no_value_in_force() -> None:
    lines = (DEPLOY / "systemd/kafka-probe.env").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == []
    assert any(line.startswith("#KAFKA_PROBE_SASL_PLAIN_PASSWORD=") for line in lines)


def test_the_start_of_a_spark_pod_passes_shellcheck() -> None:
    checked = subprocess.run(["shellcheck", DEPLOY / "spark.sh"], capture_output=True, text=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
