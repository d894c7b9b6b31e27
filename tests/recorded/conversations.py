"""Defines the recorded conversations as data: which clients do what, step by step.

Each writes a few records to each of its topics, reads them back as a member of a group, and polls in vain for a while.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.java import SHORT_LIVED, java

RECORDS = 40
TOPICS = ("orders", "payments")
ROLES = ("produce", "consume")
Command = list[str]


@dataclass(frozen=True, slots=True)
class Lab:
    """The lab of a conversation: the broker's address, the Go clients' programs, a folder for reports."""

    bootstrap: str
    programs: Path
    directory: Path


Step = Callable[[Lab], list[Command]]  # commands that run at the same time


@dataclass(frozen=True, slots=True)
class Conversation:
    """Steps, the topics to create before, and settings of the broker."""

    steps: tuple[Step, ...]
    topics: tuple[str, ...] = TOPICS
    properties: Mapping[str, str] = field(default_factory=dict)


def _python(library: str, role: str, *settings: str) -> Callable[[Lab], Command]:
    def command(lab: Lab) -> Command:
        name = f"{library.replace('_', '-')}-{role}r"
        flags = {
            "--bootstrap": lab.bootstrap,
            "--client-id": name,
            "--topics": ",".join(TOPICS),
            "--group": f"{library}-group",
            "--records": str(RECORDS),
            "--rate": "8",
            "--report": str(lab.directory / f"{name}.json"),
        }
        command = [sys.executable, "-m", f"tests.lab.{library}_client", role]
        command += [part for flag in flags.items() for part in flag]
        return command + [part for setting in settings for part in ("--set", setting)]

    return command


def _go(*arguments: str) -> Step:
    program, *rest = arguments
    return lambda lab: [[str(lab.programs / program), lab.bootstrap, f"{program}-group", *rest, *TOPICS]]


def _java(main_class: str, *arguments: str, address: str = "--bootstrap-server") -> Callable[[Lab], Command]:
    return lambda lab: java(main_class, address, lab.bootstrap, *arguments, options=SHORT_LIVED)


def _at_once(*commands: Callable[[Lab], Command]) -> Step:
    return lambda lab: [command(lab) for command in commands]


def _java_produce(topic: str, *arguments: str) -> Callable[[Lab], Command]:
    flags = ("--topic", topic, "--num-records", str(RECORDS), "--throughput", "8", "--payload-monotonic")
    client_id = ("--command-property", "client.id=java-producer")
    return _java("org.apache.kafka.tools.ProducerPerformance", *flags, *arguments, *client_id)


def _java_consume(topic: str, *settings: str) -> Callable[[Lab], Command]:
    flags = ("--topic", topic, "--num-records", str(RECORDS), "--timeout", "30000", "--group", "java-group")
    properties = [
        part for setting in ("client.id=java-consumer", *settings) for part in ("--command-property", setting)
    ]
    return _java("org.apache.kafka.tools.ConsumerPerformance", *flags, *properties)


def _tools(*lines: str) -> tuple[Step, ...]:
    return tuple(_tool(*line.split()) for line in lines)


def _tool(name: str, *arguments: str) -> Step:
    main_class = name if name.startswith("kafka.") else f"org.apache.kafka.tools.{name}"
    return _at_once(_java(main_class, *arguments))


_COPIER = (
    "org.apache.kafka.tools.TransactionalMessageCopier",
    *(
        "--transactional-id",
        "copier",
        "--transaction-size",
        "12",
        "--consumer-group",
        "copiers",
        "--use-group-metadata",
    ),
    *("--input-topic", "orders", "--input-partition", "0", "--output-topic", "payments"),
)
_SHARE_CONSUMER = (
    "org.apache.kafka.tools.VerifiableShareConsumer",
    *("--topic", "orders", "--group-id", "sharers", "--max-messages", str(RECORDS)),
    *("--acknowledgement-mode", "sync", "--offset-reset-strategy", "earliest"),
)

CONVERSATIONS: dict[str, Conversation] = {
    "kafka-python": Conversation((_at_once(_python("kafka_python", "produce"), _python("kafka_python", "consume")),)),
    # Limited to the API versions of brokers of these releases, which tshark decodes.
    **{
        f"kafka-python-as-of-{release}": Conversation(
            (_at_once(*(_python("kafka_python", role, f"api_version={release}") for role in ROLES)),)
        )
        for release in ("0.11", "1.0", "1.1", "2.0", "2.1", "2.3", "2.4")
    },
    # Versions that no release has as the newest.
    **{
        f"kafka-python-limited-{release}": Conversation(
            (
                _at_once(
                    *(_python("kafka_python", role, f"api_version={release}", f"limits={limits}") for role in ROLES)
                ),
            )
        )
        for release, limits in (("0.11", "Fetch:4"), ("2.1", "Produce:4,Fetch:9"))
    },
    "kafka-python-acks-0": Conversation((_at_once(_python("kafka_python", "produce", "acks=0")),)),
    "librdkafka": Conversation((_at_once(_python("librdkafka", "produce"), _python("librdkafka", "consume")),)),
    "librdkafka-consumer-protocol": Conversation(
        (_at_once(_python("librdkafka", "produce"), _python("librdkafka", "consume", "group.protocol=consumer")),)
    ),
    "java": Conversation((_at_once(_java_produce("orders"), _java_consume("orders")),)),
    "java-consumer-protocol": Conversation(
        (_at_once(_java_produce("orders"), _java_consume("orders", "group.protocol=consumer")),)
    ),
    "java-transactions": Conversation(
        (
            _at_once(_java_produce("orders", "--transactional-id", "performer", "--transaction-duration-ms", "1000")),
            _at_once(_java(*_COPIER, address="--broker-list")),
            _at_once(_java_consume("payments", "isolation.level=read_committed")),
        )
    ),
    "java-share-consumer": Conversation((_at_once(_java_produce("orders"), _java(*_SHARE_CONSUMER)),)),
    "java-admin": Conversation(
        _tools(
            "TopicCommand --create --topic clicks --partitions 3",
            "TopicCommand --alter --topic clicks --partitions 4",
            "TopicCommand --describe --topic clicks",
            "kafka.admin.ConfigCommand --alter --topic clicks --add-config retention.ms=100000",
            "ProducerPerformance --topic clicks --num-records 10 --throughput 100 --payload-monotonic",
            "ConsumerPerformance --topic clicks --num-records 10 --group classics --timeout 30000",
            "ConsumerPerformance --topic clicks --num-records 10 --group moderns --timeout 30000"
            " --command-property group.protocol=consumer",
            "GetOffsetShell --topic clicks",
            "consumer.group.ConsumerGroupCommand --describe --all-groups --members --verbose",
            "consumer.group.ConsumerGroupCommand --reset-offsets --group classics --topic clicks"
            " --to-earliest --execute",
            "consumer.group.ConsumerGroupCommand --delete-offsets --group classics --topic clicks",
            "consumer.group.ConsumerGroupCommand --delete --group classics",
            "consumer.group.ShareGroupCommand --list",
            "streams.StreamsGroupCommand --list",
            "TransactionsCommand list",
            "TransactionsCommand describe-producers --topic clicks --partition 0",
            "MetadataQuorumCommand describe --status",
            "FeatureCommand describe",
            "reassign.ReassignPartitionsCommand --list",
            "LeaderElectionCommand --election-type preferred --topic clicks --partition 0",
            "AclCommand --list",
            "TopicCommand --delete --topic clicks",
        ),
        topics=(),
        properties={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        },
    ),
    "franz-go": Conversation((_go("franz", "classic"),)),
    "franz-go-consumer-protocol": Conversation((_go("franz", "next"),)),
    "sarama": Conversation((_go("sarama"),)),
    "segmentio": Conversation((_go("segmentio"),)),
}
