"""Creates a key and a certificate for a broker's TLS listener with the JRE's own tool."""

from __future__ import annotations

import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.lab.processes import LabError


@dataclass(frozen=True, slots=True)
class Key:
    """A broker's own key in `store`; `certificate` is what clients have to trust, as PEM."""

    store: Path
    certificate: Path
    password: str

    @property
    def properties(self) -> dict[str, str]:
        """Return the broker's settings for the key."""
        return {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self.store),
            "ssl.keystore.password": self.password,
            "ssl.key.password": self.password,
        }


def make_key(directory: Path, address: str) -> Key:
    """Create a key for the host of that IP address, valid for two days.

    Raises:
        LabError: keytool failed; the text is its output.
    """
    directory.mkdir(parents=True, exist_ok=True)
    key = Key(directory / "broker.p12", directory / "broker.pem", secrets.token_hex())
    store = ("-alias", "broker", "-keystore", key.store, "-storepass", key.password)
    make = ("-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=broker", "-validity", "2", "-storetype", "PKCS12")
    _keytool("-genkeypair", *store, *make, "-ext", f"san=ip:{address}")
    _keytool("-exportcert", *store, "-rfc", "-file", key.certificate)
    return key


def _keytool(*arguments: str | Path) -> None:
    done = subprocess.run(("keytool", *arguments), capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise LabError(f"keytool {arguments[0]} failed: {done.stdout}{done.stderr}")
