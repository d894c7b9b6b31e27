"""The lab of real machines, as far as it can be checked without a hypervisor."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.java import KAFKA_VERSION

VAGRANT = Path(__file__).parents[2] / "vagrant"
SCRIPTS = sorted((VAGRANT / "scripts").glob("*.sh"))
VAGRANTFILE = (VAGRANT / "Vagrantfile").read_text()
README = (VAGRANT / "README.md").read_text()
COMMANDS = re.findall(r"^((?:[A-Z_]+=\S+ )*vagrant .*)$", README, re.MULTILINE)
SSH = [command for command in COMMANDS if " ssh " in command]
# No machine can start or end here: Vagrant checks whether it would know what to do.
VALIDATIONS = sorted({re.sub(r"(up|destroy --force)$", "validate", c) for c in COMMANDS if c not in SSH})
Vagrant = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def vagrant(tmp_path_factory: pytest.TempPathFactory) -> Vagrant:
    """Run a command line in `vagrant/` that leaves no trace and does not use the internet."""
    directory = tmp_path_factory.mktemp("vagrant")
    directories = {"VAGRANT_HOME": str(directory / "home"), "VAGRANT_DOTFILE_PATH": str(directory / "dotfile")}
    settings = {"VAGRANT_CHECKPOINT_DISABLE": "1", "VAGRANT_DEFAULT_PROVIDER": "libvirt"}

    def run(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **directories, **settings, **variables}
        shell = ["bash", "-c", command]
        return subprocess.run(shell, cwd=VAGRANT, env=environment, capture_output=True, text=True, timeout=60)

    return run


def machines(vagrant: Vagrant, **variables: str) -> list[str]:
    status = vagrant("vagrant status --machine-readable", **variables)
    assert status.returncode == 0, status.stdout + status.stderr
    return re.findall(r"^\d+,([^,]+),state,not_created$", status.stdout, re.MULTILINE)


@pytest.fixture(scope="module")
def lab(vagrant: Vagrant) -> list[str]:
    """Return the machines of the lab without overrides."""
    return machines(vagrant)


@pytest.mark.parametrize("command", VALIDATIONS)
def test_vagrant_accepts_it_with_each_choice_that_the_readme_shows(command: str, vagrant: Vagrant) -> None:
    assert set(re.findall(r"(\w+)=", command)) <= set(re.findall(r'ENV\.fetch\("(\w+)"', VAGRANTFILE))
    result = vagrant(command)
    assert (result.returncode, result.stdout) == (0, "Vagrantfile validated successfully.\n"), result.stderr


def test_vagrant_refuses_a_count_that_is_none(vagrant: Vagrant) -> None:
    result = vagrant("vagrant validate", LAB_CLIENTS="many")
    assert result.returncode == 1
    assert 'invalid value for Integer(): "many"' in result.stderr


def test_the_environment_says_how_many_machines_there_are(vagrant: Vagrant, lab: list[str]) -> None:
    assert lab == ["broker-1", "gateway", "client-1", "client-2"]
    more = machines(vagrant, LAB_BROKERS="3", LAB_CLIENTS="4")
    assert more == [*(f"broker-{n}" for n in (1, 2, 3)), "gateway", *(f"client-{n}" for n in (1, 2, 3, 4))]


def test_the_versions_are_those_that_everything_else_is_tested_with() -> None:
    pins = dict(re.findall(r"^([\w-]+)==([^;\s]+)", (VAGRANT.parent / "constraints.txt").read_text(), re.MULTILINE))
    versions = dict(re.findall(r'"LAB_(\w+)_VERSION", "([\d.]+)"', VAGRANTFILE))
    pinned = {"KAFKA_PYTHON": pins["kafka-python"], "CONFLUENT_KAFKA": pins["confluent-kafka"]}
    assert versions == {"KAFKA": KAFKA_VERSION, **pinned}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_sound(script: Path) -> None:
    check = subprocess.run(["shellcheck", script], capture_output=True, text=True)
    assert check.returncode == 0, check.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_vagrantfile_says_all_that_a_script_requires(script: Path) -> None:
    required = set(re.findall(r"\$\{(\w+):\?\}", script.read_text()))
    assert required <= set(re.findall(r"\b([A-Z_]+)=", VAGRANTFILE))


def test_what_to_do_next_is_in_the_readme_too() -> None:
    known = {"#{SCRIPTS}": "/kafka-probe/vagrant/scripts", "#{BOOTSTRAP}": "10.57.2.11:9092"}
    commands = re.findall(r"^ +(vagrant ssh \S+ -c '[^']+')", VAGRANTFILE, re.MULTILINE)
    assert commands
    for command in commands:
        for name, value in known.items():
            command = command.replace(name, value)
        assert command in COMMANDS


@pytest.mark.parametrize("command", SSH)
def test_a_command_for_a_machine_names_a_machine_and_files_that_are_there(command: str, lab: list[str]) -> None:
    target = re.fullmatch(r"vagrant ssh (\S+) -c '[^']+'", command)
    assert target
    assert target[1] in lab
    for file in re.findall(r"/kafka-probe/(\S+)", command):
        assert (VAGRANT.parent / file).is_file()
