"""A disk cache of computed values, keyed by a digest of everything that a value depends on.

Invariant: a cached value is never stale. The digest of the code that computes the values is part
of the file's name, and a key covers all inputs. Example: the toggle files are cached in
`registry-<digest of the wing fixes>`; a key is the digest of one file's bytes. A file that is lost
or cannot be written costs only time.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from harness.core import paths
from harness.core.files import write_atomically
from harness.core.preparation import announce_preparation

T = TypeVar("T")
MAX_ENTRIES = 8192
_KEY = re.compile(r"[0-9a-f]{32}|[0-9a-f]{64}")  # of `compute_digest`, and a whole SHA-256
_DAY = 86400.0
_MONTH = 30 * _DAY
_LOADED_VALUES: dict[str, dict[str, Any]] = {}


class DiskCache(Generic[T]):
    """Values of one type by their keys; `save` writes the new ones to the disk."""

    def __init__(self, name: str, value_type: Any, code_digest: str) -> None:
        self._path = paths.state_folder() / "cache" / f"{name}-{code_digest[:12]}"
        self._has_new_values = False
        # Loaded once per process; its forks inherit the values.
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
        """Write the new values, if `.unfix` exists: a command that only reads leaves no files."""
        if not self._has_new_values or not paths.state_folder().is_dir():
            return
        newest = dict(list(self._values.items())[-MAX_ENTRIES:])
        with contextlib.suppress(OSError):
            write_atomically(self._path, msgspec.msgpack.encode(newest))
            for older in self._path.parent.glob(f"{self._path.name.rpartition('-')[0]}-*"):
                if older != self._path:
                    older.unlink(missing_ok=True)
        self._has_new_values = False


# Values of any class, a pickle each: a kernel's graph, a compiled program, an audited release


def get_or_compute(category: str, key: str, compute: Callable[[], T]) -> T:
    """Read a value from disk, or compute and save it; a file that cannot be read is a miss.

    The key contains all that the value depends on, including the code that computes it.
    """
    unreadable = (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError)
    for root in dict.fromkeys((_get_writable_root(), _get_shared_root())):
        with contextlib.suppress(*unreadable):  # ImportError: the class has moved
            return pickle.loads(_locate_entry(root, category, key).read_bytes())  # type: ignore[no-any-return]
    with announce_preparation():
        value = compute()
    save_cached(category, key, value)
    return value


def save_cached(category: str, key: str, value: Any) -> None:
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    with contextlib.suppress(OSError):  # a disk that is full or read-only costs time alone
        write_atomically(_locate_entry(_get_writable_root(), category, key), data)
        if _own_root is None:
            _evict_old_entries()


def is_cached(category: str, key: str) -> bool:
    return _locate_entry(_get_shared_root(), category, key).exists()


def write_below(root: Path) -> None:
    """From now on write this process's entries below a folder of its own."""
    global _own_root
    _own_root = root


def adopt_entries(root: Path, categories: Container[str]) -> None:
    """Share the entries of these categories below the folder of a process that has ended."""
    for file in root.glob("*/??/*"):
        category, key = file.parent.parent.name, file.name
        if category not in categories or not _KEY.fullmatch(key):
            continue
        with contextlib.suppress(OSError):  # a disk that is full or read-only costs time alone
            write_atomically(_locate_entry(_get_shared_root(), category, key), file.read_bytes())


_own_root: Path | None = None  # the folder of this process's own entries, if it has one


def _evict_old_entries() -> None:
    """Once a day, delete the pickles that no process has read for a month."""
    folder, now = _get_shared_root(), time.time()
    last_eviction = folder / "last-eviction"
    if last_eviction.exists() and now - last_eviction.stat().st_mtime < _DAY:
        return
    last_eviction.touch()
    for file in folder.glob("*/??/*"):
        with contextlib.suppress(OSError):  # another process may delete it first
            if now - max(file.stat().st_atime, file.stat().st_mtime) > _MONTH:
                file.unlink()


def _get_shared_root() -> Path:
    return paths.state_folder() / "kernels"


def _get_writable_root() -> Path:
    return _own_root if _own_root is not None else _get_shared_root()


def _locate_entry(root: Path, category: str, key: str) -> Path:
    return root / category / key[:2] / key
