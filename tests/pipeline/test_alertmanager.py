"""Delivery to a real Alertmanager that is up, down, or restarted without its state."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread, current_thread

import pytest
from pyspark.sql import Row

from kafka_probe.errors import StartError
from kafka_probe_pipeline import alertmanager
from kafka_probe_pipeline.alertmanager import Alertmanager
from kafka_probe_pipeline.alerts import Alert, alert
from kafka_probe_pipeline.storms import SCHEMA
from tests.lab.alertmanager import Receiver
from tests.lab.processes import wait_until

STOPPED_WITHIN_S = 5.0  # half of the bound that holds where no test shortens it


def storm(name: str) -> Alert:
    """Return the alert of an idle storm that began a minute ago."""
    began = round((time.time() - 60) * 1e6)
    facts = {
        "id": name,
        "kind": "idle_disconnects",
        "subject": "middlebox_silent_drop",
        "state": "active",
        "opened_us": began,
        "count": 300,
        "population": 400,
        "share": 0.75,
        "scope": "broker 10.0.0.9:9092",
        "idle_us": 30_000_000,
        "both_ends": 290,
        "evidence": "what the client sent was never acknowledged",
        "workloads": [Row(count=200, name="java team/orders-1")],
    }
    return alert(Row(**{column: facts.get(column) for column in SCHEMA.names}))


def resolved(one: Alert) -> Alert:
    return replace(one, resolved=True, resolved_us=round(time.time() * 1e6))


def named(receiver: Receiver) -> list[str]:
    return sorted(one["labels"]["storm"] for one in receiver.alerts())


def test_without_its_package_the_job_does_not_start_and_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(StartError, match=r"pip install '\.\[alertmanager\]'"):
        Alertmanager("http://127.0.0.1:9093")


def test_an_alert_stands_there_with_its_cause_and_remedy_until_it_is_resolved(tmp_path: Path) -> None:
    one = storm("a")
    with Receiver(tmp_path / "am") as receiver, Alertmanager(receiver.url) as sender:
        sender.send([one])
        wait_until(lambda: named(receiver) == ["a"], "the alert")
        (there,) = receiver.alerts()
        assert there["labels"]["alertname"] == "KafkaIdleDisconnectStorm"
        assert there["annotations"]["summary"].startswith("300 connections closed after 30.0 s of silence")
        assert "connections.max.idle.ms of at most 24000" in there["annotations"]["remedy"]
        assert there["annotations"]["workloads"] == "java team/orders-1 (200)"
        sender.send([resolved(one)])
        wait_until(lambda: named(receiver) == [], "its end")


def test_what_could_not_be_delivered_arrives_when_the_receiver_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver(tmp_path / "am")
    one, other = storm("a"), storm("b")
    with Alertmanager(receiver.url) as sender, caplog.at_level("INFO"):
        sender.send([one, other])
        wait_until(lambda: "does not accept alerts" in caplog.text, "the first attempt")
        sender.send([resolved(other)])
        with receiver:
            wait_until(lambda: named(receiver) == ["a"], "the alert that is not over")
            wait_until(lambda: "accepts alerts again" in caplog.text, "the log to report it")
    own = [record.message for record in caplog.records if record.name == "kafka_probe_pipeline"]  # not py4j's
    accepts = ["accepts alerts again" in message for message in own]
    assert accepts == [bool(number % 2) for number in range(len(accepts))]


def test_one_that_forgot_is_notified_again_before_the_alert_would_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alertmanager, "RENEW_S", 0.2)
    with Receiver(tmp_path / "am") as receiver, Alertmanager(receiver.url) as sender:
        sender.send([storm("a")])
        wait_until(lambda: named(receiver) == ["a"], "the alert")
        receiver.stop()
        receiver.start()
        wait_until(lambda: named(receiver) == ["a"], "the alert once more")


def test_the_end_of_the_job_delivers_the_last_alerts(tmp_path: Path) -> None:
    with Receiver(tmp_path / "am") as receiver:
        with Alertmanager(receiver.url) as sender:
            sender.send([storm("a")])
        assert named(receiver) == ["a"]


@dataclass(slots=True)
class Trickle:
    """A TCP server that sends the beginning of an answer, then a byte every 50 ms without end."""

    beginning: bytes
    requests: int = 0
    url: str = ""
    ended: Event = field(default_factory=Event)

    def serve(self, listening: socket.socket) -> None:
        while True:
            try:
                peer, _ = listening.accept()
            except OSError:
                return
            with peer, suppress(OSError):
                peer.recv(65536)
                self.requests += 1
                peer.sendall(self.beginning)
                while not self.ended.wait(0.05):
                    peer.sendall(b"x")


@contextmanager
def trickling(beginning: bytes) -> Iterator[Trickle]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Trickle(beginning, url=f"http://127.0.0.1:{listening.getsockname()[1]}")
        thread = Thread(target=server.serve, args=(listening,))
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("beginning", [b"HTTP/1.1 200 ", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_receiver_that_answers_a_byte_at_a_time_holds_up_neither_the_alerts_nor_the_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, beginning: bytes
) -> None:
    monkeypatch.setattr(alertmanager, "REQUEST_WITHIN_S", 0.3)
    monkeypatch.setattr(alertmanager, "RETRY_S", 0.1)
    with trickling(beginning) as slow:
        with Alertmanager(slow.url) as sender:
            sender.send([storm("a")])
            wait_until(lambda: slow.requests >= 2, "the second attempt")
            stopping_s = time.monotonic()
        assert time.monotonic() - stopping_s < STOPPED_WITHIN_S
    assert f"{slow.url} does not accept alerts (no complete response within 0.3 s)" in caplog.text


@contextmanager
def hanging_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Thread]]:
    """Let the system's name lookups hang for the duration of the block; yield the threads that wait for them."""
    asking: list[Thread] = []
    ended = Event()

    def getaddrinfo(*_: object, **__: object) -> list[object]:
        asking.append(current_thread())
        ended.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    try:
        yield asking
    finally:
        ended.set()
        for thread in asking:
            thread.join()


