"""Matrix files for tests: a small one, and variants of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import UnfixError
from harness.matrices.schema import MatrixFile
from harness.runs.matrix import axis_checks, plan_builder
from harness.runs.matrix.cell_plan import MatrixPlan

AXES = """
axes:
  release: [0.5.16, 0.5.18]
  kv: {auto: "", fp8: --kv-cache-dtype fp8_e4m3}
  page: {1: "", 16: --page-size 16}
  speculative: {none: "", EAGLE: --speculative-algorithm EAGLE}
  topk: {1: --topk 1, 4: --topk 4}
"""
TREE = "{when: {speculative: EAGLE}, applies: [topk], because: only a tree has branches}"
WHOLE_PAGES = "{when: {kv: fp8}, only: {page: 16}, because: this kernel reads whole pages}"
RUN = """
run:
  served: {kind: eval, command: "--release {release} -- {words}"}
"""


def make_text(
    *, axes: str = AXES, constraints: tuple[str, ...] = (), run: str = RUN, more: str = ""
) -> str:
    listed = "".join(f"  - {one}\n" for one in constraints)
    return f"name: small{axes}" + (f"constraints:\n{listed}" if listed else "") + more + run


def write_file(folder: Path, content: str) -> Path:
    file = folder / "small.yaml"
    file.write_text(content)
    return file


def read_spec(folder: Path, content: str) -> MatrixFile:
    return axis_checks.read_matrix(write_file(folder, content))[1]


def make_plan(folder: Path, content: str) -> MatrixPlan:
    return plan_builder.plan_matrix(write_file(folder, content))


def get_refusal(folder: Path, content: str) -> str:
    """Return the error of a file that cannot be planned, without its folder."""
    with pytest.raises(UnfixError) as refusal:
        plan_builder.plan_matrix(write_file(folder, content))
    assert refusal.value.exit_code == 2
    return str(refusal.value).replace(f"{folder}/", "")
