"""What is costly to make of a kernel and the same in every process, kept on disk by its key."""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from harness.core import paths

CachedValue = TypeVar("CachedValue")
_DAY = 86400.0
_MONTH = 30 * _DAY


def get_or_compute(category: str, key: str, compute: Callable[[], CachedValue]) -> CachedValue:
    """From disk, or made and put there; a file that cannot be read is made again."""
    place = _cache_path(category, key)
    with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError, AttributeError):
        return pickle.loads(place.read_bytes())  # type: ignore[no-any-return]
    made = compute()
    save_cached(category, key, made)
    return made


def save_cached(category: str, key: str, value: Any) -> None:
    with contextlib.suppress(OSError):  # a disk that is full or not ours costs time and no answer
        _write_atomically(
            _cache_path(category, key), pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        )


def is_cached(category: str, key: str) -> bool:
    return _cache_path(category, key).exists()


def evict_old_entries() -> None:
    """Once a day, by whoever writes: what nobody has read for a month goes."""
    folder, now = paths.state_folder() / "kernels", time.time()
    looked = folder / "looked-through"
    if looked.exists() and now - looked.stat().st_mtime < _DAY:
        return
    looked.touch()
    for file in folder.glob("*/??/*"):
        with contextlib.suppress(OSError):  # somebody else forgets it, too
            if now - max(file.stat().st_atime, file.stat().st_mtime) > _MONTH:
                file.unlink()


def _cache_path(category: str, key: str) -> Path:
    return paths.state_folder() / "kernels" / category / key[:2] / key


def _write_atomically(path: Path, content: bytes) -> None:
    """Whole or not at all: others read meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(name, path)
    evict_old_entries()
