"""Builds the root disks of guests from installed packages.

A disk contains this machine's Debian packages around python3-bpfcc, and the Python packages of .venv that the agent and
the golden conversations need, or more. It contains nothing of this project: each job brings that with it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.kernel.archive import CACHE
from tests.lab.processes import LabError

_DEBIAN = ("python3-bpfcc", "bpftool", "bash", "dash", "coreutils", "mount", "iproute2")
_PYTHON = ("kafka-probe", "pytest", "kio")  # kio: the decoder's test messages, which the conversations are made of
_LEFT_OUT = re.compile(r"/usr/share/(doc|man|locale|info|lintian)(/|$)|/__pycache__/")
_FOLDERS = ("proc", "sys", "dev", "tmp", "run", "root", "etc")
_SPARE_BYTES = 64 << 20
_SOURCE = Path(__file__)


def root_disk(name: str = "root", *, debian: Sequence[str] = (), python: Sequence[str] = ()) -> Path:
    """Return the path of an ext4 image, which is rebuilt when a package in it has changed.

    `debian`, `python`: packages beyond the usual ones.

    Raises:
        LabError: a package or mke2fs is missing.
    """
    packages = dict(_closure([*_DEBIAN, *debian]))
    distributions = {found.name: found for found in _distributions([*_PYTHON, *python])}
    contents = [*packages.items(), *((found.name, found.version) for found in distributions.values())]
    key = hashlib.sha256(_SOURCE.read_bytes() + repr(sorted(contents)).encode()).hexdigest()[:12]
    image = CACHE / f"{name}-{key}.ext4"
    if not image.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        for older in CACHE.glob(f"{name}-*.ext4"):
            older.unlink()
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            tree = Path(scratch) / "root"
            _copy_packages(packages, tree)
            _copy_distributions(distributions.values(), tree)
            _complete(tree)
            _make_image(tree, Path(scratch) / "image").rename(image)
    return image


def _closure(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the names and versions of installed Debian packages and of those that they depend on."""
    if not shutil.which("dpkg-query"):
        raise LabError("dpkg-query is missing: the guests' root is made of Debian packages")
    form = r"${Package}\t${Version}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
    lines = subprocess.check_output(["dpkg-query", "--show", f"--showformat={form}"], text=True).splitlines()
    rows = {row[0]: row[1:] for row in (line.split("\t") for line in lines)}
    providers = {name: package for package, row in rows.items() for name in [*_names(row[2]), package]}
    wanted, seen = list(names), set[str]()
    for name in wanted:
        if name not in providers:
            raise LabError(f"the Debian package {name} is missing")
    while wanted:
        package = providers.get(wanted.pop())
        if package is not None and package not in seen:  # else an alternative of another dependency
            seen.add(package)
            version, needs, _ = rows[package]
            wanted += _names(needs)
            yield package, version


def _names(relations: str) -> Iterator[str]:
    """Yield the package names in a relation field, without versions and architectures."""
    yield from (part.split()[0].partition(":")[0] for part in re.split(r"[,|]", relations) if part.strip())


def _distributions(names: Iterable[str]) -> Iterator[Distribution]:
    """Yield installed Python packages and those that they require, without this project itself."""
    wanted, seen = [Requirement(name) for name in names], set[str]()
    while wanted:
        requirement = wanted.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        found = distribution(requirement.name)
        extras = {"", *requirement.extras}
        inner = map(Requirement, found.requires or [])
        wanted += [r for r in inner if not r.marker or any(r.marker.evaluate({"extra": extra}) for extra in extras)]
        if found.name != "kafka-probe":
            yield found


def _copy_packages(packages: Iterable[str], tree: Path) -> None:
    listed = subprocess.check_output(["dpkg-query", "--listfiles", *packages], text=True).splitlines()
    for folder in ("bin", "sbin", "lib", "lib64"):
        tree.joinpath("usr", folder).mkdir(parents=True, exist_ok=True)
        tree.joinpath(folder).symlink_to(f"usr/{folder}")
    for name in sorted(set(listed)):
        if name.startswith("/") and not _LEFT_OUT.search(name):
            path = Path(name).parent.resolve() / Path(name).name
            _copy(path, tree / path.relative_to("/"))


def _copy_distributions(distributions: Iterable[Distribution], tree: Path) -> None:
    target = tree / f"usr/local/lib/python3.{sys.version_info.minor}/dist-packages"
    for found in distributions:
        for file in found.files or []:
            if ".." not in file.parts and "__pycache__" not in file.parts:
                _copy(Path(str(file.locate())), target / file)


def _copy(source: Path, target: Path) -> None:
    if source.is_symlink():
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_symlink():
            target.symlink_to(source.readlink())
    elif source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def _complete(tree: Path) -> None:
    """Create what packages create at their installation: folders, accounts, the linker's cache, compiled modules."""
    for folder in _FOLDERS:
        (tree / folder).mkdir(exist_ok=True)
    (tree / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (tree / "etc" / "group").write_text("root:x:0:\n")
    (tree / "etc" / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    subprocess.run(["ldconfig", "-r", tree], check=True)
    compiler: list[str | Path] = [sys.executable, "-m", "compileall", "-q", "-j", "0", "-s", tree, "-p", "/"]
    folders = [path for pattern in ("usr/lib/python3*", "usr/local/lib/python3*") for path in tree.glob(pattern)]
    subprocess.run([*compiler, *folders], check=True, stdout=subprocess.DEVNULL)


def _make_image(tree: Path, image: Path) -> Path:
    if not (mke2fs := shutil.which("mke2fs", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")):
        raise LabError("mke2fs is missing: install e2fsprogs")
    used = sum(path.lstat().st_blocks * 512 for path in tree.rglob("*"))
    with image.open("wb") as file:
        file.truncate(used + used // 10 + _SPARE_BYTES)
    subprocess.run([mke2fs, "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", tree, image], check=True)
    return image
