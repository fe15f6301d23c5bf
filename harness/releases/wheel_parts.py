"""Lays the wheels of a folder out in parts of a size, with a manifest and an installer.

A wheel that is larger than a part becomes numbered pieces. Invariant: a wheel leaves the folder
that it was fetched into only after all of its pieces are written, and the manifest is written
before any of them; so a pack that was interrupted lacks pieces that its manifest names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.core.errors import UnfixError
from harness.core.files import write_atomically
from harness.releases import pack_installer
from harness.releases.pack_installer import MANIFEST, PackedWheel, PackManifest, WheelPiece

INSTALLER = "install.py"
UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SMALLEST_PART = 10**6


@dataclass(frozen=True)
class PieceRange:
    """The bytes of a wheel that become one file."""

    name: str
    start: int
    size: int


def parse_size(text: str) -> int:
    """Read a size such as 60MB or 1.5GiB, in bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGKi]+B)", text.strip())
    if found is None or found[2] not in UNITS:
        raise UnfixError(f"--part-size {text} is no size; examples are 60MB, 1.5GB and 512MiB")
    size = int(float(found[1]) * UNITS[found[2]])
    if size < SMALLEST_PART:
        raise UnfixError(f"--part-size {text} is smaller than a part can be: 1MB")
    return size


def restore_wheels(folder: Path, into: Path) -> None:
    """Take the whole wheels out of the parts of an earlier call, which may have another size."""
    manifest = _read_manifest(folder)
    for wheel in manifest.wheels if manifest else ():
        if (into / wheel.name).exists():
            continue
        if not any(pack_installer.describe_damage(folder, piece) for piece in wheel.pieces):
            with contextlib.suppress(pack_installer.PackError):
                pack_installer.join_wheel(folder, wheel, into)


def write_parts(
    source: Path, folder: Path, part_size: int | None, about: PackManifest
) -> PackManifest:
    """Move the wheels of a folder into parts, or into the pack's own folder if none has a size."""
    files = sorted(source.glob("*.whl"))
    earlier = _read_manifest(folder)
    manifest = plan_parts(files, part_size, about)
    if earlier is not None:
        _remove_pieces(folder, earlier)
    write_atomically(folder / MANIFEST, json.dumps(asdict(manifest), indent=1))
    write_atomically(folder / INSTALLER, Path(pack_installer.__file__).read_text())
    for wheel in manifest.wheels:
        start = 0
        for piece in wheel.pieces:
            place = folder / piece.part / piece.name
            place.parent.mkdir(exist_ok=True)
            _write_piece(source / wheel.name, place, start, piece.size, wheel.size)
            start += piece.size
        (source / wheel.name).unlink()
    return manifest


def plan_parts(files: Sequence[Path], part_size: int | None, about: PackManifest) -> PackManifest:
    """Choose the part of each piece: the largest first, each into the first part that has room."""
    sizes = {file: file.stat().st_size for file in files}
    ranges = {file: list(split_range(file.name, sizes[file], part_size)) for file in files}
    parts = {one.name: "" for each in ranges.values() for one in each}
    if part_size is not None:
        used: list[int] = []  # bytes of each part
        pieces = [one for each in ranges.values() for one in each]
        for piece in sorted(pieces, key=lambda one: -one.size):
            fits = (i for i, size in enumerate(used) if size + piece.size <= part_size)
            number = next(fits, len(used))
            used += [0] * (number == len(used))
            used[number] += piece.size
            parts[piece.name] = str(number + 1)
    wheels = [
        PackedWheel(
            file.name,
            sizes[file],
            pack_installer.compute_digest(file),
            tuple(
                WheelPiece(one.name, parts[one.name], one.size, _compute_digest(file, one))
                for one in ranges[file]
            ),
        )
        for file in files
    ]
    return PackManifest(**(vars(about) | {"wheels": tuple(wheels)}))


def split_range(name: str, size: int, part_size: int | None) -> Iterator[PieceRange]:
    """Split a wheel into pieces of a part's size and a rest; a wheel that fits stays whole."""
    if part_size is None or size <= part_size:
        yield PieceRange(name, 0, size)
        return
    for number, start in enumerate(range(0, size, part_size), start=1):
        yield PieceRange(f"{name}.piece{number:03}", start, min(part_size, size - start))


def _compute_digest(file: Path, piece: PieceRange) -> str:
    digest = hashlib.sha256()
    for block in _read_range(file, piece.start, piece.size):
        digest.update(block)
    return digest.hexdigest()


def _read_range(file: Path, start: int, size: int) -> Iterator[bytes]:
    with file.open("rb") as opened:
        opened.seek(start)
        while size > 0:
            block = opened.read(min(size, pack_installer.BLOCK_BYTES))
            if not block:
                return
            size -= len(block)
            yield block


def _write_piece(wheel: Path, place: Path, start: int, size: int, whole: int) -> None:
    place.unlink(missing_ok=True)
    if size == whole:
        pack_installer.link_or_copy(wheel, place)
        return
    with place.open("wb") as out:
        for block in _read_range(wheel, start, size):
            out.write(block)


def _read_manifest(folder: Path) -> PackManifest | None:
    try:
        return pack_installer.parse_manifest((folder / MANIFEST).read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remove_pieces(folder: Path, manifest: PackManifest) -> None:
    """Remove the pieces of an earlier manifest, and the parts that are empty then."""
    for piece in (piece for wheel in manifest.wheels for piece in wheel.pieces):
        (folder / piece.part / piece.name).unlink(missing_ok=True)
    for part in {piece.part for wheel in manifest.wheels for piece in wheel.pieces} - {""}:
        with contextlib.suppress(OSError):
            (folder / part).rmdir()
