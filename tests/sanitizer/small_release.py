"""The small release of the audit's tests as a folder, and the findings in one of its kernels."""

from __future__ import annotations

from pathlib import Path

from harness.runs.audit import kernel_reading, overflow_runs, size_limits
from harness.runs.audit.findings import AuditFinding
from harness.runs.audit.release_kernels import ReleaseKernels
from tests.audit.conftest import KERNELS, SIZES

MODULE = "sglang.srt.kernels"


def write_release(folder: Path, text: str = KERNELS) -> Path:
    package = folder / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "kernels.py").write_text(text)
    (package / "sizes.py").write_text(SIZES)
    return folder


def list_findings(folder: Path, kernel_name: str) -> list[AuditFinding]:
    """Audit one kernel, and list the findings on its lines."""
    overflow_runs.load_launcher_state()
    kernels = ReleaseKernels(folder, "sources")
    [kernel] = kernels.find_by_name(kernel_name)
    limits = size_limits.read_limits()
    return list(kernel_reading.analyze_kernel(kernels.release, kernel, limits).findings.values())