def test_a_resolver_that_hangs_holds_up_neither_the_alerts_nor_the_stop_nor_the_exit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(alertmanager, "REQUEST_WITHIN_S", 0.3)
    monkeypatch.setattr(alertmanager, "RETRY_S", 0.1)
    with hanging_resolver(monkeypatch) as asking:
        with Alertmanager("http://alertmanager.example:9093") as sender:
            sender.send([storm("a")])
            wait_until(lambda: len(asking) >= 2, "the second attempt", timeout_s=10)
        assert not sender._thread.is_alive()
        assert all(thread.daemon for thread in asking)  # the interpreter does not wait for them
    assert "does not accept alerts (no complete response within 0.3 s)" in caplog.text


def test_an_error_that_nobody_expected_is_logged_once_and_the_alerts_are_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(alertmanager, "RETRY_S", 0.1)
    bugs, payload = [RuntimeError("a bug")] * 2, alertmanager._payload

    def failing_twice(one: Alert) -> dict[str, object]:
        if bugs:
            raise bugs.pop()
        return payload(one)

    monkeypatch.setattr(alertmanager, "_payload", failing_twice)
    with Receiver(tmp_path / "am") as receiver, Alertmanager(receiver.url) as sender:
        sender.send([storm("a")])
        wait_until(lambda: named(receiver) == ["a"], "the alert")
    assert caplog.text.count("Traceback") == 1


def test_the_stop_is_bounded_where_a_request_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alertmanager, "REQUEST_WITHIN_S", 3600)
    monkeypatch.setattr(alertmanager, "STOP_WITHIN_S", 0.1)
    with trickling(b"") as slow:
        with Alertmanager(slow.url) as sender:
            sender.send([storm("a")])
            wait_until(lambda: slow.requests > 0, "the request")
            stopping_s = time.monotonic()
        assert time.monotonic() - stopping_s < STOPPED_WITHIN_S


def test_what_a_receiver_answers_is_text_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    answer = b"HTTP/1.1 400 no\r\nContent-Length: 9999\r\n\r\n\x1b[2J\nFAKE LOG LINE\r"
    with trickling(answer) as rude, Alertmanager(rude.url) as sender:
        sender.send([storm("a")])
        wait_until(lambda: "does not accept alerts" in caplog.text, "the failure")
        assert r"(HTTP 400: \x1b[2J\nFAKE LOG LINE\r)" in caplog.messages[0]
        assert not any(ord(character) < 32 for message in caplog.messages for character in message)


@pytest.mark.parametrize(("byte", "shown"), [(b"x", "x" * 200), (b"\x1b", r"\x1b" * 63 + r"\x1" + "…")])
def test_the_log_has_200_bytes_of_what_a_receiver_answers(
    caplog: pytest.LogCaptureFixture, byte: bytes, shown: str
) -> None:
    answer = b"HTTP/1.1 400 no\r\nContent-Length: 9999\r\n\r\n" + byte * 1000
    with trickling(answer) as rude, Alertmanager(rude.url) as sender:
        sender.send([storm("a")])
        wait_until(lambda: "does not accept alerts" in caplog.text, "the failure")
    assert f"(HTTP 400: {shown})" in caplog.messages[0]
