"""Defines the types of settings: how each is read from a text, and written. An invalid value raises `ValueError`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, PlainSerializer
from pydantic_settings import NoDecode

KAFKA_PORT = 9092


@dataclass(frozen=True, slots=True)
class ExchangeSelection:
    """The selection of exchanges that are sent or archived one by one: `off`, `all`, `errors`, `slower:MS` or `1/N`."""

    which: Literal["off", "all", "errors", "slower", "one_in"] = "off"
    slower_than_us: int = 0
    one_in: int = 1

    @classmethod
    def parse(cls, text: object) -> ExchangeSelection:
        """Return the selection that a text describes. Raises `ValueError`, which lists the accepted forms."""
        match re.fullmatch(r"(off|all|errors)|(?:slower:(\d+(?:\.\d+)?))|(?:1/([1-9]\d{0,11}))", str(text)):
            case None:
                raise ValueError("must be off, all, errors, slower:MILLISECONDS or 1/N")
            case found if found[2]:
                return cls("slower", slower_than_us=round(float(found[2]) * 1000))
            case found if found[3]:
                return cls("one_in", one_in=int(found[3]))
            case found:
                return cls(found[1])  # type: ignore[arg-type]  # the expression matches these texts only

    def chooses(self, *, failed: bool, latency_us: int | None) -> bool:
        """Return True if the result of an exchange meets the selection. With `1/N` any result does."""
        match self.which:
            case "off":
                return False
            case "errors":
                return failed
            case "slower":
                return latency_us is not None and latency_us >= self.slower_than_us
            case _:
                return True

    def __str__(self) -> str:
        match self.which:
            case "slower":
                return f"slower:{self.slower_than_us / 1000:g}"
            case "one_in":
                return f"1/{self.one_in}"
            case _:
                return self.which


_MOST_PORT, _IPV6 = 65535, 6


@dataclass(frozen=True, slots=True)
class ArchiveFilter:
    """The conditions that frames for the archive have to meet; an empty one is none.

    The first four are patterns as in shells. address: that of either end, with or without its port. connection: its
    conn_id or flow_id.
    """

    client: str = ""
    topic: str = ""
    api: str = ""
    workload: str = ""
    pid: str = ""
    address: str = ""
    connection: str = ""

    @classmethod
    def parse(cls, text: str) -> ArchiveFilter:
        """Return the filter that a text describes. Raises `ValueError`, which shows the accepted form."""
        parts = [part.strip().partition("=") for part in text.split(",") if part.strip()]
        given = {name: pattern for name, _, pattern in parts}
        if not given.keys() <= {*cls.__dataclass_fields__} or not all(given.values()) or len(given) < len(parts):
            raise ValueError(
                "must be client=PATTERN,topic=PATTERN,api=PATTERN,workload=PATTERN,pid=N,address=IP:PORT,connection=ID "
                "or a part of it"
            )
        return cls.of(given)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ArchiveFilter:
        """Return the filter with these conditions, as events write their values. Raises `ValueError` for a bad one."""
        if not given.get("pid", "0").isdecimal():
            raise ValueError("pid must be a number")
        if not re.fullmatch(r"[0-9a-fA-F]{16}", given.get("connection", "0" * 16)):
            raise ValueError("connection must be a conn_id or a flow_id, 16 hexadecimal digits")
        how = {"pid": lambda text: str(int(text)), "address": _as_in_events, "connection": str.lower}
        return cls(**{name: how.get(name, str)(text) for name, text in given.items()})

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name in self.__dataclass_fields__ if (value := getattr(self, name)))


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen on, written `host:port`, with brackets around an IPv6 address."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Return True if only this host can connect. Of all names, only `localhost` counts as loopback."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _as_in_events(address: str) -> str:
    """Return an IP address, with or without a port, as events write it. Raises `ValueError` for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]") or (host.count(":") and not host.endswith("]")):
        host, port = address, ""
    try:
        found = ipaddress.ip_address(host.strip("[]"))
        if not re.fullmatch(r"\d{0,5}", port) or int(port or 1) > _MOST_PORT:
            raise ValueError
    except ValueError:
        raise ValueError("address must be an IP address, such as 10.0.0.7, 10.0.0.7:40001 or [::1]:9092") from None
    found = getattr(found, "ipv4_mapped", None) or found
    if not port:
        return str(found)
    return f"[{found}]:{int(port)}" if found.version == _IPV6 else f"{found}:{int(port)}"


def _listen(value: object) -> object:
    found = re.fullmatch(r"(?:\[([^]]+)\]|([^:]+)):(\d{1,5})", str(value))
    if value == "off" or isinstance(value, Address):
        return value
    if not found or not 0 < int(found[3]) < 65536:
        raise ValueError("must be host:port, such as 127.0.0.1:9465 or [::1]:9465, or off")
    return Address(found[1] or found[2], int(found[3]))


def _ports(value: object) -> object:
    """Return `auto`, or the ports of a list or of a text with commas as an ascending tuple."""
    if value == "auto":
        return value
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    try:
        ports = sorted({int(str(part)) for part in parts})
    except ValueError:
        ports = []
    if not ports or not all(0 < port < 65536 for port in ports):
        raise ValueError("must be auto, or ports between 1 and 65535 separated by commas")
    return tuple(ports)


def _names(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _servers(servers: tuple[str, ...]) -> tuple[str, ...]:
    """Return each server with its port; the default is Kafka's own, as in kafka-python."""
    for server in servers:
        found = re.fullmatch(
            r"(?:(?:PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?(?:\[[^]]+\]|[^:/\[\]]+)(?::(\d{1,5}))?", server
        )
        if not found or not 0 < int(found[1] or KAFKA_PORT) < 65536:
            raise ValueError("must be host:port, such as kafka-1:9092 or [::1]:9092, several separated by commas")
    return tuple(server if re.search(r":\d+$", server) else f"{server}:{KAFKA_PORT}" for server in servers)


def _exchange_selection(value: object) -> object:
    # In YAML, such as the chart's values, the value of `requests: off` is false.
    if isinstance(value, ExchangeSelection):
        return value
    return ExchangeSelection.parse("off" if value is False else value)


Ports = Annotated[tuple[int, ...] | Literal["auto"], NoDecode, BeforeValidator(_ports)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)]
Servers = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names), AfterValidator(_servers)]
Listen = Annotated[Address | Literal["off"], NoDecode, BeforeValidator(_listen)]


def _netns(file: Path) -> Path:
    try:
        if file.stat().st_dev == Path("/proc/self/ns/net").stat().st_dev:
            return file
    except OSError:
        pass
    raise ValueError("must be the file of a network namespace, such as /proc/PID/ns/net")


Netns = Annotated[Path, AfterValidator(_netns)]


def _archive_filter(value: object) -> object:
    return value if isinstance(value, ArchiveFilter) else ArchiveFilter.parse(str(value))


Filter = Annotated[ArchiveFilter, NoDecode, BeforeValidator(_archive_filter), PlainSerializer(str)]
Requests = Annotated[ExchangeSelection, NoDecode, BeforeValidator(_exchange_selection), PlainSerializer(str)]


def written_size(size: ByteSize) -> str:
    """Return a number of bytes as text with a unit: 32 MiB, 195.3 KiB."""
    return size.human_readable(separator=" ").replace(".0 ", " ")
