"""Identities and owners of the connections that were open when the agent started, known before their first payload.

The kernel's list does not contain the sequence numbers of a flow id: they come with the first payload or the close.
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
    """A process of listing_program.py and its output.

    agent_tgid: the process whose connections are left out. most: number of connections that fit into the agent's
    memory.
    """

    def __init__(
        self,
        ports: Collection[int],
        side: str,
        netns: Path | None,
        agent_tgid: int,
        most: int = DEFAULT.connections,
    ) -> None:
        self._open = ExitStack()
        # Files, because a pipe would be full before the agent reads it.
        self._output = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # closed by `_open`
        self._errors = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # closed by `_open`
        of = [] if netns is None else [str(netns)]
        wanted = [str(most), ",".join(map(str, ports)), side, str(agent_tgid), *of]
        self._process = subprocess.Popen(
            # -P: no module is imported from the working directory, which may be another user's.
            [sys.executable, "-P", "-m", "kafka_probe.connections.listing_program", *wanted],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            start_new_session=True,
        )
        self._found: Iterator[bytes] | None = None
        self._present = lru_cache(present)

    def take(self, most: int) -> list[tuple[Identity, Owner] | None] | None:
        """Return the next connections of the list, None while the program runs. Fewer than `most` are the last ones.

        A connection beyond the memory limit is None. If the list is incomplete or failed, a warning is logged.
        """
        if self._found is None:
            status = self._process.poll()
            if status is None:
                return None
            self._found = self._lines(status)
        return [None if line == b"\n" else self._read(orjson.loads(line)) for line in islice(self._found, most)]

    def close(self) -> None:
        """Kill the program if it still runs, and close its files."""
        self._process.kill()
        self._process.wait()
        self._open.close()

    def _lines(self, status: int) -> Iterator[bytes]:
        self._output.seek(0)
        self._errors.seek(0)
        reason = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        if reason := reason or (f"the listing program exited with status {status}" if status else ""):
            log.warning(
                "The list of open connections is incomplete (%s). Those that it lacks appear only with their next "
                "payload or close. If rights are missing, run the agent as root.",
                reason,
            )
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
