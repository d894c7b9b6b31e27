"""Connections to the server: their limits in number and time, which hold before a client is authorized.

They record whether a client has shown a certificate; whether it needs one is the matter of guard.py.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import suppress

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from kafka_probe.peer_limits import network_of

CERTIFIED = "certified"
"""Key in a request's `state`: True if its client has shown a certificate, which TLS has verified."""
MOST = 32
AT_ONCE = MOST // 4
"""Most connections accepted per turn of the loop: a request that came with one is read before others displace it."""
REQUEST_BYTES, REQUEST_LINES = 1 << 14, 64
"""Most bytes and lines of a request: h11 limits only the bytes of requests that arrive in parts."""
WRITE_BUFFER_BYTES = 1 << 14
"""Bytes of answers in a connection's buffer above which a handler waits."""
REQUEST_TIMEOUT_S = 10.0
"""Time for the request to arrive. Its response has until twice this time after the connection began."""
UNREAD_S = 3.0
"""After a close, the kernel may drop the rest once the client has taken nothing for this long."""


class _AcceptedSocket(socket.socket):
    """An accepted socket. After its close the kernel drops what the client does not take, see UNREAD_S."""

    def close(self) -> None:
        with suppress(OSError):  # it is closed already
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(UNREAD_S * 1000))
        super().close()


class Listener(socket.socket):
    """A listening socket that keeps at most MOST connections: beyond that it closes one for each new one.

    If a network, an IPv4 address or an IPv6 /64, has more than an eighth of them, it closes the oldest connection of
    the network that has most, otherwise the oldest of all. So silent clients of fewer than eight networks do not block
    others. An endless TLS handshake counts like any other connection. When very many clients connect at once, a
    connection that is being answered may be closed.
    """

    def __init__(self, fileno: int) -> None:
        super().__init__(fileno=fileno)
        self._open: list[tuple[str, socket.socket]] = []  # with their networks, oldest first
        self._accepted = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self._accepted == AT_ONCE:
            self._accepted = 0
            raise BlockingIOError  # the loop accepts again in its next turn
        self._accepted += 1
        accepted, address = super().accept()
        connection = _AcceptedSocket(fileno=accepted.detach())
        opened = (network_of(address[0]), connection)
        self._open = [*(older for older in self._open if older[1].fileno() >= 0), opened]
        if len(self._open) > MOST:
            ((most, count),) = Counter(network for network, _ in self._open).most_common(1)
            displaced = next(each for each in self._open if each[0] == most or count <= MOST // 8)
            self._open.remove(displaced)
            with suppress(OSError):  # the peer has already closed it
                displaced[1].shutdown(socket.SHUT_RDWR)
        return connection, address


class HttpConnection(H11Protocol):
    """A connection for one HTTP request, which ends if that is long or late, or its response is not read.

    A client that sends a second request ends its connection: requests that wait would take memory.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's signature
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._socket: socket.socket = transport.get_extra_info("socket")  # closed TLS transports do not have it
        self._bytes = self._lines = 0  # of the request
        self.app_state = {**self.app_state, CERTIFIED: bool(transport.get_extra_info("peercert"))}
        self._wait(None)

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        self._lines += data.count(b"\n")
        if self._bytes > REQUEST_BYTES or self._lines > REQUEST_LINES:
            self.send_400_response(f"A request may have {REQUEST_BYTES} bytes and {REQUEST_LINES} lines.\n")
            return
        if self.conn.their_state is h11.SEND_BODY or self.cycle is None:
            super().data_received(data)
            unread, _ = self.conn.trailing_data
        else:
            unread = data
        if unread.strip(b"\r\n") and self.cycle is not None:  # line breaks may follow a request
            self.abort()

    def eof_received(self) -> bool | None:  # type: ignore[override]  # uvicorn's returns nothing
        """Send the response of a client that has nothing more to send. TLS ends here in any case."""
        return self.transport.get_extra_info("sslcontext") is None and self.cycle is not None

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state is h11.IDLE:
            super().send_400_response(msg)
        else:  # a response has begun: h11 accepts no other
            self.abort()

    def abort(self) -> None:
        """End the connection, even if it is being closed and its peer takes no part in that."""
        if self.transport.is_closing():
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timeout.cancel()  # the timer would keep this object alive until it fires
        super().connection_lost(exc)

    def _wait(self, last: RequestResponseCycle | None) -> None:
        self._timeout = self.loop.call_later(REQUEST_TIMEOUT_S, self._end_idle, last)

    def _end_idle(self, last: RequestResponseCycle | None) -> None:
        if self.transport.is_closing() or self.cycle is last:
            self.abort()
        else:
            self._wait(self.cycle)
