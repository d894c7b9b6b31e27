"""The repository itself: what is shipped, what is pinned, and what stays out."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kafka_probe_pipeline.spark_session import PACKAGES

ROOT = Path(__file__).parents[2]
# In pieces, so that this file does not hold what it looks for.
REGISTRY_HOSTS = [
    ".".join(names) for names in (("pypi", "org"), ("maven", "org"), ("maven", "apache", "org"), ("debian", "org"))
]


def run(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [Requirement(line) for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"==[^,*]+", str(pin.specifier)) and not pin.url for pin in pinned)
    return {pin.name: str(pin.specifier)[2:] for pin in pinned if not pin.marker or pin.marker.evaluate()}


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    return [path for name in run("git", "ls-files", "-z").split("\0")[:-1] if (path := ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    return zipfile.ZipFile(next(folder.glob("kafka_probe-*.whl")))


def test_every_make_target_is_explained_by_make_help() -> None:
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    explained = re.findall(r"^  make ([a-z-]+) +\S.*$", run("make", "--no-print-directory", "help"), re.MULTILINE)
    assert phony
    assert explained == phony[1].split()


def test_the_wheel_ships_every_c_source_beside_the_agent(wheel: zipfile.ZipFile, tracked: list[Path]) -> None:
    sources = {path.relative_to(ROOT).as_posix() for path in tracked if path.is_relative_to(ROOT / "bpf")}
    assert "bpf/tracepoint.c" in sources
    assert {f"kafka_probe/{source}" for source in sources} <= set(wheel.namelist())


def test_the_wheel_ships_both_packages_with_types_commands_and_licences(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {"kafka_probe/py.typed", "kafka_probe_pipeline/py.typed"} <= names
    assert {name.partition("/licenses/")[2] for name in names if "/licenses/" in name} == {
        "LICENSE",
        "NOTICE",
        "bpf/LICENSE",
        "bpf/LICENSE.BSD-2-Clause",
        "bpf/LICENSE.GPL-2.0-only",
    }
    commands = wheel.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert "kafka-probe = kafka_probe.__main__:main" in commands
    assert "kafka-probe-pipeline = kafka_probe_pipeline.cli:main" in commands


def test_nothing_but_the_packages_gets_into_the_wheel(wheel: zipfile.ZipFile) -> None:
    top = {name.partition("/")[0] for name in wheel.namelist()}
    packages = {"kafka_probe", "kafka_probe_pipeline", "kafka_probe_console"}
    assert {name for name in top if not name.endswith(".dist-info")} == packages


@pytest.mark.pinned
def test_every_package_that_setup_installs_is_pinned_and_installed_as_pinned() -> None:
    wanted, seen = [Requirement("kafka-probe[dev]")], set[str]()
    installed: dict[str, str] = {}
    while wanted:
        requirement = wanted.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        found = distribution(requirement.name)
        installed[canonicalize_name(requirement.name)] = found.version
        extras = {"", *requirement.extras}
        inner = map(Requirement, found.requires or [])
        wanted += [r for r in inner if not r.marker or any(r.marker.evaluate({"extra": extra}) for extra in extras)]
    del installed["kafka-probe"]
    assert installed.items() <= pins().items()


def test_sparks_connector_has_the_version_of_pyspark() -> None:
    version = pins()["pyspark"]
    revisions = re.findall(
        r'org="org.apache.spark" name="[^"]+" rev="([^"]+)"', (ROOT / "scripts/jars/spark.xml").read_text()
    )
    assert set(revisions) == {version}
    assert f"build/jars/spark-{version}\n" in (ROOT / "scripts/setup.sh").read_text()


@pytest.mark.pinned
def test_the_guide_and_the_jars_have_the_versions_of_delta_lake_and_spark_that_the_job_names() -> None:
    assert set(re.findall(r"--packages (\S+)", (ROOT / "docs/guide/pipeline.md").read_text())) == {PACKAGES}
    _, delta = PACKAGES.split(",")
    revisions = re.findall(r'org="io.delta" name="[^"]+" rev="([^"]+)"', (ROOT / "scripts/jars/spark.xml").read_text())
    assert set(revisions) == {delta.rpartition(":")[2]}


def test_every_c_source_names_its_licence(tracked: list[Path]) -> None:
    sources = [path for path in tracked if path.parent == ROOT / "bpf" and path.suffix in {".c", ".h"}]
    assert sources
    for source in sources:
        assert source.read_text().startswith("// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause\n"), source


def test_no_tracked_file_names_a_package_registry(tracked: list[Path]) -> None:
    found = [(path, host) for path in tracked for host in REGISTRY_HOSTS if host.encode() in path.read_bytes()]
    assert found == []


def test_no_binary_is_tracked(tracked: list[Path]) -> None:
    pictures = {".png", ".svg"}
    assert [path for path in tracked if path.suffix not in pictures and b"\0" in path.read_bytes()] == []


def type_names(path: Path) -> Iterator[str]:
    """Yield the names of a module's classes and type aliases."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            yield from (name for name in names if name.lstrip("_")[:1].isupper() and not name.isupper())


def test_no_name_of_a_class_or_type_alias_occurs_twice_in_the_distribution(tracked: list[Path]) -> None:
    pipeline = ROOT / "pipeline"
    packages = ROOT / "agent" / "kafka_probe", pipeline / "kafka_probe_pipeline", pipeline / "kafka_probe_console"
    modules = [path for path in tracked if path.suffix == ".py" and set(packages) & set(path.parents)]
    names = Counter(name.lstrip("_") for path in modules for name in type_names(path))
    assert [name for name, count in names.items() if count > 1] == []


SHARED = ("builders", "lab", "programs")  # each imports from those before it, all other folders from all of them


def imported(path: Path) -> Iterator[Path]:
    """Yield the modules below tests/ that a module imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        found = (ROOT / name.replace(".", "/") for name in names if name.startswith("tests."))
        yield from (path for name in found for path in (name.with_suffix(".py"), name / "__init__.py") if path.exists())


def may_import(importer: Path, module: Path) -> bool:
    """Return False for tests, and for modules of another folder that is not there to be shared."""
    if module.name.startswith(("test_", "check_")):
        return False
    own, other = (path.relative_to(ROOT / "tests").parts[0] for path in (importer, module))
    shared = SHARED[: SHARED.index(own) + 1] if own in SHARED else SHARED
    return other in shared or importer.parent == module.parent


def test_tests_import_only_from_their_folder_and_from_what_folders_share(tracked: list[Path]) -> None:
    modules = [path for path in tracked if path.is_relative_to(ROOT / "tests") and path.suffix == ".py"]
    imports = [(path, each) for path in modules for each in imported(path)]
    assert imports
    assert [(path, each) for path, each in imports if not may_import(path, each)] == []


@pytest.mark.parametrize(
    ("importer", "module"),
    [
        ("e2e/check_counts.py", "e2e/test_server.py"),
        ("e2e/check_counts.py", "golden/io_uring.py"),
        ("builders/wire.py", "lab/http.py"),
        ("lab/http.py", "programs/soak/accounts.py"),
    ],
)
def test_an_import_of_a_test_or_of_what_is_not_shared_is_noticed(importer: str, module: str) -> None:
    assert not may_import(ROOT / "tests" / importer, ROOT / "tests" / module)
