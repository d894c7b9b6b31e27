"""Builds the images from the Containerfile, on a base of Debian's packages instead of a registry's image."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.lab.processes import LabError
from tests.nodes.podman import STORE, podman

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "agent/deploy/Containerfile"
BASE = "localhost/debian:bookworm-slim"

_JARS = ROOT / "build/jars"
# What debian:bookworm-slim leaves out, too.
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_SETTING = re.compile(r"^[^=]*[.](index-url|extra-index-url|trusted-host|proxy|cert)='(.*)'$", re.MULTILINE)


def built(target: str) -> str:
    """Return the name of an image, built anew if its sources have changed.

    Raises:
        LabError: something is missing; the text ends with the output.
    """
    image = f"localhost/kafka-probe-{target}"
    podman("build", "--file", CONTAINERFILE, "--target", target, "--tag", image, *here(), ROOT)
    return image


def here() -> list[str]:
    """Return the flags with which a build gets from this machine what it otherwise gets from the internet."""
    make_base()
    (spark,) = _JARS.glob("spark-[0-9]*")
    return ["--network=host", f"--build-arg=BASE={BASE}", f"--build-context=jars={spark}", *_pip()]


def make_base() -> None:
    """Make the image BASE of Debian's packages, if there is none."""
    if BASE in podman("images", "--format", "{{.Repository}}:{{.Tag}}").split():
        return
    archive = STORE / "base.tar"
    # Else it gets the Perl that merges /usr of older systems.
    merged = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
    without = (f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT)
    command = ["mmdebstrap", "--variant=minbase", merged, *without, "bookworm", str(archive)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if made.returncode:
        raise LabError(f"mmdebstrap ended with status {made.returncode}:\n{made.stderr[-4000:]}")
    podman("import", archive, BASE)
    archive.unlink()


def _pip() -> list[str]:
    """Return flags that give the pip of a build this machine's index and certificate authorities."""
    listed = subprocess.check_output([sys.executable, "-m", "pip", "config", "list"], text=True)
    settings = dict(_SETTING.findall(listed))
    volumes = []
    if authorities := settings.pop("cert", None):
        settings["cert"] = "/run/authorities.pem"
        volumes = ["--volume", f"{authorities}:{settings['cert']}:ro"]
    file = STORE / "pip.conf"
    file.write_text("\n".join(["[global]", *(f"{name} = {value}" for name, value in settings.items())]) + "\n")
    return [*volumes, "--volume", f"{file}:/etc/pip.conf:ro"]
