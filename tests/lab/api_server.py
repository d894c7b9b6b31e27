"""Simulates the part of a Kubernetes API server that a watch on pods needs.

Over TLS on loopback, for one bearer token, it lists pods and streams their events since any version that it has not
compacted away, with bookmarks. It answers 401, 403 and 410 as the real one does, and keeps every query in `asked`.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit

from tests.lab.processes import free_port

Object = dict[str, Any]

PODS = "/api/v1/pods"


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a pod, and the version of the server after it."""

    version: int
    kind: Literal["ADDED", "MODIFIED", "DELETED"]
    pod: Object


class ApiServer:
    """`with ApiServer(directory) as server:` runs it; `stop` and `start` may be called in between, port and pods stay.

    refuses: the status of every answer, if set. gone: how it reports that a version is too old, by an event of an
    accepted watch or by the status of the answer.
    """

    def __init__(self, directory: Path, token: str = "first") -> None:
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.authorities = directory / "ca.crt"
        self.kubeconfig = directory / "kubeconfig"
        self.token = token
        self.refuses: HTTPStatus | None = None
        self.gone: Literal["event", "status"] = "event"
        self.asked: list[dict[str, str]] = []
        self._key = directory / "server.key"
        self._pods: dict[str, Object] = {}
        self._events: list[Event] = []
        self._version = self._compacted = 100
        self._bookmark = 0
        self._ended = self._dropped = 0  # counters, so that a watch notices that it was ended
        self._changed = threading.Condition(threading.RLock())
        self._http: ThreadingHTTPServer | None = None

    def start(self) -> None:
        if not self._key.exists():
            self._key.parent.mkdir(exist_ok=True)
            make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=lab"
            files = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", self._key, "-out", self.authorities)
            subprocess.run([*make.split(), *files], check=True, capture_output=True)
            self.kubeconfig.write_text(
                f"""
                current-context: lab
                contexts: [{{name: lab, context: {{cluster: lab, user: agent}}}}]
                clusters: [{{name: lab, cluster: {{server: "{self.url}", certificate-authority: {self.authorities}}}}}]
                users: [{{name: agent, user: {{token: {self.token}}}}}]
                """
            )
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self.authorities, self._key)
        self._http = _Listener(("127.0.0.1", self.port), _handler(self))
        self._http.socket = tls.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Stop the server and close all connections."""
        if self._http:
            self._http.shutdown()
            self._http.server_close()
            self._http = None
            self.drop()

    def put(self, pod: Object) -> None:
        """Add or change a pod."""
        uid = pod["metadata"]["uid"]
        self._happen("MODIFIED" if uid in self._pods else "ADDED", pod)

    def delete(self, pod: Object) -> None:
        self._happen("DELETED", pod)

    def bookmark(self) -> None:
        """Advance the version as for a change elsewhere in the cluster, and send it to the watches."""
        with self._changed:
            self._version += 1
            self._bookmark = self._version
            self._changed.notify_all()

    def compact(self, *, deleted: Object, put: Object) -> None:
        """End the watches, apply the change, and drop its history before the next request."""
        with self._changed:
            self._ended += 1
            self._happen("DELETED", deleted)
            self._happen("ADDED", put)
            self._compacted = self._version
            self._events.clear()

    def end(self) -> None:
        """End the watches, as the server does after their time."""
        with self._changed:
            self._ended += 1
            self._changed.notify_all()

    def drop(self) -> None:
        """Cut the watches' connections."""
        with self._changed:
            self._dropped += 1
            self._changed.notify_all()

    def watches(self) -> list[dict[str, str]]:
        return [query for query in self.asked if "watch" in query]

    def lists(self) -> list[dict[str, str]]:
        return [query for query in self.asked if "watch" not in query]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def listed(self, selector: str) -> Object:
        with self._changed:
            pods = [pod for pod in self._pods.values() if _selected(pod, selector)]
            return {"kind": "PodList", "metadata": {"resourceVersion": str(self._version)}, "items": pods}

    def so_far(self) -> tuple[int, int]:
        """Return the numbers of ended and dropped watches."""
        return self._ended, self._dropped

    def followed(self, version: int, selector: str, seconds: float, so_far: tuple[int, int]) -> Iterator[Object | None]:
        """Yield the lines of a watch requested at `so_far`; None last if its connection is to be cut."""
        deadline = time.monotonic() + seconds
        ended, dropped = so_far
        while True:
            with self._changed:
                if dropped != self._dropped:
                    yield None
                    return
                events = [event for event in self._events if event.version > version]
                bookmark = self._bookmark if self._bookmark > version else 0
                if not events and not bookmark:
                    if ended != self._ended or time.monotonic() > deadline:
                        return
                    self._changed.wait(0.05)
                    continue
            for event in events:
                version = event.version
                if _selected(event.pod, selector):
                    yield {"type": event.kind, "object": event.pod}
            if bookmark > version:
                version = bookmark
                yield {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": str(bookmark)}}}

    def too_old(self, version: int) -> bool:
        return version < self._compacted

    def _happen(self, kind: Literal["ADDED", "MODIFIED", "DELETED"], pod: Object) -> None:
        with self._changed:
            self._version += 1
            pod = {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(self._version)}}
            if kind == "DELETED":
                del self._pods[pod["metadata"]["uid"]]
            else:
                self._pods[pod["metadata"]["uid"]] = pod
            self._events.append(Event(self._version, kind, pod))
            self._changed.notify_all()


