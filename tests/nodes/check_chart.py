"""Helm renders valid manifests that grant no more than asked for, and refuses wrong values with a reason.

There is no API server here: kubernetes-validate checks the manifests against its schemas.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import ValidationError, validate

from kafka_probe import config
from kafka_probe.setting_types import ExchangeSelection
from tests.nodes.chart import (
    CHART,
    NEWEST,
    OLDEST,
    ROOT,
    RefusedError,
    container,
    copy,
    helm,
    manifests,
    one,
    parsed,
    pod,
    template,
    values_file,
)

DEPLOY = ROOT / "agent/deploy"
OPERATOR = {"ServiceMonitor", "PrometheusRule"}  # the Prometheus operator's: not in the schemas of Kubernetes
BROKERS = {"settings": {"bootstrap_servers": ["kafka-1:9092"]}}
TOKEN = {"listen": {"tokenSecret": {"name": "kafka-probe-token"}}}
ALWAYS = ["BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH"]
VALUES: dict[str, dict[str, Any]] = {
    "brokers": BROKERS,
    "minimal": {
        "settings": {"sink": "stdout"},
        "podNames": False,
        "tolerations": [],
        "nodeSelector": None,
        "resources": None,
        "serviceAccount": {"create": False},
    },
    "token": {**BROKERS, **TOKEN},
    "client certificates": {**BROKERS, "listen": {"tlsSecret": "kafka-probe-tls", "clientCertificates": True}},
    "older connections": {**BROKERS, "listOlderConnections": True},
    "conntrack": {**BROKERS, "conntrack": True},
    "privileged": {**BROKERS, "privileged": True},
    "everything": {
        "listen": {**TOKEN["listen"], "tlsSecret": "kafka-probe-tls", "clientCertificates": True, "address": "[::]"},
        "settings": {
            **BROKERS["settings"],
            "security_protocol": "SASL_SSL",
            "ssl_cafile": "/etc/kafka-probe/tls/ca.crt",
        },
        "image": {"repository": "registry.example/kafka-probe", "digest": f"sha256:{'0' * 64}"},
        "imagePullSecrets": [{"name": "registry"}],
        "fullnameOverride": "who-uses-kafka",
        "credentials": {"variablesSecret": "kafka-probe-sink", "filesSecret": "kafka-probe-files"},
        "listOlderConnections": True,
        "conntrack": True,
        "spool": {"sizeMiB": 4096, "hostPath": "/var/lib/kafka-probe"},
        "extraCapabilities": ["SYS_RESOURCE"],
        "seccompProfile": {"type": "RuntimeDefault"},
        "seLinuxOptions": {"type": "spc_t"},
        "priorityClassName": "system-node-critical",
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "kafka", "operator": "Exists"}]}]
                }
            }
        },
        "podAnnotations": {"team": "messaging"},
        "podLabels": {"team": "messaging"},
        "extraArgs": ["--log-format=json"],
        "extraEnv": [{"name": "KAFKA_PROBE_REQUESTS", "value": "errors"}],
        "extraVolumes": [{"name": "extra", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
        "serviceAccount": {"annotations": {"team": "messaging"}},
        "serviceMonitor": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "tlsConfig": {"ca": {"secret": {"name": "kafka-probe-tls", "key": "ca.crt"}}},
        },
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
        "createNamespace": True,
    },
}


@pytest.mark.parametrize("name", VALUES)
def test_helm_finds_nothing_to_complain_about(name: str, tmp_path: Path) -> None:
    output = helm("lint", "--strict", "--kube-version", NEWEST, CHART, "--values", values_file(VALUES[name], tmp_path))
    assert "[WARNING]" not in output
    assert "[ERROR]" not in output


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", VALUES)
def test_what_it_renders_is_valid(name: str, version: str, tmp_path: Path) -> None:
    documents = manifests(VALUES[name], tmp_path, version=version)
    for document in documents:
        if document["kind"] not in OPERATOR:
            validate(document, version, strict=True)
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(names) == len(set(names))


def test_the_schemas_notice_what_is_wrong(tmp_path: Path) -> None:
    wrong = one(manifests(BROKERS, tmp_path), "DaemonSet")
    wrong["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(ValidationError, match="hostPid"):
        validate(wrong, NEWEST, strict=True)


def test_everything_is_there_when_everything_is_on(tmp_path: Path) -> None:
    documents = manifests(VALUES["everything"], tmp_path)
    assert {document["kind"] for document in documents} == {
        *("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet", "Service"),
        *("ServiceMonitor", "PrometheusRule", "NetworkPolicy"),
    }
    # With Prometheus's own braces, which look like Helm's.
    rules = (DEPLOY / "prometheus/rules.yml").read_text()
    assert "{{ $labels" in rules
    assert one(documents, "PrometheusRule")["spec"] == yaml.safe_load(rules)
    (dashboards,) = (d for d in documents if d["metadata"]["name"] == "who-uses-kafka-dashboards")
    assert dashboards["data"] == {file.name: file.read_text() for file in (DEPLOY / "grafana").glob("*.json")}
    monitor = one(documents, "ServiceMonitor")["spec"]
    (endpoint,) = monitor["endpoints"]
    (job,) = (label["replacement"] for label in endpoint["relabelings"] if label["targetLabel"] == "job")
    (jobs,) = re.findall(r'up\{job=~"(.+?)"', rules)
    assert re.fullmatch(jobs, job)
    assert endpoint["authorization"]["credentials"] == {"name": "kafka-probe-token", "key": "token"}
    agent, pod = container(documents), one(documents, "DaemonSet")["spec"]["template"]["spec"]
    assert agent["image"] == f"registry.example/kafka-probe@sha256:{'0' * 64}"
    assert {"secretRef": {"name": "kafka-probe-sink"}} in agent["envFrom"]
    (files,) = (v["name"] for v in pod["volumes"] if v.get("secret", {}).get("secretName") == "kafka-probe-files")
    assert {"name": files, "mountPath": "/etc/kafka-probe/tls", "readOnly": True} in agent["volumeMounts"]
    assert pod["priorityClassName"] == "system-node-critical"
    (ingress,) = one(documents, "NetworkPolicy")["spec"]["ingress"]
    assert ingress["from"] == VALUES["everything"]["networkPolicy"]["from"]


@pytest.mark.parametrize(
    ("name", "capabilities", "escalation"),
    [
        ("brokers", ALWAYS, False),
        ("older connections", [*ALWAYS, "SYS_ADMIN"], True),
        ("conntrack", [*ALWAYS, "NET_ADMIN"], False),
        ("everything", [*ALWAYS, "SYS_ADMIN", "NET_ADMIN", "SYS_RESOURCE"], True),
    ],
)
def test_a_capability_is_there_with_the_feature_that_needs_it(
    name: str, capabilities: list[str], escalation: bool, tmp_path: Path
) -> None:
    security = container(manifests(VALUES[name], tmp_path))["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": capabilities}
    assert security["allowPrivilegeEscalation"] is escalation
    assert security["readOnlyRootFilesystem"] is True
    assert "privileged" not in security


def test_privileged_is_a_switch(tmp_path: Path) -> None:
    security = container(manifests(VALUES["privileged"], tmp_path))["securityContext"]
    assert security["privileged"] is True
    assert "capabilities" not in security
    assert security["readOnlyRootFilesystem"] is True


def test_what_goes_to_standard_output_waits_on_no_disk(tmp_path: Path) -> None:
    def volumes(name: str) -> set[str]:
        return {volume["name"] for volume in pod(manifests(VALUES[name], tmp_path))["volumes"]}

    assert volumes("brokers") - volumes("minimal") == {"spool"}


def test_the_agent_may_read_pods_and_nothing_else(tmp_path: Path) -> None:
    rules = one(manifests(BROKERS, tmp_path), "ClusterRole")["rules"]
    assert rules == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]


def test_without_pod_names_it_may_read_nothing(tmp_path: Path) -> None:
    documents = manifests(VALUES["minimal"], tmp_path)
    assert {document["kind"] for document in documents} == {"ConfigMap", "DaemonSet"}
    assert pod(documents)["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("name", "address"),
    [("brokers", "127.0.0.1"), ("token", "0.0.0.0"), ("client certificates", "0.0.0.0"), ("everything", "[::]")],
)
def test_it_listens_beyond_loopback_only_for_those_who_have_a_token_or_a_certificate(
    name: str, address: str, tmp_path: Path
) -> None:
    documents = manifests(VALUES[name], tmp_path)
    variables = {each["name"].removeprefix("KAFKA_PROBE_"): each for each in container(documents)["env"]}
    assert variables["LISTEN"]["value"] == f"{address}:9465"
    assert bool({"LISTEN_TOKEN", "LISTEN_CLIENTCAFILE"} & set(variables)) == (name != "brokers")
    services = [document for document in documents if document["kind"] == "Service"]
    assert [service["spec"]["clusterIP"] for service in services] == ([] if name == "brokers" else ["None"])


def test_a_token_comes_from_a_secret(tmp_path: Path) -> None:
    (token,) = (v for v in container(manifests(VALUES["token"], tmp_path))["env"] if v["name"].endswith("_TOKEN"))
    assert token["valueFrom"] == {"secretKeyRef": {"name": "kafka-probe-token", "key": "token"}}


PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@pytest.mark.parametrize("more", [TOKEN["listen"], {"clientCertificates": True}], ids=["token", "certificates"])
def test_a_probe_speaks_tls_where_the_agent_does(more: dict[str, Any], tmp_path: Path) -> None:
    values = {**BROKERS, "listen": {**more, "tlsSecret": "kafka-probe-tls"}}
    agent = container(manifests(values, tmp_path))
    asked = [agent[probe]["httpGet"] for probe in PROBES]
    assert [each["path"] for each in asked] == ["/healthz", "/readyz", "/healthz"]
    assert all((each["port"], each["scheme"]) == ("http", "HTTPS") for each in asked)


def test_changed_settings_replace_the_pods(tmp_path: Path) -> None:
    def annotations(requests: str) -> Any:
        values = {"settings": {**BROKERS["settings"], "requests": requests}}
        return one(manifests(values, tmp_path), "DaemonSet")["spec"]["template"]["metadata"]["annotations"]

    assert annotations("off") == annotations("off") != annotations("all")


def test_the_agent_reads_its_settings_as_they_were_given(tmp_path: Path) -> None:
    given = {
        "bootstrap_servers": ["kafka-1:9092", "[::1]:9093"],
        "ports": [9092, 19092],
        "sasl_plain_username": 'odd "name" <\\ & \u00e4',
        "interval_s": 2.5,
        "ring_size_bytes": 1 << 24,
        "ssl_check_hostname": False,
    }
    file = tmp_path / "kafka-probe.toml"
    file.write_text(one(manifests({"settings": given}, tmp_path), "ConfigMap")["data"]["kafka-probe.toml"])
    read = config.load({}, file)
    assert {name: getattr(read, name) for name in given} == {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }


def test_off_is_off_though_yaml_takes_it_for_false(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("settings: {bootstrap_servers: [kafka-1:9092], requests: off}")
    settings = tmp_path / "kafka-probe.toml"
    settings.write_text(one(parsed(template("--values", file)), "ConfigMap")["data"]["kafka-probe.toml"])
    assert config.load({}, settings).requests == ExchangeSelection("off")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "Name the brokers that receive the events"),
        ({**BROKERS, "serviceMonitor": {"enabled": True}}, "serviceMonitor.enabled needs listen.tokenSecret.name"),
        ({**BROKERS, "listen": {"tlsSecret": "tls"}}, "listen.tlsSecret needs"),
        ({**BROKERS, "listen": {"clientCertificates": True}}, "listen.clientCertificates needs listen.tlsSecret"),
        ({"settings": {**BROKERS["settings"], "bootstrap_server": "kafka-1:9092"}}, "bootstrap_server"),
        ({"settings": {**BROKERS["settings"], "sasl_plain_password": "secret"}}, "sasl_plain_password"),
        ({"settings": {**BROKERS["settings"], "ports": {"a": 9092}}}, "ports"),
        ({**BROKERS, "privileged": "yes"}, "privileged"),
        ({**BROKERS, "extraCapabilities": ["CAP_SYS_RESOURCE"]}, "extraCapabilities"),
        ({**BROKERS, "listen": {"port": 70000}}, "port"),
        ({**BROKERS, "listen": {"token": "secret"}}, "token"),
        ({**BROKERS, "spool": {"hostPath": "var/lib"}}, "hostPath"),
        ({**BROKERS, "image": {"digest": "latest"}}, "digest"),
        ({**BROKERS, "toleration": []}, "toleration"),
        ({**BROKERS, "prometheusRule": {"enabled": True}}, "has no rules"),
        ({**BROKERS, "dashboards": {"enabled": True}}, "has no dashboards"),
    ],
)
def test_wrong_values_are_refused_with_a_reason(values: dict[str, Any], reason: str, tmp_path: Path) -> None:
    chart = copy(tmp_path)
    shutil.rmtree(chart / "files")
    with pytest.raises(RefusedError, match=re.escape(reason)):
        manifests(values, tmp_path, chart=chart)


def test_an_older_kubernetes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="incompatible with Kubernetes"):
        manifests(BROKERS, tmp_path, version="1.29")


def test_the_plain_manifest_is_what_the_chart_renders() -> None:
    rendered = template("--values", DEPLOY / "kubernetes/values.yaml")
    assert (DEPLOY / "kubernetes/kafka-probe.yaml").read_text() == rendered, (
        "render it anew by the command in values.yaml beside it"
    )


def test_the_guides_values_and_command_render_what_it_then_looks_at(tmp_path: Path) -> None:
    """Without a cluster, the test renders what the command would send to one."""
    guide = (ROOT / "docs/guide/kubernetes.md").read_text()
    (values,) = re.findall(r"^```yaml\n# values.yaml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    (arguments,) = re.findall(r"^helm upgrade --install (.+)$", guide, re.MULTILINE)
    (tmp_path / "values.yaml").write_text(values)
    here = {"agent/deploy/helm/kafka-probe": str(CHART), "values.yaml": str(tmp_path / "values.yaml")}
    command = [here.get(word, word) for word in arguments.split()]
    documents = parsed(helm("template", "--kube-version", NEWEST, *command))
    assert re.findall(r"^helm uninstall (.+)$", guide, re.MULTILINE) == [" ".join((command[0], *command[2:4]))]
    looked_at = re.findall(r"^kubectl --namespace (\S+) .*daemonset/(\S+)", guide, re.MULTILINE)
    assert looked_at
    for namespace, name in looked_at:
        metadata = one(documents, "DaemonSet")["metadata"]
        assert (metadata["namespace"], metadata["name"]) == (namespace, name)
    agent = container(documents)
    wanted = {source["secretRef"]["name"] for source in agent["envFrom"]}
    sources = [variable.get("valueFrom", {}) for variable in agent["env"]]
    wanted |= {source["secretKeyRef"]["name"] for source in sources if "secretKeyRef" in source}
    assert (
        set(re.findall(r"^kubectl --namespace kafka-probe create secret generic (\S+)", guide, re.MULTILINE)) == wanted
    )


def test_the_readmes_command_renders_an_agent_of_its_image_for_its_brokers() -> None:
    (arguments,) = re.findall(r"^helm upgrade --install (.+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    words = shlex.split(arguments.replace("agent/deploy/helm/kafka-probe", str(CHART)))
    rendered = helm("template", "--kube-version", NEWEST, *words)
    assert container(parsed(rendered))["image"].startswith("registry.example/kafka-probe:")
    assert 'bootstrap_servers = ["kafka-1:9092"]' in rendered


def test_it_is_packaged_with_all_that_it_needs(tmp_path: Path) -> None:
    helm("package", CHART, "--destination", tmp_path)
    (archive,) = tmp_path.glob("kafka-probe-*.tgz")
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(yaml.safe_load(helm("show", "values", archive))) == set(schema["properties"]) - {"global"}
    assert len(manifests(VALUES["everything"], tmp_path, chart=archive)) == 11
