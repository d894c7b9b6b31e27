"""TLS of the server: its certificate, and the authorities of client certificates. Changed files are read again."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from kafka_probe.config import Config
from kafka_probe.errors import UsageError

log = logging.getLogger("kafka_probe")


class Tls:
    """The TLS files of `listen`, and the context made of them.

    Raises:
        UsageError: the settings conflict, or a file cannot be used.
    """

    def __init__(self, certfile: Path, keyfile: Path | None, clientcafile: Path | None) -> None:
        self._certfile, self._keyfile, self._clientcafile = certfile, keyfile, clientcafile
        self._seen = self._versions()
        self.context = self._made(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    @classmethod
    def of(cls, config: Config) -> Tls | None:
        """Return the TLS of the settings; None if the server uses plain HTTP."""
        if config.listen_certfile:
            return cls(config.listen_certfile, config.listen_keyfile, config.listen_clientcafile)
        for setting in ("listen_keyfile", "listen_clientcafile"):
            if getattr(config, setting) is not None:
                raise UsageError(f"{setting} has no effect without listen_certfile.")
        return None

    def renew(self) -> None:
        """Read the files again if they have changed. Log files that cannot be used; the current certificates remain."""
        versions = self._versions()
        if versions == self._seen:
            return
        self._seen = versions
        try:
            self._made(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # try first: a wrong key would break the context in use
            self._made(self.context)
        except UsageError as error:
            log.error("Certificates of --listen not reloaded; the server keeps the old ones. %s", error)
        else:
            log.info("Certificates of --listen reloaded.")

    def _made(self, context: ssl.SSLContext) -> ssl.SSLContext:
        try:
            context.load_cert_chain(self._certfile, self._keyfile, password=_no_password)
        except (OSError, ValueError) as error:
            raise UsageError(f"listen_certfile {self._certfile} cannot be used with its key: {error}.") from None
        if self._clientcafile:
            try:
                context.load_verify_locations(self._clientcafile)
            except OSError as error:
                raise UsageError(f"listen_clientcafile {self._clientcafile} cannot be used: {error}.") from None
            context.verify_mode = ssl.CERT_OPTIONAL  # clients without a certificate may request health
        return context

    def _versions(self) -> list[tuple[int, int] | None]:
        return [_version(file) for file in (self._certfile, self._keyfile, self._clientcafile) if file]


def _version(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _no_password() -> str:
    """Raise ValueError: without this callback OpenSSL would prompt for a password on the terminal."""
    raise ValueError("the key has a password")