class _Listener(ThreadingHTTPServer):
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that close early."""


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.close_connection = True
            so_far = server.so_far()
            path, query = urlsplit(self.path).path, dict(parse_qsl(urlsplit(self.path).query))
            server.asked.append(query)
            if self.headers.get("Authorization", "").lower() != f"bearer {server.token}":
                self._refuse(HTTPStatus.UNAUTHORIZED, "Unauthorized")
            elif server.refuses:
                self._refuse(server.refuses, server.refuses.phrase)
            elif path != PODS:
                self._refuse(HTTPStatus.FORBIDDEN, "Forbidden")
            elif "watch" not in query:
                self._answer(HTTPStatus.OK, server.listed(query["fieldSelector"]))
            elif not server.too_old(int(query["resourceVersion"])):
                self._stream(query, so_far)
            elif server.gone == "status":
                self._refuse(HTTPStatus.GONE, "Expired")
            else:
                self._lines(iter([{"type": "ERROR", "object": _status(HTTPStatus.GONE, "Expired")}]))

        def _stream(self, query: dict[str, str], so_far: tuple[int, int]) -> None:
            assert query["allowWatchBookmarks"].lower() == "true"
            version, seconds = int(query["resourceVersion"]), float(query["timeoutSeconds"])
            self._lines(server.followed(version, query["fieldSelector"], seconds, so_far))

        def _lines(self, lines: Iterator[Object | None]) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in lines:
                if line is None:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                text = json.dumps(line).encode() + b"\n"
                self.wfile.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")

        def _refuse(self, status: HTTPStatus, reason: str) -> None:
            self._answer(status, _status(status, reason))

        def _answer(self, status: HTTPStatus, content: Object) -> None:
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Log nothing: `asked` contains the requests."""

    return Handler


def pod(*containers: str, name: str = "orders-0", node: str = "node-1", **labels: str) -> Object:
    """Return a pod with containers of these ids, as the server represents it."""
    statuses = [{"name": "main", "containerID": f"containerd://{each}"} for each in containers]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-of-{name}", "labels": labels},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }


def _selected(pod: Object, selector: str) -> bool:
    field, _, node = selector.partition("=")
    assert field == "spec.nodeName"
    return bool(pod["spec"].get("nodeName") == node)


def _status(status: HTTPStatus, reason: str) -> Object:
    return {"kind": "Status", "status": "Failure", "code": status.value, "reason": reason, "message": status.phrase}
