"""Sends events to a Kafka topic as NDJSON: many events per record, keyed by `agent_id`, which keeps an agent's order.

The records of one batch are sent together, since one at a time would take a round trip each. kafka-python retries them
idempotently while the brokers are unreachable, so events are neither reordered nor duplicated. Meanwhile the outbox
keeps further events, in memory and on disk, within its bounds. If the brokers refuse records that were sent together,
those that they do not have are sent again, one at a time: only then events may follow later ones, or come twice. A
record that is too large for the topic is sent in parts, and later records are smaller from the start. A record that the
brokers refuse for another reason, or a single event that is too large, is counted and dropped. The producer of a
refused record is replaced, because its sequence numbers cannot be trusted after a failure.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import ByteSize

from kafka_probe.peer_limits import peer_of_event
from kafka_probe.setting_types import written_size
from kafka_probe.sinks.batch import BATCH_BYTES, RECORD_BYTES, Batch, batches
from kafka_probe.sinks.outbox import RETRY_S, Outbox, Worker, encode
from kafka_probe.sinks.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kafka_probe.config import Config
    from kafka_probe.events import Event

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS = 10_000
UNACKNOWLEDGED_S = 5.0
"""Time between warnings that a batch has no acknowledgement."""
MAX_RECONNECT_BACKOFF_MS = 5_000
_TOGETHER_MS = 5  # time for further records of a batch, after which kafka-python sends without a flush
_FLUSH_S = 1.0  # most time to wait in a flush, by batch of the producer; `_is_answered` goes on waiting
# A week: in practice no limit, and below the 2**31 ms that epoll accepts.
DELIVERY_TIMEOUT_MS = 7 * 24 * 3600 * 1000
MAX_RECORD_BYTES = 64 << 20
# The pipeline uses record timestamps as its clock. With Kafka's default, CreateTime, any writer could set them.
_TOPIC_SETTINGS = {"message.timestamp.type": "LogAppendTime"}


class KafkaSink:
    """A `Sink` that writes to `config.topic` at `config.bootstrap_servers`. It connects in its own thread.

    Raises `StartError` if `config.spool_dir` cannot be used.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._spool = Spool(config.spool_dir, config.spool_bytes) if config.spool_dir else None
        self._producer: Any = None
        self._topic_ensured = False
        self._record_bytes = RECORD_BYTES
        self._stopping = threading.Event()
        self._warned: dict[str, float] = {}
        self._trouble: str | None = "the brokers have not received any events yet"
        self._client_errors = _LastMessages()
        self._outbox = Outbox(config.sink_buffer_bytes, self._spool)
        self._worker = Worker("kafka-sink", self._outbox, self._deliver)

    def send(self, events: Sequence[Event]) -> None:
        if events:
            self._worker.start()
            lines, peers = [encode(event) for event in events], [peer_of_event(event) for event in events]
            self._outbox.put(lines, str(events[0]["agent_id"]), peers, [event["kind"] for event in events])

    def close(self, timeout_s: float) -> None:
        self._worker.stop(timeout_s)
        self._stopping.set()
        self._worker.join(RETRY_S)
        self._drop_producer()
        self._client_errors.detach()
        if self._spool:
            self._spool.close()

    def losses(self) -> Mapping[str, int]:
        return dict(self._outbox.lost)

    def counters(self) -> Mapping[str, int]:
        return {
            "sink_events": self._outbox.events_delivered,
            "sink_bytes": self._outbox.bytes_delivered,
            "sink_waiting_bytes": self._outbox.waiting_bytes,
            "sink_spooled_bytes": self._outbox.spooled_bytes,
            "sink_spool_failures": self._spool.failures if self._spool else 0,
        }

    def trouble(self) -> str | None:
        return self._trouble

    def _deliver(self, batch: Batch) -> None:
        """Send the batch, in parts if needed, and finish it. If the sink stops first, the outbox keeps the batch."""
        from kafka import errors

        too_large = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
        parts = self._split([batch])
        lost: list[tuple[Batch, str]] = []
        together = True
        while parts:
            answers = self._send([*parts] if together else [parts[0]])
            if answers is None:
                return
            refused = [(part, error) for part, error in zip(parts, answers, strict=False) if error]
            for _ in answers:
                parts.popleft()
            if not refused:
                self._recovered()
                continue
            part, error = refused[0]
            if len(answers) > 1:
                self._drop_producer()
                together = False
                parts.extendleft(part for part, _ in reversed(refused))
            elif not isinstance(error, too_large):
                lost.append((part, self._given_up(error)))
            elif part.events > 1:
                self._drop_producer()
                self._record_bytes = len(part.lines) // 2
                parts = self._split([part, *parts])
            else:
                self._drop_producer()
                lost.append((part, "sink_refused"))
                self._warn(
                    "large",
                    f"An event of {written_size(ByteSize(len(part.lines)))} is lost and counted: it is too large "
                    f"for topic {self._config.topic} ({_text(error)}). Raise the topic's max.message.bytes.",
                )
        self._outbox.finish(batch, lost)

    def _split(self, parts: Iterable[Batch]) -> deque[Batch]:
        """Return the same events in records of the size that the topic is known to accept."""
        return deque(
            smaller
            for part in parts
            for smaller in batches(part.lines.splitlines(keepends=True), self._record_bytes, part.key)
        )

    def _send(self, records: Sequence[Batch]) -> list[Exception | None] | None:
        """Send records without a time limit, and return the error of each that was sent.

        These are the first ones, at least one; None instead of an error: the brokers have it. Return no list if the
        sink stops first.
        """
        from kafka import errors

        while not self._stopping.is_set():
            results: list[Any] = []
            try:
                if self._producer is None:
                    self._producer = self._connect()
                producer = self._producer  # the thread that stops the sink drops it
                for one in records:
                    result = producer.send(self._config.topic, value=one.lines, key=one.key.encode())
                    results.append(result)
            except (errors.RetriableError, OSError) as error:
                if not results:
                    self._warn_retrying(error)
                    self._stopping.wait(RETRY_S)
                    continue
            except errors.KafkaError as error:
                if not results:
                    return [error]
            except Exception as error:  # a fault in kafka-python: if nothing was sent, retry with a new producer
                if not results:
                    self._warn_retrying(error)
                    self._drop_producer()
                    self._stopping.wait(RETRY_S)
                    continue
            # UnknownError: kafka-python has split a batch that is too large, and sends the parts by itself.
            with suppress(errors.KafkaTimeoutError, errors.UnknownError):
                producer.flush(_FLUSH_S)
            if not all(map(self._is_answered, results)):
                return None
            answers = [result.exception for result in results]
            # The producer of a sink that stops was closed: the outbox keeps the batch.
            return None if any(answers) and self._stopping.is_set() else answers
        return None

    def _is_answered(self, result: Any) -> bool:
        """Wait for the answer to a record. Return False if the sink stops first."""
        from kafka import errors

        done = threading.Event()
        result.add_both(lambda _: done.set())
        while not done.wait(UNACKNOWLEDGED_S):
            if self._stopping.is_set():
                return False
            self._warn_retrying(errors.KafkaTimeoutError("no acknowledgement"))
        return True

    def _connect(self) -> Any:
        from kafka import KafkaAdminClient, KafkaProducer

        producer = _open(
            KafkaProducer,
            self._config,
            acks="all",
            enable_idempotence=True,
            compression_type="zstd",
            batch_size=2 * BATCH_BYTES,  # with the overhead of each record
            linger_ms=_TOGETHER_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            max_block_ms=CONNECT_TIMEOUT_MS,
            max_request_size=MAX_RECORD_BYTES,
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )
        if not self._topic_ensured:
            try:
                admin = _open(KafkaAdminClient, self._config)
                try:
                    self._create_topic(admin)
                finally:
                    admin.close()
            except Exception:
                producer.close(0)
                raise
            self._topic_ensured = True
        return producer

    def _create_topic(self, admin: Any) -> None:
        from kafka import errors

        topic = self._config.topic
        try:
            (found,) = admin.describe_topics([topic])
            if not found["error_code"]:
                return
            settings = {"num_partitions": self._config.topic_partitions, "configs": _TOPIC_SETTINGS}
            admin.create_topics({topic: settings}, wait_for_metadata=True)
        except errors.TopicAlreadyExistsError:
            pass
        except errors.KafkaError as error:
            if isinstance(error, errors.RetriableError):
                raise
            # The topic may exist nevertheless; the first write shows it.
            self._warn("topic", f"Topic {topic} cannot be created ({_text(error)}); the agent uses it if it exists.")

    def _given_up(self, error: Exception) -> str:
        """Drop the producer of a refused record, and return the reason under which the record's loss is counted."""
        from kafka import errors

        self._trouble = "the topic refuses the events; see the log"
        self._warn("refused", f"Events are lost and counted: topic {self._config.topic} refuses them ({_text(error)}).")
        self._drop_producer()
        self._stopping.wait(RETRY_S)
        return "sink_refused" if isinstance(error, errors.BrokerResponseError) else "sink_send_failed"

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(Exception):
                producer.close(0)
            # If its flush times out or fails, close() returns early and the producer's thread would go on sending.
            producer._sender.force_close()

    def _warn_retrying(self, error: Exception) -> None:
        config = self._config
        self._trouble = "the brokers do not accept events; see the log"
        # kafka-python often reports a refused password as a closed connection, so the message contains the user, too.
        user = f" as {config.sasl_plain_username}" if config.sasl_plain_username else ""
        protocol = config.security_protocol or "PLAINTEXT"
        on_disk = f" and {written_size(config.spool_bytes)} in {config.spool_dir}" if config.spool_dir else ""
        self._warn(
            "retrying",
            f"Brokers {','.join(config.bootstrap_servers)} do not accept events ({protocol}{user}: "
            f"{self._client_errors.last or _text(error)}); retrying. Check address and security settings. Up to "
            f"{written_size(config.sink_buffer_bytes)} of events wait in memory{on_disk}; further events are lost and "
            "counted.",
            again_s=math.inf,
        )

    def _warn(self, kind: str, sentence: str, again_s: float = 60.0) -> None:
        now = time.monotonic()
        if kind not in self._warned or now - self._warned[kind] >= again_s:
            self._warned[kind] = now
            log.warning(sentence)

    def _recovered(self) -> None:
        self._trouble = None
        # "large" is about single events: it is not a state that ends.
        if ended := self._warned.keys() - {"large"}:
            for kind in ended:
                del self._warned[kind]
            self._client_errors.last = ""
            log.info("Topic %s accepts events again.", self._config.topic)


