"""What was worked out before from the same bytes by the same code, kept on disk between runs.

A key says all that the value was made of; the code that made it, as it was when it was imported,
is part of the file's name. So nothing here can be out of date, and a file that is lost or cannot be
written costs time alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

import msgspec

from harness.core import paths
from harness.core.code_digest import compute_digest

T = TypeVar("T")
MAX_ENTRIES = 8192
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
