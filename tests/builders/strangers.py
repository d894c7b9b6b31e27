"""Lists the first bytes of other protocols and how the capture must classify them."""

from __future__ import annotations

import ssl
from contextlib import suppress

from kafka_probe.capture.sample import Protocol

HTTP = b"GET / HTTP/1.1\r\nHost: localhost:9092\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n"


# A ClientHello padded to 512 bytes, as OpenSSL and browsers send it: read as Kafka, a Fetch request of version 1.
PADDED_HELLO = bytes.fromhex("1603010200 010001fc 0303") + bytes(507)


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


FIRST_WORDS = {
    "HTTP": (HTTP, Protocol.UNKNOWN),
    "TLS": (client_hello(), Protocol.TLS),
    "TLS, padded": (PADDED_HELLO, Protocol.TLS),
    "2 GB": ((0x7FFFFFFF).to_bytes(4, "big") + bytes.fromhex("0012000300000001") + bytes(20), Protocol.UNKNOWN),
    "1 GiB": ((1 << 30).to_bytes(4, "big") + bytes.fromhex("0012000300000001") + bytes(20), Protocol.UNKNOWN),
    "a negative length": (b"\xff" * 20, Protocol.UNKNOWN),
    "zeros": (bytes(64), Protocol.UNKNOWN),
    "an API that does not exist": (bytes.fromhex("00000020 7000 0000 00000001") + bytes(24), Protocol.UNKNOWN),
    "a version that does not exist": (bytes.fromhex("00000020 0003 0063 00000001") + bytes(24), Protocol.UNKNOWN),
}
