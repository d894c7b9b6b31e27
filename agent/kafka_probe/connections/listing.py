"""The connections that were open when the agent started: who they are, before they say anything.

What a flow id is made of the kernel does not list: that comes with the first payload, or with the end.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from kafka_probe.connections.identity import Identity, network
from kafka_probe.memory import DEFAULT
from kafka_probe.workloads import Owner, present

log = logging.getLogger("kafka_probe")


class Listing:
    """A lister's process at work, see lister.py. `agent_tgid`: whose own connections are left out."""

    def __init__(
        self,
        ports: Collection[int],
        side: str,
        netns: Path | None,
        agent_tgid: int,
        most: int = DEFAULT.connections,
    ) -> None:
        """most: how many connections there is a place for."""
        self._open = ExitStack()
        # Files, because a pipe would be full before anybody reads it.
        self._output = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # closed by `_open`
        self._errors = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # closed by `_open`
        of = [] if netns is None else [str(netns)]
        wanted = [str(most), ",".join(map(str, ports)), side, str(agent_tgid), *of]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kafka_probe.connections.lister", *wanted],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            start_new_session=True,
        )
        self._found: Iterator[bytes] | None = None
        self._present = lru_cache(present)

    def take(self, most: int) -> list[tuple[Identity, Owner] | None] | None:
        """The next of what was found, once it is there; None before. Fewer than `most` are the last.

        A connection that there is no place for is None. If the list is not all, or nothing, the log says why.
        """
        if self._found is None:
            status = self._process.poll()
            if status is None:
                return None
            self._found = self._lines(status)
        return [None if line == b"\n" else self._read(orjson.loads(line)) for line in islice(self._found, most)]

    def close(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.wait()
        self._open.close()

    def _lines(self, status: int) -> Iterator[bytes]:
        self._output.seek(0)
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        if said := said or (f"the list ended with status {status}" if status else ""):
            log.warning("connections that are open already are seen when they first speak or end: %s", said)
        return iter(()) if status else iter(self._output)

    def _read(self, listed: dict[str, Any]) -> tuple[Identity, Owner]:
        identity = Identity(
            conn=listed["cookie"],
            server_side=listed["server_side"],
            from_start=False,
            flow_id=None,
            local=listed["local"],
            peer=listed["peer"],
            peer_network=network(listed["peer"]),
            netns=listed["netns"],
            cookie=listed["cookie"],
            handshake_us=None,
        )
        return identity, self._present(listed["pid"], listed["netns"])
