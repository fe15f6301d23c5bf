"""Compiled kernels: compiled from their text once, cached on disk, loaded once in a process.

Most kernels of a suite run for milliseconds in all, so they are compiled quickly. A kernel that has
run for 0.25 s is compiled again, thoroughly, for this and every later process.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from harness.core.cache import get_or_compute, is_cached
from harness.core.code_digest import compute_digest, describe_versions, digest_code
from harness.sanitizer.llvm.jit import LlvmJit, describe_host

CODE_DIGEST = digest_code("sanitizer")
_RECOMPILE_AFTER_SECONDS = 0.25  # about the time of a thorough compilation


class LoweredCode(Protocol):
    @property
    def text(self) -> str: ...


Lowered = TypeVar("Lowered", bound=LoweredCode)


@functools.cache
def hash_host() -> str:
    return compute_digest(*describe_host(), describe_versions(("llvmlite",)), CODE_DIGEST)


@dataclass(frozen=True, slots=True)
class StoredCode(Generic[Lowered]):
    lowered: Lowered
    code: bytes


class CodeStore(Generic[Lowered]):
    """Kernels of one kind: a category on disk for each way to compile them, and their function."""

    def __init__(
        self, quick: str, thorough: str, function: str, get_jit: Callable[[], LlvmJit]
    ) -> None:
        self._categories, self._function, self._get_jit = (quick, thorough), function, get_jit

    @staticmethod
    def make_key(*words: str) -> str:
        return hashlib.sha256(" ".join((*words, hash_host())).encode()).hexdigest()

    def is_stored(self, key: str, thorough: bool) -> bool:
        return is_cached(self._categories[thorough], key)

    def read(self, key: str, lower: Callable[[], Lowered], thorough: bool) -> StoredCode[Lowered]:
        """Read a kernel from the disk; it is lowered and compiled only if it is not there."""

        def compile_code() -> StoredCode[Lowered]:
            lowered = lower()
            return StoredCode(lowered, self._get_jit().compile_object(lowered.text, thorough))

        return get_or_compute(self._categories[thorough], key, compile_code)

    def load_function(self, code: bytes) -> int:
        [address] = self._get_jit().load_functions(code, self._function)
        return address


class CompiledCode(Generic[Lowered]):
    """A kernel that is loaded into this process."""

    def __init__(
        self,
        store: CodeStore[Lowered],
        key: str,
        lower: Callable[[], Lowered],
        thorough: bool | None = None,
    ) -> None:
        """`thorough`: how it is compiled; by default thoroughly if it lies on disk so."""
        self.thorough = store.is_stored(key, True) if thorough is None else thorough
        stored = store.read(key, lower, self.thorough)
        self.lowered, self._store, self._key = stored.lowered, store, key
        self.address = store.load_function(stored.code)
        self._seconds_run = 0.0

    def measure(self, launch: Callable[[int], int], context: int) -> int:
        """Call what launches the kernel, and count its time."""
        start = perf_counter()
        outcome = launch(context)
        self._seconds_run += perf_counter() - start
        return outcome

    def recompile_if_slow(self) -> bool:
        """Compile thoroughly what has run for long; return whether the address is another one."""
        if self.thorough or self._seconds_run <= _RECOMPILE_AFTER_SECONDS:
            return False
        self.thorough = True
        stored = self._store.read(self._key, lambda: self.lowered, True)
        self.address = self._store.load_function(stored.code)
        return True
