"""The workload of a socket, as events contain it, and the bytes that it takes of a budget.

A workload takes its bytes until the last object that refers to it is deleted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from kafka_probe.events import WORKLOAD
from kafka_probe.protocol.facts import cut, text_bytes
from kafka_probe.shares import SharedBudget, peer_of

TEXT_CHARACTERS = 1024
"""Most characters kept of a text: a Java class path can be megabytes."""
_WORKLOAD_BYTES = 1408  # memory of a workload besides texts and labels, with its key, the owner

NOBODY: Mapping[str, object] = dict.fromkeys(field.name for field in WORKLOAD.fields)
"""The workload of a socket with an unknown owner."""


class Workload(dict[str, object]):
    """The `workload` object of events, shared by all connections of an owner.

    When deleted, it gives back the bytes taken for it.
    """

    __slots__ = ("__weakref__", "_bytes", "_place")

    def __init__(self, facts: Mapping[str, object], place: SharedBudget, taken_bytes: int) -> None:
        super().__init__(facts)
        self._place = place
        self._bytes = taken_bytes

    def __del__(self) -> None:
        self._place.give_back(self._bytes)

    def name(self, names: Mapping[str, object]) -> None:
        """Add the names of its pod if the budget has memory for them."""
        more = workload_bytes({**self, **names}) - self._bytes
        if more <= 0:
            self._place.give_back(-more)
        elif not self._place.take(peer_of("client", "", self), more, "workload_limit"):
            return
        self._bytes += more
        self.update(names)


def cut_texts(facts: Mapping[str, object]) -> dict[str, object]:
    """Return the facts of a workload with its texts cut to TEXT_CHARACTERS."""
    return {name: cut(fact, TEXT_CHARACTERS) if isinstance(fact, str) else fact for name, fact in facts.items()}


def workload_bytes(workload: Mapping[str, object]) -> int:
    """Return about how much memory a workload takes, rounded up. Each workload of a pod counts the pod's labels."""
    labels = workload["labels"]
    named = (*labels, *labels.values()) if isinstance(labels, Mapping) else ()
    texts = [text_bytes(text, TEXT_CHARACTERS) for text in (*workload.values(), *named) if isinstance(text, str)]
    return _WORKLOAD_BYTES + sys.getsizeof(labels) + sum(texts)