class _LastMessages(logging.Handler):
    """Keeps the last error message of kafka-python, which logs every attempt to connect; the sink logs one warning."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last = ""
        self._logger = logging.getLogger("kafka")
        self._logger.addHandler(self)
        self._logger.setLevel(logging.ERROR)
        self._logger.propagate = log.isEnabledFor(logging.DEBUG)

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        # Messages about the bootstrap as a whole, and timeouts after another error, hide why an attempt failed.
        if not message.startswith("Bootstrap") and not (self.last and message.endswith("timed out")):
            self.last = re.sub(r"^<.*?>: ", "", message)

    def detach(self) -> None:
        self._logger.removeHandler(self)


def reach(config: Config) -> str:
    """Connect to the brokers and return the state of the topic as text. Raises `ConnectionError` without an answer."""
    from kafka import KafkaAdminClient, errors

    client_errors = _LastMessages()
    try:
        admin = _open(KafkaAdminClient, config)
        try:
            topics = admin.list_topics()
        finally:
            admin.close()
    except (errors.KafkaError, OSError) as error:
        raise ConnectionError(client_errors.last or _text(error)) from None
    finally:
        client_errors.detach()
    return f"topic {config.topic} exists" if config.topic in topics else f"topic {config.topic} will be created"


def _open(kind: Any, config: Config, **settings: Any) -> Any:
    """Return a connected client of the class `kind`."""
    from kafka.net.compat import KafkaNetClient

    opened: list[Any] = []

    def open_network(**network_settings: Any) -> Any:
        opened.append(KafkaNetClient(**network_settings))
        return opened[0]

    try:
        return kind(
            bootstrap_servers=list(config.bootstrap_servers),
            client_id=f"kafka-probe-agent-{config.node}",
            bootstrap_timeout_ms=CONNECT_TIMEOUT_MS,
            reconnect_backoff_max_ms=MAX_RECONNECT_BACKOFF_MS,
            kafka_client=open_network,
            **settings,
            **config.security(),
        )
    except Exception:
        # The constructors do not close their sockets and threads if the brokers are unreachable.
        for network in opened:
            network.close()
        raise


def _text(error: Exception) -> str:
    """Return the error's name, and its text unless the text repeats the request and response."""
    name, text = type(error).__name__, str(error.args[0]) if error.args else ""
    return name if not text or "Request(" in text else f"{name}: {text}"
