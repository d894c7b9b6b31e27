"""Fetches kernels from Debian's archive, unpacked for a boot and kept under build/kernels.

Package names are resolved when they are fetched, as older ones vanish from mirrors; the mirror is the one that apt has.
Apt works on a root of its own: nothing is installed, and what the machine knows of packages stays as it is.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from tests.kernel.images import module_order, section, unpacked
from tests.lab.processes import LabError

CACHE = Path(__file__).parents[2] / "build" / "kernels"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# All that stands between a machine of QEMU's and its root disk; what is built in or unknown to a kernel is passed over.
BOOT_MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "virtio_rng", "crc32c_generic", "ext4", "overlay")

# A series by its name: the suites that have it. The newest is whatever kernel of the suite is newest.
SUITES = {
    "5.10": ("bullseye", "bullseye-security"),
    "6.1": ("bookworm", "bookworm-security"),
    "6.12": ("trixie", "trixie-security"),
    "newest": ("sid",),
}
_IMAGE = re.compile(r"linux-image-(\d[\d.]*(?:-\d+|\+deb\d+(?:\.\d+)?)-amd64)")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel ready to boot. modules: those of BOOT_MODULES and what they need, in load order."""

    series: str
    release: str
    package_version: str
    wanted: tuple[str, ...]
    modules: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return CACHE / self.series

    @property
    def vmlinux(self) -> Path:
        return self.folder / "vmlinux"

    @property
    def btf(self) -> Path:
        """Return the kernel's type information, as in /sys/kernel/btf/vmlinux."""
        file = self.folder / "btf"
        if not file.exists():
            file.write_bytes(section(self.vmlinux.read_bytes(), b".BTF"))
        return file

    @property
    def busybox(self) -> Path:
        return self.folder / "busybox"

    def knows(self, name: bytes) -> bool:
        """Return True if a function or type is in the kernel's type information."""
        return b"\0" + name + b"\0" in self.vmlinux.read_bytes()

    @classmethod
    def cached(cls, series: str) -> Self | None:
        """Return the kernel that was fetched before, if it has all files that a boot needs."""
        try:
            facts = json.loads((CACHE / series / "kernel.json").read_text())
        except FileNotFoundError:
            return None
        kernel = cls(**{**facts, **{name: tuple(facts[name]) for name in ("wanted", "modules")}})
        return kernel if kernel.wanted == BOOT_MODULES else None


def kernel(series: str) -> Kernel:
    """Return a kernel of the series, fetched if it is not there yet.

    Raises:
        LabError: apt cannot get it; the text ends with apt's output.
    """
    return Kernel.cached(series) or _fetch(series)


def _fetch(series: str) -> Kernel:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        apt = _Apt(Path(scratch), SUITES[series])
        release = max(apt.releases(series), key=_version, default=None)
        if release is None:
            raise LabError(f"no package linux-image-* of kernel {series} in {', '.join(SUITES[series])}")
        packages = [f"linux-image-{release}"]
        if apt.has(f"linux-binary-{release}"):  # since 7.x the image package is empty
            packages = [f"linux-binary-{release}", f"linux-modules-{release}"]
        tree = apt.unpack(*packages, "busybox-static")
        folder = Path(scratch) / "ready"
        folder.mkdir()
        (image,) = {path.resolve() for path in tree.rglob("vmlinuz*") if path.is_file()}
        (folder / "vmlinux").write_bytes(unpacked(image.read_bytes()))
        (busybox,) = tree.rglob("bin/busybox")
        shutil.copy(busybox, folder)
        modules = module_order(tree, BOOT_MODULES)
        for name, content in modules.items():
            (folder / f"{name}.ko").write_bytes(content)
        found = Kernel(series, release, apt.version(packages[0]), BOOT_MODULES, tuple(modules))
        (folder / "kernel.json").write_text(json.dumps(asdict(found), indent=2) + "\n")
        shutil.rmtree(found.folder, ignore_errors=True)
        folder.rename(found.folder)
    return found


class _Apt:
    """Apt in a root of its own, with the suites of one series."""

    def __init__(self, root: Path, suites: tuple[str, ...]) -> None:
        if not KEYRING.exists():
            raise LabError(f"{KEYRING} is missing: install debian-archive-keyring")
        self._root = root
        for folder in ("lists/partial", "cache/archives/partial", "debs"):
            (root / folder).mkdir(parents=True)
        sources = root / "sources.list"
        sources.write_text("".join(f"deb [signed-by={KEYRING}] {_mirror(suite)} {suite} main\n" for suite in suites))
        settings = {
            "Dir::State::Lists": root / "lists",
            "Dir::Cache": root / "cache",
            "Dir::Etc::SourceList": sources,
            "Dir::Etc::SourceParts": "/dev/null",
            "APT::Sandbox::User": "root",
            "APT::Architecture": "amd64",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "Acquire::Languages": "none",
        }
        self._options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        self._run("apt-get", "update", "--error-on=any")

    def releases(self, series: str) -> Iterator[str]:
        names = self._run("apt-cache", "pkgnames", "linux-image-").split()
        found = (match[1] for name in names if (match := _IMAGE.fullmatch(name)))
        return (release for release in found if series == "newest" or release.startswith(f"{series}."))

    def has(self, package: str) -> bool:
        return package in self._run("apt-cache", "pkgnames", package).split()

    def version(self, package: str) -> str:
        return self._run("apt-cache", "show", "--no-all-versions", package).split("\nVersion: ")[1].split("\n")[0]

    def unpack(self, *packages: str) -> Path:
        """Download the packages and unpack them into one tree."""
        self._run("apt-get", "download", *packages)
        tree = self._root / "tree"
        for package in (self._root / "debs").glob("*.deb"):
            self._run("dpkg-deb", "--extract", str(package), str(tree))
        return tree

    def _run(self, tool: str, *arguments: str) -> str:
        options = self._options if tool.startswith("apt") else []
        done = subprocess.run([tool, *options, *arguments], cwd=self._root / "debs", capture_output=True, text=True)
        if done.returncode:
            raise LabError(f"{tool} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout


def _mirror(suite: str) -> str:
    """Return the mirror from which this machine's apt gets such a suite."""
    if not shutil.which("apt-get"):
        raise LabError("apt-get is missing: Debian's kernels come from Debian's archive")
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]
    targets = [line.split() for line in subprocess.check_output(command, text=True).splitlines()]
    for uri, release in targets:
        if release.endswith("-security") == suite.endswith("-security"):
            return uri
    raise LabError(f"apt has no source of Debian packages like {suite}")


def _version(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)))
