"""Prepares a kernel package for booting: the unpacked kernel, and its modules in load order."""

from __future__ import annotations

import lzma
import struct
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.lab.processes import LabError


def unpacked(image: bytes) -> bytes:
    """Return the ELF file in a bzImage (Documentation/arch/x86/boot.rst): by PVH it boots 2 s faster than the image.

    Raises:
        LabError: zstd is missing.
    """
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * 512 + offset
    packed = image[start : start + length - 4]  # behind it stands its unpacked size
    if packed.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(packed)
    try:
        return subprocess.run(["zstd", "-dc"], input=packed, capture_output=True, check=True).stdout
    except FileNotFoundError:
        raise LabError("zstd is missing: the kernel is packed with it") from None


def module_order(tree: Path, wanted: Iterable[str]) -> dict[str, bytes]:
    """Return the modules and all that they need, by name, each after those it needs.

    A module without a file is left out: it is built in, or does not exist.
    """
    paths = {path.name.partition(".ko")[0].replace("-", "_"): path for path in tree.rglob("*.ko*")}
    ordered: dict[str, bytes] = {}

    def add(name: str) -> None:
        if name in ordered or name not in paths:
            return
        content = paths[name].read_bytes()
        if paths[name].suffix == ".xz":
            content = lzma.decompress(content)
        for needed in _needs(content):
            add(needed)
        ordered[name] = content

    for name in wanted:
        add(name)
    return ordered


def _needs(module: bytes) -> Iterator[str]:
    for entry in section(module, b".modinfo").decode().split("\0"):
        match entry.partition("="):
            case "depends", _, names if names:
                yield from (name.replace("-", "_") for name in names.split(","))
            case "softdep", _, names if names.startswith("pre:"):
                yield from (name.replace("-", "_") for name in names.split()[1:])


def section(elf: bytes, name: bytes) -> bytes:
    """Return the content of a section of a 64-bit ELF file."""
    (headers_at,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, headers_at + index * size) for index in range(count)]
    names_at = headers[names_index][4]
    (offset, length) = next(h[4:6] for h in headers if elf.startswith(name + b"\0", names_at + h[0]))
    return elf[offset : offset + length]
