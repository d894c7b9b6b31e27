"""Sends alerts to one Prometheus Alertmanager through its v2 API, also after it was down.

An active alert is sent again every `RENEW_S`. An alert that is not renewed resolves itself after `STALE_S`, so that a
job that is gone leaves no alert behind. A resolved alert is sent until Alertmanager accepts it, and then dropped.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import UTC, datetime
from importlib.util import find_spec
from threading import Condition, Thread
from typing import Any, Self

from kafka_probe.errors import StartError
from kafka_probe.text import printable
from kafka_probe_pipeline.alerts import Alert

log = logging.getLogger("kafka_probe_pipeline")

RENEW_S, STALE_S = 60.0, 300.0
RETRY_S = 2.0
REQUEST_WITHIN_S = 5.0  # from the lookup of its name to the last byte of the answer
STOP_WITHIN_S = 2 * REQUEST_WITHIN_S + 1  # a request that is under way, and the last one
LOGGED_BYTES = 200  # of an answer that refuses


class Alertmanager:
    """`with Alertmanager(url) as receiver:` delivers alerts from a thread; its end tries once more.

    Raises `StartError` if aiohttp, the package of the extra `alertmanager`, is not installed.
    """

    def __init__(self, url: str) -> None:
        # Imported where it is used: aiohttp is optional.
        if find_spec("aiohttp") is None:
            raise StartError(
                "--alertmanager-url needs the Python package aiohttp: "
                "pip install '.[alertmanager]' in kafka-probe's clone, or leave the flag out"
            )
        self.url = url.rstrip("/")
        self._alerts: dict[str, Alert] = {}
        self._due: dict[str, float] = {}  # by alert id, monotonic
        self._unsent: set[str] = set()
        self._changed = Condition()
        self._stopping = self._failing = False
        self._thread = Thread(target=self._run, name="alertmanager", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(STOP_WITHIN_S)

    def send(self, alerts: Iterable[Alert]) -> None:
        """Take the newest state of some alerts for delivery, and return at once."""
        with self._changed:
            for alert in alerts:
                self._alerts[alert.id] = alert
                self._due[alert.id] = 0
                self._unsent.add(alert.id)
            self._changed.notify()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            with self._changed:
                if not self._stopping:
                    self._changed.wait(self._pause_s())
                stopping, now = self._stopping, time.monotonic()
                due = [self._alerts[name] for name, at in self._due.items() if at <= now]
                if stopping:
                    due = [self._alerts[name] for name in self._unsent]
            if due:
                self._note_attempt(due, self._post(due))

    def _pause_s(self) -> float | None:
        """Return the time until an alert is due; None if there is none."""
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None

    def _note_attempt(self, sent: list[Alert], failure: str | None) -> None:
        again = time.monotonic() + (RETRY_S if failure else RENEW_S)
        with self._changed:
            for alert in sent:
                if self._alerts[alert.id] is not alert:
                    continue  # a newer state came meanwhile
                self._due[alert.id] = again
                if failure is None:
                    self._unsent.discard(alert.id)
                    if alert.resolved:
                        del self._alerts[alert.id], self._due[alert.id]
        if failure and not self._failing:
            log.warning(
                "Alertmanager %s does not accept alerts (%s); keeping them and trying again.", self.url, failure
            )
        if self._failing and not failure:
            log.info("Alertmanager %s accepts alerts again.", self.url)
        self._failing = failure is not None

    def _post(self, alerts: list[Alert]) -> str | None:
        """Send the alerts, and return the reason if that failed, else None."""
        from aiohttp import ClientError

        try:
            body = json.dumps([_payload(one) for one in alerts])
            with asyncio.Runner(loop_factory=_ResolvingLoop) as runner:
                return runner.run(_posted(f"{self.url}/api/v2/alerts", body))
        except TimeoutError:
            return f"no complete response within {REQUEST_WITHIN_S:g} s"
        except (OSError, ClientError) as error:
            return printable(error)
        except Exception as error:  # without this thread no alert would be sent any more
            if not self._failing:
                log.exception("Sending alerts to %s failed.", self.url)
            return printable(repr(error))


class _ResolvingLoop(asyncio.SelectorEventLoop):
    """An event loop that looks names up in daemon threads.

    Those of the default executor are waited for at the end of the loop and of the process, past every deadline. A
    thread ends when the system's resolver gives up.
    """

    async def getaddrinfo(self, *args: Any, **options: Any) -> Any:
        found: Future[Any] = Future()
        found.set_running_or_notify_cancel()  # else a result after the deadline would be an error

        def look_up() -> None:
            try:
                found.set_result(socket.getaddrinfo(*args, **options))
            except Exception as error:
                found.set_exception(error)

        Thread(target=look_up, name="name lookup", daemon=True).start()
        return await asyncio.wrap_future(found)


async def _posted(url: str, body: str) -> str | None:
    """Post JSON; return None if it was taken, else the answer. Raises TimeoutError, OSError or ClientError."""
    from aiohttp import ClientSession, ClientTimeout

    limit = ClientTimeout(total=REQUEST_WITHIN_S)
    headers = {"Content-Type": "application/json"}
    async with (
        ClientSession(timeout=limit, trust_env=True) as session,
        session.post(url, data=body, headers=headers, allow_redirects=False) as answer,
    ):
        if answer.status < 300:
            return None
        text = (await answer.content.read(LOGGED_BYTES)).decode(errors="replace")
        return f"HTTP {answer.status}: {printable(text)}"


def _payload(alert: Alert) -> dict[str, object]:
    ends = alert.resolved_us / 1e6 if alert.resolved_us is not None else time.time() + STALE_S
    return {
        "labels": alert.labels(),
        "annotations": alert.annotations(),
        "startsAt": _iso(alert.opened_us / 1e6),
        "endsAt": _iso(ends),
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
