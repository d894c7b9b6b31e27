"""The pipeline on Kubernetes, up to its API: the driver's pod that spark-submit asks for, as by guide and manifest.

Part of `make test-nodes`. There is no Kubernetes here: a server that accepts everything stands in for its API. So
Spark's own client has checked the command, and what it made of it is seen; no pod starts.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.http_server import serving
from tests.lab.spark import ACTIVE, documented

pytestmark = pytest.mark.spark

MANIFEST = Path(__file__).parents[2] / "agent/deploy/kubernetes/spark-application.yaml"
(APPLICATION,) = (one for one in yaml.safe_load_all(MANIFEST.read_text()) if one["kind"] == "SparkApplication")
SPEC = APPLICATION["spec"]
LIMIT_S = 120


@contextmanager
def a_willing_api_server() -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """Yield the URL of an HTTP server that accepts every object, and the accepted objects by kind."""
    taken: dict[str, dict[str, Any]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._take()

        # Server-side apply.
        def do_PATCH(self) -> None:
            self._take()

        def _take(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            # /api/v1/namespaces/NAME/...
            namespace = self.path.split("/")[4]
            body["metadata"] |= {"namespace": namespace, "uid": str(uuid.uuid4()), "resourceVersion": "1"}
            taken[body["kind"]] = body
            answer = json.dumps(body).encode()
            self.send_response(201)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with serving(Handler) as port:
        yield f"http://127.0.0.1:{port}", taken


def asked_for(directory: Path, *more: str) -> dict[str, dict[str, Any]]:
    """Return the objects that the guide's command creates, with further flags, by kind."""
    (directory / "spark-defaults.conf").write_text("spark.kubernetes.submission.waitAppCompletion false\n")
    with a_willing_api_server() as (url, taken):
        here = {"k8s://https://kubernetes.example:6443": f"k8s://{url}"}
        program, *words = (here.get(word, word) for word in documented("spark-submit --master k8s:"))
        submitted = subprocess.run(
            [program, *more, *words],
            env=ACTIVE | {"SPARK_CONF_DIR": str(directory), "KUBECONFIG": "/dev/null"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    assert submitted.returncode == 0, submitted.stderr[-4000:]
    return taken


def test_the_driver_is_a_pod_of_the_pipelines_image_that_runs_the_job(tmp_path: Path) -> None:
    taken = asked_for(tmp_path)
    pod = taken["Pod"]
    (container,) = pod["spec"]["containers"]
    assert pod["metadata"]["namespace"] == APPLICATION["metadata"]["namespace"]
    assert pod["spec"]["serviceAccountName"] == SPEC["driver"]["serviceAccount"]
    assert container["image"] == SPEC["image"]
    words = container["args"]
    assert words[0] == "driver"
    assert words[words.index(SPEC["mainApplicationFile"]) + 1] == "run"
    assert "spark.executor.instances=2" in taken["ConfigMap"]["data"]["spark.properties"]


def test_spark_takes_the_templates_of_the_manifest_as_the_operator_gives_them(tmp_path: Path) -> None:
    flags = []
    for part in ("driver", "executor"):
        file = tmp_path / f"{part}.yaml"
        file.write_text(yaml.safe_dump(SPEC[part]["template"]))
        flags += ["--conf", f"spark.kubernetes.{part}.podTemplateFile={file}"]
    pod = asked_for(tmp_path, *flags)["Pod"]["spec"]
    (container,) = pod["containers"]
    (wanted,) = SPEC["driver"]["template"]["spec"]["containers"]
    assert wanted["name"] == container["name"]
    assert wanted["securityContext"].items() <= container["securityContext"].items()
    for parts in ("env", "volumeMounts"):
        assert [one for one in wanted[parts] if one not in container[parts]] == []
    assert [one for one in SPEC["driver"]["template"]["spec"]["volumes"] if one not in pod["volumes"]] == []
