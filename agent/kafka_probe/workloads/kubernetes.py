"""The names of this node's pods, kept up to date by a thread that watches the Kubernetes API server.

It requests the pods of one node and nothing else, through the official client, which is imported only if the watch is
enabled. A failure is counted, logged once until the watch works again, and retried after growing pauses: meanwhile
events still contain the ids of containers, and no other thread waits for names.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

import orjson

from kafka_probe.workloads.pods import Pods, described

Setting = Literal["auto", "on", "off"]

LOSSES = {"kubernetes_failed": "failed attempts to get the names of this node's pods: see the log"}

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory in which Kubernetes puts the credentials of a pod."""

WATCH_S = 120
"""Duration after which the server ends a watch: the agent notices a silently dead connection soon after it."""
CONNECT_S, LIST_S = 5, 30
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
CLOSE_S = 2.0

# By the status of a response.
_REMEDIES: dict[object, str] = {
    HTTPStatus.UNAUTHORIZED: "the agent's token is not valid: give its pod a service account, or renew the kubeconfig",
    HTTPStatus.FORBIDDEN: "let the agent's service account list and watch pods in all namespaces",
}

log = logging.getLogger("kafka_probe")


class NoPodsError(Exception):
    """The API server lists no pod on the node, where at least the agent's own should be."""


class PodWatch:
    """Keeps `pods` up to date from `start` to `close`. `losses` counts failures by the names of LOSSES.

    node: the node's name in Kubernetes. service_account: a directory with `token` and `ca.crt`.
    """

    def __init__(self, setting: Setting, node: str, pods: Pods, service_account: Path = SERVICE_ACCOUNT) -> None:
        self._service_account = service_account
        self._wanted = setting == "on" or (setting == "auto" and self._in_cluster())
        self._selector = f"spec.nodeName={node}"
        self._node = node
        self._pods = pods
        self._stopping = threading.Event()
        # A daemon, because a thread that waits for a response must not keep the agent from ending.
        self._thread = threading.Thread(target=self._run, name="kafka-probe-pods", daemon=True)
        self._watch: Any = None
        self._logged_remedy: str | None = None
        self.losses = Counter(dict.fromkeys(LOSSES, 0))

    def start(self) -> None:
        if self._wanted:
            self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        deadline = time.monotonic() + CLOSE_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            if self._watch:
                self._watch.stop()  # repeated: it has no effect before the first response
            self._thread.join(0.05)

    def _in_cluster(self) -> bool:
        return "KUBERNETES_SERVICE_HOST" in os.environ and (self._service_account / "token").exists()

    def _run(self) -> None:
        api: Any = None
        version: str | None = None
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            connected = False
            try:
                api = api or self._connect()
                version = version or self._list(api)
                for latest in self._follow(api, version):
                    version, connected = latest, True
                    self._recovered()
            except Exception as error:  # of any kind: names are optional, and failures are counted
                api = None  # token, certificate and kubeconfig may have changed
                status = getattr(error, "status", None)
                # A broken watch resumes at its version, unless the server refuses it, as when the version is too old.
                if status or not connected:
                    version = None
                if not connected and status != HTTPStatus.GONE and not self._stopping.is_set():
                    self._failed(error)
            pause_s = FIRST_PAUSE_S if connected else min(2 * pause_s, LONGEST_PAUSE_S)
            # Random, so that the agents of a cluster do not all retry at once.
            self._stopping.wait(pause_s * random.uniform(0.5, 1))

    def _connect(self) -> Any:
        from kubernetes import client, config
        from kubernetes.config.incluster_config import InClusterConfigLoader

        configuration = client.Configuration()
        if self._in_cluster():
            token, authorities = (str(self._service_account / name) for name in ("token", "ca.crt"))
            InClusterConfigLoader(token, authorities).load_and_set(configuration)
        else:
            config.load_kube_config(client_configuration=configuration)
        configuration.retries = False  # this class logs failures and decides when to retry
        return client.CoreV1Api(client.ApiClient(configuration))

    def _list(self, api: Any) -> str:
        """Read all pods of the node into `pods`; return the resource version of the list.

        For version 0 the server uses its cache, indexed by node: otherwise it would go through all pods of the cluster.
        """
        from kubernetes.client import ApiException

        answer = api.list_pod_for_all_namespaces(
            field_selector=self._selector,
            resource_version="0",
            _preload_content=False,
            _request_timeout=(CONNECT_S, LIST_S),
        )
        if answer.status != HTTPStatus.OK:
            raise ApiException(http_resp=answer)
        listed = orjson.loads(answer.data)
        if not listed["items"]:
            raise NoPodsError(f"the API server has no pod on a node {self._node}")
        self._pods.replace(map(described, listed["items"]))
        version: str = listed["metadata"]["resourceVersion"]
        return version

    def _follow(self, api: Any, version: str) -> Iterator[str]:
        """Apply changes of pods after a version until the server ends the watch; yield the version after each."""
        from kubernetes.watch import Watch

        # As plain JSON: the client's own objects take several times as long.
        watch = self._watch = Watch(return_type="object")
        for event in watch.stream(
            api.list_pod_for_all_namespaces,
            field_selector=self._selector,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=WATCH_S,
            _request_timeout=(CONNECT_S, WATCH_S + LIST_S),
        ):
            match event:
                case {"type": "ADDED" | "MODIFIED", "object": pod}:
                    self._pods.put(described(pod))
                case {"type": "DELETED", "object": {"metadata": {"uid": uid}}}:
                    self._pods.remove(uid)
            self._pods.forget()
            yield watch.resource_version

    def _failed(self, error: Exception) -> None:
        self.losses["kubernetes_failed"] += 1
        remedy = _remedy(error)
        if remedy != self._logged_remedy:
            self._logged_remedy = remedy
            log.warning("New pods have no names: %s: %s", _cause(error), remedy)

    def _recovered(self) -> None:
        if self._logged_remedy:
            self._logged_remedy = None
            log.info("New pods have names again.")


def _remedy(error: Exception) -> str:
    """Return what the user should do about an error."""
    match error:
        case ImportError():
            return "pip install '.[kubernetes]' in kafka-probe's clone, or set --kubernetes off"
        case NoPodsError():
            return "set --node or the variable NODE_NAME to the name of the node in Kubernetes"
    by_status = _REMEDIES.get(getattr(error, "status", None))
    return by_status or "check network and service account, or the kubeconfig, or set --kubernetes off"


def _cause(error: Exception) -> str:
    """Return the response's status and reason, else the innermost OSError behind the error, else the error."""
    if status := getattr(error, "status", None):
        return f"the API server answers {status} {getattr(error, 'reason', '')}"
    behind: list[BaseException] = [error]
    while behind[-1].__context__:
        behind.append(behind[-1].__context__)
    return str(next((each for each in reversed(behind) if isinstance(each, OSError)), error))
