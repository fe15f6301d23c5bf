"""Records: the JSON of runs that `--record` writes, compressed in a file whose name ends in .xz."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.core.errors import UnfixError
from harness.core.files import write_atomically
from harness.core.paths import shorten_release_paths


def round_numbers(value: Any) -> Any:
    """Round numbers to six digits for a small record. Whoever judges numbers rounds them first:
    a recorded run, judged again, has the verdicts that it had."""
    if isinstance(value, dict):
        return {name: round_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [round_numbers(one) for one in value]
    if isinstance(value, float) and abs(value) < 1e6:
        return float(f"{value:.6g}")
    return value


def write_record(file: Path, text: str) -> None:
    """Write the JSON of a run; no path in it leads to the `.releases` of this machine."""
    data = shorten_release_paths(text).encode(errors="backslashreplace")
    if file.suffix == ".xz":
        import lzma

        data = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
    write_atomically(file, data)


def read_record_text(file: Path) -> bytes:
    """Read the JSON of a record; UnfixError names a file that cannot be read."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UnfixError(f"{file} cannot be read: {error.strerror or error}") from error
    return decompress_record(file, data)


def decompress_record(file: Path, data: bytes) -> bytes:
    if file.suffix != ".xz":
        return data
    import lzma

    try:
        return lzma.decompress(data)
    except lzma.LZMAError as error:
        raise UnfixError(f"{file} is damaged or not compressed by xz: {error}") from error
