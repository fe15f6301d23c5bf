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

from harness import paths

Made = TypeVar("Made")
_DAY = 86400.0
_MONTH = 30 * _DAY


def kept(what: str, key: str, make: Callable[[], Made]) -> Made:
    """From disk, or made and put there; a file that cannot be read is made again."""
    place = _place(what, key)
    with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError, AttributeError):
        return pickle.loads(place.read_bytes())  # type: ignore[no-any-return]
    made = make()
    keep(what, key, made)
    return made


def keep(what: str, key: str, made: Any) -> None:
    with contextlib.suppress(OSError):  # a disk that is full or not ours costs time and no answer
        _put(_place(what, key), pickle.dumps(made, protocol=pickle.HIGHEST_PROTOCOL))


def is_kept(what: str, key: str) -> bool:
    return _place(what, key).exists()


def forget_old() -> None:
    """Once a day, by whoever writes: what nobody has read for a month goes."""
    folder, now = paths.state() / "kernels", time.time()
    looked = folder / "looked-through"
    if looked.exists() and now - looked.stat().st_mtime < _DAY:
        return
    looked.touch()
    for file in folder.glob("*/??/*"):
        with contextlib.suppress(OSError):  # somebody else forgets it, too
            if now - max(file.stat().st_atime, file.stat().st_mtime) > _MONTH:
                file.unlink()


def _place(what: str, key: str) -> Path:
    return paths.state() / "kernels" / what / key[:2] / key


def _put(place: Path, content: bytes) -> None:
    """Whole or not at all: others read meanwhile."""
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=place.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(name, place)
    forget_old()
