"""Installs this project twice: with the lowest and with the newest versions that the ranges of pyproject.toml allow.

Each gets a virtual environment of its own, build/ranges/lowest and build/ranges/newest. Packages for which
pyproject.toml names no version are tools of the tests: in both they have the version of constraints.txt.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYTHON = "/usr/bin/python3"  # Debian's, as in setup.sh: python3-bpfcc is built for it
PIP_OPTIONS = {"lowest": (), "newest": ("--upgrade", "--upgrade-strategy=eager")}


def declared() -> Iterator[Requirement]:
    """Yield all requirements in pyproject.toml, of the build and of extras too."""
    file = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = file["project"]
    extras = itertools.chain(*project["optional-dependencies"].values())
    for text in (*file["build-system"]["requires"], *project["dependencies"], *extras):
        if (requirement := Requirement(text)).name != project["name"]:
            yield requirement


def constraints(end: str) -> str:
    """Return pip's constraints for one end of the ranges."""
    ranged = {canonicalize_name(requirement.name): requirement for requirement in declared() if requirement.specifier}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    tools = {canonicalize_name(requirement.name) for requirement in declared()} - ranged.keys()
    versions = [str(pin) for pin in pins if pin.name in tools]
    if end == "lowest":
        versions += [f"{name}=={lowest(requirement)}" for name, requirement in ranged.items()]
    return "".join(f"{version}\n" for version in versions)


def lowest(requirement: Requirement) -> str:
    """Return the lowest version that a requirement allows."""
    (version,) = (part.version for part in requirement.specifier if part.operator in (">=", "=="))
    return version


def main() -> None:
    for end, options in PIP_OPTIONS.items():
        folder = ROOT / "build" / "ranges" / end
        subprocess.run([PYTHON, "-m", "venv", "--system-site-packages", folder], check=True)
        (file := folder / "constraints.txt").write_text(constraints(end))
        print(f"ranges: installing the {end} versions into {folder.relative_to(ROOT)}", flush=True)
        subprocess.run(
            [folder / "bin/python", "-m", "pip", "install", *options, "--editable", ".[tests]"],
            cwd=ROOT,
            # As a variable the constraints also apply to the environments in which pip builds packages.
            env={**os.environ, "PIP_CONSTRAINT": str(file), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            check=True,
        )


if __name__ == "__main__":
    main()
