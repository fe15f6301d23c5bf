"""What was worked out before from the same bytes by the same code, kept on disk between runs.

A key says all that the value was made of; the code that made it, as it was when it was imported,
is part of the file's name. So nothing here can be out of date, and a file that is lost or cannot be
written costs time alone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

import msgspec

from harness.core import paths
from harness.core.code_digest import compute_digest
from harness.core.files import write_atomically

T = TypeVar("T")
MAX_ENTRIES = 8192
_DAY = 86400.0
_MONTH = 30 * _DAY
_LOADED_VALUES: dict[str, dict[str, Any]] = {}


def compute_code_digest(*modules: ModuleType, versions: Iterable[str] = ()) -> str:
    """What makes values, in a word: to be asked where it is imported, not when it is used."""
    return compute_digest(*(Path(one.__file__ or "").read_bytes() for one in modules), *versions)


class DiskCache(Generic[T]):
    """Values of one kind by the digest of what they were made of; `keep` writes what is new."""

    def __init__(self, name: str, value_type: Any, code_digest: str) -> None:
        self._path = paths.state_folder() / "remembered" / f"{name}-{code_digest[:12]}"
        self._has_new_values = False
        # What this process has read, wherever from, it and its forks need not read again.
        self._values: dict[str, T] = _LOADED_VALUES.setdefault(self._path.name, {})
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if not self._values:
                data = self._path.read_bytes()
                self._values.update(msgspec.msgpack.decode(data, type=dict[str, value_type]))

    def get(self, key: str) -> T | None:
        return self._values.get(key)

    def put(self, key: str, value: T) -> T:
        self._values[key] = value
        self._has_new_values = True
        return value

    def save(self) -> None:
        """Write it in one step: another process may be reading it, or writing its own.

        Only where runs have left something before: to look at the registry leaves nothing behind.
        """
        if not self._has_new_values or not paths.state_folder().is_dir():
            return
        kept = dict(list(self._values.items())[-MAX_ENTRIES:])
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            for older in self._path.parent.glob(f"{self._path.name.rpartition('-')[0]}-*"):
                if older != self._path:
                    older.unlink(missing_ok=True)
            beside.write_bytes(msgspec.msgpack.encode(kept))
            beside.replace(self._path)
        self._has_new_values = False


# Values of any class, a pickle each: a kernel's graph, a compiled program, an audited release


def get_or_compute(category: str, key: str, compute: Callable[[], T]) -> T:
    """Read a value from disk, or compute and save it; a file that cannot be read is a miss.

    The key says all that the value depends on, the code that computes it included.
    """
    unreadable = (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError)
    with contextlib.suppress(*unreadable):  # a class that has moved since is an ImportError
        return pickle.loads(_cache_path(category, key).read_bytes())  # type: ignore[no-any-return]
    value = compute()
    save_cached(category, key, value)
    return value


def save_cached(category: str, key: str, value: Any) -> None:
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    with contextlib.suppress(OSError):  # a disk that is full or read-only costs time alone
        write_atomically(_cache_path(category, key), data)
        _evict_old_entries()


def is_cached(category: str, key: str) -> bool:
    return _cache_path(category, key).exists()


def _evict_old_entries() -> None:
    """Once a day, delete the pickles that no process has read for a month."""
    folder, now = paths.state_folder() / "kernels", time.time()
    last_eviction = folder / "last-eviction"
    if last_eviction.exists() and now - last_eviction.stat().st_mtime < _DAY:
        return
    last_eviction.touch()
    for file in folder.glob("*/??/*"):
        with contextlib.suppress(OSError):  # another process may delete it first
            if now - max(file.stat().st_atime, file.stat().st_mtime) > _MONTH:
                file.unlink()


def _cache_path(category: str, key: str) -> Path:
    return paths.state_folder() / "kernels" / category / key[:2] / key
