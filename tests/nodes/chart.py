"""Renders the chart with Helm."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "agent/deploy/helm/kafka-probe"
OLDEST, NEWEST = "1.30", "1.37"  # of Kubernetes: of the chart's kubeVersion, and of the schemas that we have

_HELM = Path(sys.executable).with_name("helm")

Manifest = dict[str, Any]


class RefusedError(Exception):
    """Helm refuses the chart with these values; the text is Helm's output."""


def helm(*arguments: str | Path) -> str:
    """Run Helm and return its output. Raises `RefusedError` if it fails."""
    done = subprocess.run([_HELM, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RefusedError(done.stdout + done.stderr)
    return done.stdout


def template(*arguments: str | Path, chart: Path = CHART, version: str = NEWEST) -> str:
    """Render the chart as text, as `helm install kafka-probe` would apply it."""
    where = ("--namespace", "kafka-probe", "--kube-version", version)
    return helm("template", "kafka-probe", chart, *where, *arguments)


def manifests(
    values: Mapping[str, Any], directory: Path, *, chart: Path = CHART, version: str = NEWEST
) -> list[Manifest]:
    """Render the chart with these values."""
    return parsed(template("--values", values_file(values, directory), chart=chart, version=version))


def values_file(values: Mapping[str, Any], directory: Path) -> Path:
    """Write the values into a file for Helm."""
    file = directory / "values.yaml"
    file.write_text(yaml.safe_dump(dict(values)))
    return file


def parsed(text: str) -> list[Manifest]:
    """Return the documents of a manifest."""
    return [document for document in yaml.safe_load_all(text) if document]


def one(documents: list[Manifest], kind: str) -> Manifest:
    """Return the only document of its kind."""
    (found,) = (document for document in documents if document["kind"] == kind)
    return found


def pod(documents: list[Manifest]) -> Manifest:
    """Return the pod of the DaemonSet."""
    spec: Manifest = one(documents, "DaemonSet")["spec"]["template"]["spec"]
    return spec


def container(documents: list[Manifest]) -> Manifest:
    """Return the agent's container."""
    (agent,) = pod(documents)["containers"]
    found: Manifest = agent
    return found


def copy(directory: Path) -> Path:
    """Copy the chart, to change it."""
    return Path(shutil.copytree(CHART, directory / "chart"))
