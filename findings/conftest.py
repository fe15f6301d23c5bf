"""Makes the tests of findings/upstream guards of the toggles that their findings propose."""

from __future__ import annotations

import re
from functools import cache

import pytest

from harness.findings import finding_files
from harness.findings.schema import Finding
from harness.guards import plugin, unittest_guards


def pytest_configure(config: pytest.Config) -> None:
    plugin.prepare_session(config)


@cache
def find_findings_by_test() -> dict[str, Finding]:
    return {finding_files.get_test_file(f.name).name: f for f in finding_files.load_findings()}


def pytest_pycollect_makeitem(collector: pytest.Module, name: str, obj: object) -> object:
    if not isinstance(collector, pytest.Module):
        return None
    finding = find_findings_by_test()[collector.path.name]
    if not finding.fix.toggle:
        return None
    node = unittest_guards.make_guard_class(
        collector, name, obj, finding.fix.toggle, finding.names_error
    )
    text = collector.path.read_text(encoding="utf-8")
    if node is not None and finding_files.needs_gpu(text):
        from fixtures import cuda_kernels  # imports SGLang

        modules = tuple(_KERNEL_MODULES.findall(text))
        node.add_marker(pytest.mark.prepared(by=cuda_kernels.build_modules, names=modules))
    return node


_KERNEL_MODULES = re.compile(r"^from sglang\.kernels\.ops\.([\w.]+) import", re.MULTILINE)
