"""The server with TLS: certificates, which may change, and clients that fail or leave in the middle."""

from __future__ import annotations

import asyncio.sslproto
import gc
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from kafka_probe.config import load
from kafka_probe.errors import UsageError
from kafka_probe.server import http_connection
from kafka_probe.server.server import Server
from kafka_probe.setting_types import Address
from tests.builders.certificates import Authority, an_authority, openssl
from tests.builders.events import flow
from tests.builders.strangers import client_hello
from tests.lab.agent_server import PATHS, serving, unread_bytes
from tests.lab.processes import free_port, wait_until

TOKEN = "0123456789abcdef"


def test_over_tls_the_token_travels_hidden(authority: Authority) -> None:
    trusting = ssl.create_default_context(cafile=authority.certificate)
    with serving(listen_certfile=authority.sign("server"), listen_token=TOKEN) as served:
        assert served.get("/metrics", TOKEN, trusting).status == 200
        assert served.get("/metrics", tls=trusting).status == 401
        with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
            served.get("/metrics", TOKEN, ssl.create_default_context())


def test_only_clients_with_a_certificate_of_the_authority_get_more_than_health(
    authority: Authority, tmp_path: Path
) -> None:
    nobody, known, stranger = (ssl.create_default_context(cafile=authority.certificate) for _ in range(3))
    known.load_cert_chain(authority.sign("prometheus"))
    stranger.load_cert_chain(an_authority(tmp_path).sign("prometheus"))
    with serving(listen_certfile=authority.sign("server"), listen_clientcafile=authority.certificate) as served:
        assert {path: served.get(path, tls=known).status for path in PATHS} == dict.fromkeys(PATHS, 200)
        assert {path: served.get(path, tls=nobody).status for path in PATHS} == dict.fromkeys(PATHS, 403)
        assert [served.get(path, tls=nobody).text for path in ("/healthz", "/readyz")] == ["ok\n"] * 2
        with pytest.raises((URLError, ssl.SSLError, ConnectionResetError)):
            served.get("/healthz", tls=stranger)


def test_a_certificate_does_not_replace_the_token(authority: Authority) -> None:
    known = ssl.create_default_context(cafile=authority.certificate)
    known.load_cert_chain(authority.sign("prometheus"))
    certificate = authority.sign("server")
    with serving(listen_token=TOKEN, listen_certfile=certificate, listen_clientcafile=authority.certificate) as served:
        assert (served.get("/metrics", tls=known).status, served.get("/metrics", TOKEN, known).status) == (401, 200)


def test_a_renewed_certificate_is_shown_and_one_that_does_not_fit_its_key_is_not(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    other = an_authority(tmp_path)
    file = tmp_path / "listen.pem"
    file.write_bytes(authority.sign("server").read_bytes())
    trusting = ssl.create_default_context(cafile=other.certificate)
    with serving(listen_certfile=file) as served:
        with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
            served.get("/healthz", tls=trusting)
        file.write_bytes(other.sign("server").read_bytes())
        wait_until(lambda: "Certificates of --listen reloaded." in caplog.text, "the new one to be read")
        assert served.get("/healthz", tls=trusting).status == 200
        file.write_bytes(other.certificate.read_bytes())
        wait_until(lambda: "the server keeps the old ones. listen_certfile" in caplog.text, "the warning")
        assert served.get("/healthz", tls=trusting).status == 200


def test_the_kernel_lets_go_of_what_clients_with_tls_do_not_read(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusting = ssl.create_default_context(cafile=authority.certificate)
    with serving(listen_certfile=authority.sign("server")) as served, ExitStack() as clients:
        served.server.send([flow(api=f"Api{n}") for n in range(2000)])
        wait_until(lambda: len(served.get("/metrics", tls=trusting).text) > 1 << 20, "a long page")
        monkeypatch.setattr(http_connection, "UNREAD_S", 1.0)
        monkeypatch.setattr(http_connection, "REQUEST_TIMEOUT_S", 1.0)
        for _ in range(4):
            peer = clients.enter_context(served.connect_slowly(2048))
            reader = clients.enter_context(trusting.wrap_socket(peer, server_hostname="127.0.0.1"))
            reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: sum(size > 0 for size in unread_bytes(served)) == 4, "answers that nobody reads")
        wait_until(lambda: sum(unread_bytes(served)) == 0, "the kernel to let go of them")


def test_failed_handshakes_leave_nothing_in_memory(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a garbage collection, which may come much later."""
    monkeypatch.setattr(http_connection, "MOST", 3)
    gc.collect()
    gc.disable()
    try:
        with serving(listen_certfile=authority.sign("server")) as served:
            for hello in (b"", b"nonsense", client_hello()) * 10:
                with socket.create_connection(("127.0.0.1", served.port)) as peer:
                    peer.sendall(hello)
            trusting = ssl.create_default_context(cafile=authority.certificate)
            assert served.get("/healthz", tls=trusting).status == 200
            wait_until(lambda: connections_with_tls() <= 3, "the failed ones to be gone")
    finally:
        gc.enable()


def connections_with_tls() -> int:
    return sum(isinstance(each, asyncio.sslproto.SSLProtocol) for each in gc.get_objects())


def test_beyond_this_host_a_certificate_is_enough(authority: Authority) -> None:
    certificates: dict[str, Any] = {
        "listen_certfile": authority.sign("server"),
        "listen_clientcafile": authority.certificate,
    }
    with serving("0.0.0.0", **certificates):
        pass


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"listen_keyfile": "key"}, "listen_keyfile has no effect without listen_certfile."),
        ({"listen_clientcafile": "ca.pem"}, "listen_clientcafile has no effect without listen_certfile."),
        ({"listen_certfile": "nowhere"}, "listen_certfile nowhere cannot be used with its key: .*No such file"),
        ({"listen_certfile": "ca.pem"}, "listen_certfile ca.pem cannot be used with its key: "),
        (
            {"listen_certfile": "locked.pem"},
            "listen_certfile locked.pem cannot be used with its key: the key has a pass",
        ),
        ({"listen_certfile": "s.pem", "listen_clientcafile": "s.key"}, "listen_clientcafile s.key cannot be used: "),
    ],
)
def test_certificates_that_cannot_be_used_are_named(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], sentence: str
) -> None:
    monkeypatch.chdir(authority.folder)
    signed = authority.sign("s")
    openssl("ec", "-aes128", "-passout", "pass:hush", "-in", "s.key", "-out", "locked.key")
    Path("locked.pem").write_text(
        signed.read_text().partition("-----BEGIN PRIVATE")[0] + Path("locked.key").read_text()
    )
    with pytest.raises(UsageError, match=sentence):
        Server(load(settings), Address("127.0.0.1", free_port()))
