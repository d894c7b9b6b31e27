"""The host's requirements: each missing one is found, named with its remedy, and keeps `run` from starting."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from kafka_probe import check
from kafka_probe.check import CAPTURE, Finding, Host, findings, require_capture
from kafka_probe.config import load
from kafka_probe.errors import StartError
from kafka_probe.privileges import Capability
from tests.lab.processes import free_port

ROOT = Path(__file__).parents[2]

BTF = "sys/kernel/btf/vmlinux"
STATUS = "proc/self/status"


def capabilities(*bits: int) -> str:
    return f"Name:\tpython3\nCapEff:\t{sum(1 << bit for bit in bits):016x}\n"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host that meets all requirements."""
    files = {
        BTF: "...btf_trace_sock_recv_length...btf_trace_sock_send_length...",
        STATUS: capabilities(Capability.SYS_ADMIN),
        "sys/kernel/security/lockdown": "none [integrity] confidentiality\n",
        "proc/mounts": "tmpfs / tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        "python/bcc/__init__.py": "raise AssertionError('imported')",
        "python/bcc/libbcc.py": "",
        "python/bcc/version.py": "__version__ = '0.26.0'\n",
    }
    for path, text in files.items():
        write(tmp_path, path, text)
    return Host(tmp_path, "Linux", "x86_64", "6.12.1-amd64", (str(tmp_path / "python"),))


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def found(host: Host, name: str) -> Finding:
    return next(finding for look in CAPTURE if (finding := look(host)).name == name)


def test_a_host_with_everything_can_capture(host: Host) -> None:
    assert [(finding.name, finding.ok) for look in CAPTURE for finding in (look(host),)] == [
        ("system", True),
        ("btf", True),
        ("privileges", True),
        ("lockdown", True),
        ("bpfcc", True),
    ]
    assert found(host, "bpfcc").detail == "0.26.0"
    require_capture(host)


def refused(host: Host, name: str, *words: str) -> None:
    """Assert that `check` and `run` report the same missing requirement, in one sentence with these words."""
    finding = found(host, name)
    assert not finding.ok
    with pytest.raises(StartError) as error:
        require_capture(host)
    assert error.value.exit_code == 3
    sentence = str(error.value)
    assert "\n" not in sentence
    assert sentence.startswith(f"Cannot capture, {name}: ")
    assert finding.remedy in sentence
    for word in words:
        assert word in sentence


def test_another_architecture_is_refused(host: Host) -> None:
    refused(replace(host, machine="aarch64"), "system", "aarch64", "x86_64")


def test_a_kernel_without_type_information_is_refused(host: Host) -> None:
    (host.root / BTF).unlink()
    refused(host, "btf", "CONFIG_DEBUG_INFO_BTF")


def test_missing_rights_are_refused_with_the_command(host: Host) -> None:
    write(host.root, STATUS, capabilities(Capability.BPF))
    refused(host, "privileges", "sudo kafka-probe")


def test_rights_to_load_and_to_trace_are_enough_without_being_root(host: Host) -> None:
    write(host.root, STATUS, capabilities(Capability.BPF, Capability.PERFMON))
    require_capture(host)


def test_lockdown_for_confidentiality_is_refused(host: Host) -> None:
    write(host.root, "sys/kernel/security/lockdown", "none integrity [confidentiality]\n")
    refused(host, "lockdown", "lockdown=integrity")


def test_a_host_whose_lockdown_mode_cannot_be_read_may_try(host: Host) -> None:
    (host.root / "sys/kernel/security/lockdown").unlink()
    assert found(host, "lockdown").ok


def test_a_missing_bcc_is_refused_with_the_packages_of_the_distributions(host: Host, tmp_path: Path) -> None:
    refused(replace(host, python_path=(str(tmp_path / "none"),)), "bpfcc", "python3-bpfcc", "python3-bcc")


def test_the_other_project_called_bcc_is_not_taken_for_it(host: Host) -> None:
    (host.root / "python/bcc/libbcc.py").unlink()
    refused(host, "bpfcc", "python3-bpfcc")


@pytest.mark.parametrize(
    ("mounts", "mode"),
    [
        ("a /sys/fs/cgroup/cpu cgroup rw 0 0\n", "v1"),
        ("a /sys/fs/cgroup cgroup2 rw 0 0\n", "v2"),
        ("a /sys/fs/cgroup/cpu cgroup rw 0 0\na /sys/fs/cgroup/unified cgroup2 rw 0 0\n", "hybrid"),
    ],
)
def test_the_cgroup_hierarchies_are_named(host: Host, mounts: str, mode: str) -> None:
    write(host.root, "proc/mounts", mounts)
    assert check.cgroups(host) == Finding("cgroups", True, mode, check.cgroups(host).remedy)


def test_no_cgroup_hierarchy_is_a_finding_but_no_reason_not_to_start(host: Host) -> None:
    write(host.root, "proc/mounts", "")
    assert not check.cgroups(host).ok
    require_capture(host)


def test_every_finding_that_is_not_ok_has_a_remedy(tmp_path: Path) -> None:
    empty = Host(tmp_path, "Plan9", "pdp11", "1.0", (str(tmp_path),))
    failed = [finding for finding in findings(load({}), empty) if not finding.ok]
    assert len(failed) >= len(CAPTURE) - 1
    assert all(finding.remedy for finding in failed)


def test_the_packages_of_this_environment_are_complete() -> None:
    assert check.packages().ok
    found = {package.partition(" ")[0] for package in check.packages().detail.split(", ")}
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert found == {re.split("[<>=]", each)[0] for each in required}


def test_brokers_that_do_not_answer_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_probe.sinks.kafka.CONNECT_TIMEOUT_MS", 300)
    servers = f"127.0.0.1:{free_port()}"
    finding = check.brokers(load({"bootstrap_servers": servers}))
    assert not finding.ok
    assert finding.detail.startswith(f"{servers}: ")
    assert "ECONNREFUSED" in finding.detail


def test_brokers_are_not_asked_when_none_are_named() -> None:
    assert check.brokers(load({})).ok
