"""The manifest for Spark on Kubernetes is valid by the operator's own schema, and its references exist."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeflow_spark_api.models.spark_v1beta2_spark_application import SparkV1beta2SparkApplication

from kafka_probe_pipeline.config import PipelineConfig

ROOT = Path(__file__).parents[2]
DOCUMENTS = {
    document["kind"]: document
    for document in yaml.safe_load_all((ROOT / "agent/deploy/kubernetes/spark-application.yaml").read_text())
}
SPEC = DOCUMENTS["SparkApplication"]["spec"]


def container(part: str) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = SPEC[part]["template"]["spec"]["containers"]
    return found


def test_the_operator_knows_every_field() -> None:
    application = DOCUMENTS["SparkApplication"]
    # A field that the operator does not know would be missing in the result.
    assert SparkV1beta2SparkApplication.from_dict(application).to_dict() == application


def test_a_restart_has_the_intervals_without_which_the_operator_does_not_try_again() -> None:
    assert SPEC["restartPolicy"]["type"] == "Always"
    assert {"onFailureRetryInterval", "onSubmissionFailureRetryInterval"} <= SPEC["restartPolicy"].keys()


@pytest.mark.pinned
def test_its_versions_are_those_of_the_project_and_of_spark() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert SPEC["sparkVersion"] == version("pyspark")
    assert SPEC["image"].endswith(f"/kafka-probe-pipeline:{project['version']}")


def test_driver_and_executors_see_the_output_on_one_volume_that_many_nodes_may_mount(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in container("driver")["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "{}"))
    config = PipelineConfig()
    assert config.bootstrap_servers
    claim = DOCUMENTS["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for part in ("driver", "executor"):
        (mount,) = container(part)["volumeMounts"]
        (volume,) = SPEC[part]["template"]["spec"]["volumes"]
        assert mount == {"name": volume["name"], "mountPath": config.output}
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_the_driver_has_the_account_that_the_role_is_for() -> None:
    account = DOCUMENTS["ServiceAccount"]["metadata"]["name"]
    assert SPEC["driver"]["serviceAccount"] == account
    assert [subject["name"] for subject in DOCUMENTS["RoleBinding"]["subjects"]] == [account]
    assert DOCUMENTS["RoleBinding"]["roleRef"]["name"] == DOCUMENTS["Role"]["metadata"]["name"]
