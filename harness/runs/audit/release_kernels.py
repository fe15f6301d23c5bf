"""The kernels of a release, and those that changed since an earlier one.

Invariant: a kernel whose text, helpers, constants and launches are the same has the same findings,
in any file. So `--diff` audits only the others, and compares the findings of each with those of the
earlier kernels of its name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from harness.core.cache import get_or_compute
from harness.core.code_digest import compute_digest, describe_versions, digest_code
from harness.runs.audit.host_scope import HostLaunch
from harness.runs.audit.kernel_discovery import SourceKernel, collect_kernels
from harness.runs.audit.lazy_release import LazyRelease
from harness.runs.audit.release_files import ANALYSIS_PACKAGES

CODE_DIGEST = compute_digest(digest_code("runs"), describe_versions(ANALYSIS_PACKAGES))
# The digest of a kernel that Triton cannot load: it always counts as changed.
_UNKNOWN_DIGEST = ""


class ReleaseKernels:
    """The kernels of a release by name; cached on disk by the digest of its sources."""

    def __init__(self, location: Path, source_digest: str) -> None:
        self.release = LazyRelease(location)
        self._key = compute_digest(CODE_DIGEST, str(location), source_digest)
        self.kernels: list[SourceKernel] = get_or_compute(
            "kernels", self._key, lambda: collect_kernels(self.release)
        )
        self._indices_by_name: dict[str, list[int]] = defaultdict(list)
        for index, kernel in enumerate(self.kernels):
            self._indices_by_name[kernel.name].append(index)

    def compute_digests(self) -> list[tuple[str, str]]:
        """Compute two digests of each kernel: of its text, and of all that it depends on."""
        return get_or_compute(
            "digests", self._key, lambda: list(map(self._compute_digests, self.kernels))
        )

    def find_by_name(self, name: str) -> list[SourceKernel]:
        kernels = (self.kernels[index] for index in self._indices_by_name[name])
        return [kernel for kernel in kernels if not kernel.is_helper]

    def list_changed_since(self, earlier: ReleaseKernels) -> list[SourceKernel]:
        """List the kernels that the earlier release lacks.

        Only a helper's text counts: if anything else changes, so do the kernels that call it.
        """
        digests, earlier_digests = self.compute_digests(), earlier.compute_digests()

        def is_in_earlier(kernel: SourceKernel, text: str, whole: str) -> bool:
            return any(
                text == earlier_text
                and (kernel.is_helper or _UNKNOWN_DIGEST != whole == earlier_whole)
                for earlier_text, earlier_whole in (
                    earlier_digests[index] for index in earlier._indices_by_name[kernel.name]
                )
            )

        pairs = zip(self.kernels, digests, strict=True)
        return [kernel for kernel, digest in pairs if not is_in_earlier(kernel, *digest)]

    def _compute_digests(self, kernel: SourceKernel) -> tuple[str, str]:
        text = compute_digest(ast.unparse(kernel.node))
        try:
            source = self.release.render_kernel_source(kernel.module, kernel.name)
        except Exception:  # its statements may raise anything where its packages are not installed
            return text, _UNKNOWN_DIGEST
        return text, compute_digest(source, *map(_describe_launch, kernel.launches))


def _describe_launch(launch: HostLaunch) -> str:
    """Describe what a launch passes, and the names of the tensor sides in that."""
    passed = repr((launch.function, launch.arguments, launch.grid, launch.preconditions))
    names = sorted((side, name) for side, name in launch.side_names.items() if side in passed)
    return f"{passed} {names}"


def normalize_lines(text: str) -> set[str]:
    """Collect the lines of a text with single spaces, as in findings."""
    return {" ".join(line.split()) for line in text.splitlines()}
