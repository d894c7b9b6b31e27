"""Runs a virtual machine for one job: boots a kernel in QEMU's emulation, without KVM, and ends with the job.

A job's status counts only if the guest wrote it with its results and sent the same through the debug port: a guest that
panicked, hung or was stopped has done neither.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.kernel.archive import Kernel
from tests.kernel.initramfs import initramfs
from tests.lab.processes import LabError, start, stop, tail

CPUS = 2  # one would hide races
_RESULTS_BYTES = 64 << 20
_DEBUG_PORT = 0xF4
# no_timer_check: on a busy host the emulated timer is late, which a kernel takes for a broken one, and panics at times.
_COMMAND_LINE = (
    "console=ttyS0 quiet panic=-1 no_timer_check nokaslr mitigations=off audit=0 apparmor=0 net.ifnames=0 "
    "random.trust_cpu=on"
)


@dataclass(frozen=True, slots=True)
class Job:
    """Files and folders by their place below the guest's /job, and a script of its shell that runs there.

    What the script leaves in /results comes back.
    """

    files: Mapping[str, Path]
    script: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a job, and its results by name."""

    status: int
    results: Mapping[str, bytes]


def run(
    kernel: Kernel, root: Path, job: Job, log: Path, *, timeout_s: float, tap: str | None = None, memory_mb: int = 1024
) -> Outcome:
    """Boot, run the job, return its outcome; `log` has the console, from the kernel's messages to the job's output.

    `tap` is a device of this network namespace, which the guest has as eth0.

    Raises:
        LabError: no emulator, or the guest did not end in order within the time; the text ends with the log's tail.
    """
    if not (emulator := shutil.which("qemu-system-x86_64")):
        raise LabError("qemu-system-x86_64 is missing: install qemu-system-x86")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        disks = [root, Path(scratch) / "job", Path(scratch) / "results"]
        _write_job(job, disks[1])
        with disks[2].open("wb") as results:
            results.truncate(_RESULTS_BYTES)
        first = Path(scratch) / "initramfs"
        first.write_bytes(initramfs(kernel))
        command = [emulator, *_arguments(kernel.vmlinux, first, disks, tap, memory_mb)]
        process = start(command, log=log)
        try:
            exit_status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise LabError(f"{kernel.release}: not done after {timeout_s:g} s:\n{tail(log)}") from None
        finally:
            stop(process)
        found = _read_results(disks[2])
    status = int(found.pop("status", b"-1"))
    if exit_status != status << 1 | 1:  # what isa-debug-exit makes of the byte that it gets
        raise LabError(f"{kernel.release}: the guest did not end in order (QEMU {exit_status}):\n{tail(log)}")
    return Outcome(status, found)


def _arguments(kernel: Path, first: Path, disks: list[Path], tap: str | None, memory_mb: int) -> list[str]:
    # One thread for all processors: with one for each, a processor may still run what another has patched half-way, and
    # the kernel dies of an int3 that is no longer there.
    machine = ["-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "max", "-smp", str(CPUS), "-m", str(memory_mb)]
    bare = ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"]
    port = ["-device", f"isa-debug-exit,iobase={_DEBUG_PORT:#x},iosize=1"]
    boot = ["-kernel", str(kernel), "-initrd", str(first), "-append", _COMMAND_LINE]
    drives = []
    for name, disk in zip("abc", disks, strict=True):
        options = "cache=unsafe" if name == "c" else "readonly=on"
        drives += ["-drive", f"file={disk},if=none,id={name},format=raw,{options}"]
        drives += ["-device", f"virtio-blk-pci,drive={name}"]
    network = []
    if tap:
        network = ["-netdev", f"tap,id=net,ifname={tap},script=no,downscript=no"]
        network += ["-device", "virtio-net-pci,netdev=net,romfile="]
    return [*machine, *bare, *port, *boot, *drives, *network]


def _write_job(job: Job, disk: Path) -> None:
    def own(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        return entry

    with tarfile.open(disk, "w") as archive:
        for name, path in job.files.items():
            archive.add(path.resolve(), name, filter=own)
        script = tarfile.TarInfo("job.sh")
        script.size = len(job.script.encode())
        archive.addfile(script, io.BytesIO(job.script.encode()))


def _read_results(disk: Path) -> dict[str, bytes]:
    try:
        with tarfile.open(disk) as archive:
            files = {entry.name.removeprefix("./"): archive.extractfile(entry) for entry in archive}
            return {name: file.read() for name, file in files.items() if file}
    except tarfile.ReadError:  # the guest never wrote there
        return {}
