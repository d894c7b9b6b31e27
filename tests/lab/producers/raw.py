"""Runs clients without a library: for a record of N bytes they send a Metadata request of version N.

So they can ask for a version that no broker has, which libraries do not.
"""

from __future__ import annotations

import socket
import struct

from kafka_probe.protocol.api_keys import ApiKey
from tests.lab.producers.orders import Settings, obey

_TIMEOUT_S = 30


class _Client:
    def __init__(self, _: str, settings: Settings) -> None:
        host, _, port = str(settings["bootstrap.servers"]).rpartition(":")
        self._name = str(settings["client.id"]).encode()
        self._socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)

    def send(self, value: bytes) -> None:
        header = struct.pack(f">hhih{len(self._name)}s", ApiKey.METADATA, len(value), 1, len(self._name), self._name)
        request = header + struct.pack(">i", 0)  # about no topic
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        if not (size := self._socket.recv(4, socket.MSG_WAITALL)):
            self.close()
            raise ConnectionError("closed without an answer")
        self._socket.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)

    def close(self) -> None:
        self._socket.close()


if __name__ == "__main__":
    obey(_Client)
