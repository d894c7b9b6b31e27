"""Makes certificate authorities, and the certificates that they sign, with openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority in a folder, and what it signs."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    def sign(self, name: str) -> Path:
        """Return a certificate with its key, in one file."""
        key, request, signed = (self.folder / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
        openssl("req", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        extension = self.folder / "extension"
        extension.write_text("subjectAltName=IP:127.0.0.1")
        ca = ("-CA", self.certificate, "-CAkey", self.folder / "ca.key", "-CAcreateserial", "-extfile", extension)
        openssl("x509", "-req", "-days", "2", "-in", request, *ca, "-out", signed)
        signed.write_text(signed.read_text() + key.read_text())
        return signed


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def an_authority(folder: Path) -> Authority:
    made = Authority(folder)
    openssl(
        "req",
        "-x509",
        *_NEW_KEY,
        "-days",
        "2",
        "-subj",
        "/CN=ca",
        "-keyout",
        made.folder / "ca.key",
        "-out",
        made.certificate,
    )
    return made
