"""What of a release is as it was in an earlier one, wherever it stands in either.

A kernel with the same text, helpers, constants and launches has no finding that it had not before:
it is not read. Of one that has changed, what is found now is held against what was found then.
"""

from __future__ import annotations

import ast
import hashlib
from collections import defaultdict
from functools import cached_property
from pathlib import Path

from harness.core.cache import get_or_compute
from harness.core.code_digest import digest_code
from harness.runs.audit.host_scope import HostLaunch
from harness.runs.audit.kernel_discovery import SourceKernel, collect_kernels
from harness.runs.audit.lazy_release import LazyRelease

CODE_DIGEST = digest_code("runs")
_UNKNOWN_DIGEST = ""  # it does not become a kernel here: nobody knows whether it is the same


class ReleaseKernels:
    """The kernels of a release by their names; kept by its sources."""

    def __init__(self, location: Path, sources: str) -> None:
        self.release = LazyRelease(location)
        self._key = hashlib.sha256(f"{CODE_DIGEST}\0{location}\0{sources}".encode()).hexdigest()
        self.kernels: list[SourceKernel] = get_or_compute(
            "kernels", self._key, lambda: collect_kernels(self.release)
        )
        self._indices_by_name: dict[str, list[int]] = defaultdict(list)
        for number, one in enumerate(self.kernels):
            self._indices_by_name[one.name].append(number)

    @cached_property
    def digests(self) -> list[tuple[str, str]]:
        """Of each its text, and what it asks of others."""
        return get_or_compute(
            "digests", self._key, lambda: list(map(self._compute_digests, self.kernels))
        )

    def find_by_name(self, name: str) -> list[SourceKernel]:
        return [
            self.kernels[number]
            for number in self._indices_by_name[name]
            if not self.kernels[number].is_helper
        ]

    def list_changed_since(self, earlier: ReleaseKernels) -> list[SourceKernel]:
        """Those that the earlier release has not.

        Of helpers only their text counts, since their callers change with the rest.
        """
        return [
            one
            for one, (text, asked) in zip(self.kernels, self.digests, strict=True)
            if not any(
                text == then
                and (one.is_helper or _UNKNOWN_DIGEST != asked == earlier.digests[number][1])
                for number in earlier._indices_by_name[one.name]
                for then in earlier.digests[number][:1]
            )
        ]

    def _compute_digests(self, kernel: SourceKernel) -> tuple[str, str]:
        """Code that it calls, constants, whoever launches it."""
        text = _hash_words(ast.unparse(kernel.node))
        launches = "\0".join(map(_describe_launch, kernel.launches))
        try:
            return text, _hash_words(
                self.release.render_kernel_source(kernel.module, kernel.name), launches
            )
        except Exception:
            return text, _UNKNOWN_DIGEST


def _describe_launch(launch: HostLaunch) -> str:
    """What it hands over, and what the sides of tensors in that are called there."""
    given = repr((launch.function, launch.arguments, launch.grid, launch.preconditions))
    called = sorted((side, name) for side, name in launch.side_names.items() if side in given)
    return f"{given} {called}"


def normalize_lines(text: str) -> set[str]:
    """Each without its white space, as findings have them."""
    return {" ".join(line.split()) for line in text.splitlines()}


def _hash_words(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()
