"""The connections that were open when the agent started: who they are, before they say anything.

What a flow id is made of `inet_diag` does not show: that comes with the first payload, or with the end.
"""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kafka_probe.connections.identity import Identity, endpoint, network
from kafka_probe.workloads import Owner, present

log = logging.getLogger("kafka_probe")


class Listing:
    """A lister's process at work, see lister.py. `agent_tgid`: whose own connections are left out."""

    def __init__(self, ports: Collection[int], netns: Path | None, agent_tgid: int) -> None:
        self._ports = ports
        self._agent_tgid = agent_tgid
        self._open = ExitStack()
        # Files, because a pipe would be full before anybody reads it.
        self._output = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # closed by `_open`
        self._errors = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # closed by `_open`
        named = [] if netns is None else [str(netns)]
        command = [sys.executable, "-m", "kafka_probe.connections.lister", ",".join(map(str, ports)), *named]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._errors, start_new_session=True
        )

    def take(self) -> list[tuple[Identity, Owner]] | None:
        """What was found, once it is there; None before. If it is not all, or nothing, the log says why."""
        status = self._process.poll()
        if status is None:
            return None
        self._output.seek(0)
        self._errors.seek(0)
        if said := self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]:
            log.warning("connections that are open already are seen when they first speak or end: %s", said)
        listed = [] if status else map(json.loads, self._output)
        return [self._read(each) for each in listed if each["pid"] != self._agent_tgid]

    def close(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.wait()
        self._open.close()

    def _read(self, listed: dict[str, Any]) -> tuple[Identity, Owner]:
        family, netns = listed["family"], listed["netns"]
        local, peer = (
            endpoint(family, socket.inet_pton(family, address), port)
            for address, port in (listed["local"], listed["peer"])
        )
        identity = Identity(
            conn=listed["cookie"],
            accepting=listed["local"][1] in self._ports,
            from_start=False,
            flow_id=None,
            local=local,
            peer=peer,
            peer_network=network(peer),
            netns=netns,
            cookie=listed["cookie"],
        )
        return identity, present(listed["pid"], netns)
