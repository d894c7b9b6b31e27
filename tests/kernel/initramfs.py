"""Builds the first file system of a guest: busybox, the modules and `init.sh`, as a cpio archive (newc)."""

from __future__ import annotations

import stat
from pathlib import Path

from tests.kernel.archive import Kernel

INIT = Path(__file__).with_name("init.sh")
_FOLDERS = ("bin", "dev", "modules", "proc", "sys", "disk", "memory", "root")
_CONSOLE = (5, 1)  # device numbers: without it the guest's first process has nowhere to write to


def initramfs(kernel: Kernel) -> bytes:
    """Return the archive for this kernel."""
    entries = [_entry(folder, stat.S_IFDIR | 0o755) for folder in _FOLDERS]
    entries += [
        _entry("dev/console", stat.S_IFCHR | 0o600, device=_CONSOLE),
        _entry("bin/busybox", stat.S_IFREG | 0o755, kernel.busybox.read_bytes()),
        _entry("init", stat.S_IFREG | 0o755, INIT.read_bytes()),
    ]
    for number, name in enumerate(kernel.modules):
        content = (kernel.folder / f"{name}.ko").read_bytes()
        entries.append(_entry(f"modules/{number:02}-{name}.ko", stat.S_IFREG | 0o644, content))
    return b"".join([*entries, _entry("TRAILER!!!", 0)])


def _entry(name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(path), 0)
    header = b"070701" + b"".join(b"%08x" % field for field in fields) + path
    return header + bytes(-len(header) % 4) + content + bytes(-len(content) % 4)
