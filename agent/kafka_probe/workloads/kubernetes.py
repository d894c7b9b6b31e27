"""The names of this node's pods, kept up to date by a watch on the Kubernetes API server, in a thread of its own.

It asks for the pods of one node and for nothing else, through the official client, which is imported only where it is
wanted. Whatever fails is counted, told once until it works again, and tried anew ever less often: containers then keep
their ids, and nobody waits for their names.
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

LOSSES = {"kubernetes_failed": "attempts to learn the names of this node's pods that failed: the log says what to do"}

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts the credentials of a pod."""

WATCH_S = 120
"""The server ends a watch after this time: a connection that died silently is noticed not much later."""
CONNECT_S, LIST_S = 5, 30
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
CLOSE_S = 2.0

# By the status of an answer.
_REMEDIES: dict[object, str] = {
    HTTPStatus.UNAUTHORIZED: "the agent's token is not valid: give its pod a service account, or renew the kubeconfig",
    HTTPStatus.FORBIDDEN: "let the agent's service account list and watch pods in all namespaces",
}

log = logging.getLogger("kafka_probe")


class NoPodsError(Exception):
    """The API server knows no pod on the node, where at least the agent's own should be."""


class PodWatch:
    """Keeps `pods` up to date from `start` to `close`. `losses` counts by reason what kept it from that."""

    def __init__(self, setting: Setting, node: str, pods: Pods, service_account: Path = SERVICE_ACCOUNT) -> None:
        """node: the name that the pods have for it. service_account: a directory with `token` and `ca.crt`."""
        self._service_account = service_account
        self._wanted = setting == "on" or (setting == "auto" and self._in_cluster())
        self._selector = f"spec.nodeName={node}"
        self._node = node
        self._pods = pods
        self._stopping = threading.Event()
        # Where it waits for an answer that does not come, it must not keep the agent from ending.
        self._thread = threading.Thread(target=self._run, name="kafka-probe-pods", daemon=True)
        self._watch: Any = None
        self._told: str | None = None
        self.losses = Counter(dict.fromkeys(LOSSES, 0))

    def start(self) -> None:
        if self._wanted:
            self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        deadline = time.monotonic() + CLOSE_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            if self._watch:
                self._watch.stop()  # more than once: it has no effect before there is an answer
            self._thread.join(0.05)

    def _in_cluster(self) -> bool:
        return "KUBERNETES_SERVICE_HOST" in os.environ and (self._service_account / "token").exists()

    def _run(self) -> None:
        api: Any = None
        version: str | None = None
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            heard = False
            try:
                api = api or self._connect()
                version = version or self._list(api)
                for latest in self._follow(api, version):
                    version, heard = latest, True
                    self._recovered()
            except Exception as error:  # of whatever kind: names are an addition, and their absence is counted
                api = None  # token, certificate and kubeconfig may have changed
                status = getattr(error, "status", None)
                # A watch that worked and broke goes on where it was, unless that is too long ago for the server.
                if status or not heard:
                    version = None
                if not heard and status != HTTPStatus.GONE and not self._stopping.is_set():
                    self._failed(error)
            pause_s = FIRST_PAUSE_S if heard else min(2 * pause_s, LONGEST_PAUSE_S)
            # Not all agents of a cluster at once.
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
        configuration.retries = False  # it is for us to say so, and when to try again
        return client.CoreV1Api(client.ApiClient(configuration))

    def _list(self, api: Any) -> str:
        """All pods of the node as they are now; the version that they are of.

        Version 0 is what the server has at hand, by node: without it, it would go through all pods of the cluster.
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
            raise NoPodsError(f"the API server knows no pod on a node {self._node}")
        self._pods.replace(map(described, listed["items"]))
        version: str = listed["metadata"]["resourceVersion"]
        return version

    def _follow(self, api: Any, version: str) -> Iterator[str]:
        """What happens to the pods from that version on, until the server ends it; the version after each event."""
        from kubernetes.watch import Watch

        # As plain JSON: the client's own objects take a multiple of the time.
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
        if remedy != self._told:
            self._told = remedy
            log.warning("new pods stay without names: %s: %s", _cause(error), remedy)

    def _recovered(self) -> None:
        if self._told:
            self._told = None
            log.info("new pods have names again")


def _remedy(error: Exception) -> str:
    """What to do."""
    match error:
        case ImportError():
            return "pip install '.[kubernetes]' in kafka-probe's clone, or set --kubernetes off"
        case NoPodsError():
            return "name the node as Kubernetes does, by --node or the variable NODE_NAME"
    by_status = _REMEDIES.get(getattr(error, "status", None))
    return by_status or "check network and service account, or the kubeconfig, or set --kubernetes off"


def _cause(error: Exception) -> str:
    """What the server answered, without its headers; else what the system said, where the client hides it."""
    if status := getattr(error, "status", None):
        return f"the API server answers {status} {getattr(error, 'reason', '')}"
    behind: list[BaseException] = [error]
    while behind[-1].__context__:
        behind.append(behind[-1].__context__)
    return str(next((each for each in reversed(behind) if isinstance(each, OSError)), error))
