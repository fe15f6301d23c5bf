"""Accesses past a tensor that the launching function allocates or whose shape it unpacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.releases.managed_releases import CPU_BASE
from harness.runs.audit.findings import AuditFinding, FindingKind, KernelVerdict
from harness.runs.audit.release_audit import AuditRequest, ReleaseAudit, audit_release

KERNELS = """
import torch
import triton
import triton.language as tl


@triton.jit
def fill(out_ptr, rows, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    tl.store(out_ptr + row * stride + columns, 1, mask=columns < stride)


@triton.jit
def fill_flat(out_ptr, many, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, 1, mask=at < many)


@triton.jit
def gather(x_ptr, rows_ptr, out_ptr, stride):
    row = tl.load(rows_ptr + tl.program_id(0))
    tl.store(out_ptr + tl.program_id(0), tl.load(x_ptr + row * stride))


def {name}({parameters}):
{body}
"""
FLAT = "fill_flat[(triton.cdiv(rows, 64),)](out, {many}, BLOCK=64)"


def findings(
    folder: Path, body: str, parameters: str = "rows: int, other: int"
) -> list[AuditFinding]:
    if not CPU_BASE.is_current():
        pytest.skip("the releases' base is not installed here")
    package = folder / "sglang" / "srt"
    package.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    text = KERNELS.replace("{name}", "launch").replace("{parameters}", parameters)
    (package / "kernels.py").write_text(text.replace("{body}", lines))
    return audit_folder(folder).findings


def audit_folder(folder: Path) -> ReleaseAudit:
    return audit_release(AuditRequest(folder, "small"), print)


def test_one_row_too_few_is_seen_at_the_first_row(tmp_path: Path) -> None:
    body = "out = torch.empty(rows - 1, 64)\nfill[(rows,)](out, rows, out.stride(0), BLOCK=64)"
    [found] = findings(tmp_path, body)
    assert found.kind is FindingKind.OVERRUNS
    assert found.text.startswith("tl.store(out_ptr + row * stride")
    assert found.condition == "at rows = 1"
    assert "index 0 of out_ptr, which has 0 elements: (rows - 1) * 64" in found.arithmetic
    assert found.confirmed == "confirmed"
    assert audit_folder(tmp_path).count_verdicts()[KernelVerdict.OVERRUNS] == 1


@pytest.mark.parametrize(
    ("size", "many", "at"),
    [
        ("rows", "rows", None),
        ("rows", "rows + 1", 1),
        ("triton.cdiv(rows, 64) * 64", "rows", None),
        ("rows // 8 * 8", "rows", 1),
        ("max(rows, 100)", "rows", None),
        ("min(rows, 100)", "rows", 101),
    ],
)
def test_the_least_load_that_goes_past(
    size: str, many: str, at: int | None, tmp_path: Path
) -> None:
    found = findings(tmp_path, f"out = torch.zeros(({size},))\n" + FLAT.format(many=many))
    assert [one.value for one in found] == ([] if at is None else [at])


@pytest.mark.parametrize(
    "body",
    [
        "out = torch.empty(rows)\n" + FLAT.format(many="other"),
        "assert rows % 8 == 0\nout = torch.empty(rows // 8 * 8)\n" + FLAT.format(many="rows"),
        "assert rows <= 100\nout = torch.empty(min(rows, 100))\n" + FLAT.format(many="rows"),
        "if not supported(rows):\n    return\nout = torch.empty(rows - 1)\n"
        + FLAT.format(many="rows"),
        "many = rows\nout = torch.empty(many)\nmany = rows - 1\n" + FLAT.format(many="rows"),
        "out = torch.empty(rows)\nout = out if other else out[1:]\n" + FLAT.format(many="rows"),
    ],
    ids=[
        "nothing says how two words go together",
        "what the function asserts holds",
        "a limit that it asserts holds",
        "what its test says of the word is not known",
        "a name that is bound twice is no word",
        "a tensor of which a part is given has no size",
    ],
)
def test_what_the_host_does_not_say_is_no_finding(body: str, tmp_path: Path) -> None:
    assert findings(tmp_path, body) == []


def test_what_the_function_asks_to_be_equal_is_one_word(tmp_path: Path) -> None:
    body = "assert other == rows and 48 == rows\nout = torch.empty(rows)\n"
    assert findings(tmp_path, body + FLAT.format(many="other")) == []
    [found] = findings(tmp_path, body + FLAT.format(many="other + 1"))
    assert found.condition == "at other = 48, rows = 48"


def test_the_shape_of_a_callers_tensor_is_its_size(tmp_path: Path) -> None:
    body = "rows, columns = out.shape\n" + FLAT.format(many="rows * columns{}")
    body = body.replace("cdiv(rows, 64)", "cdiv(rows * columns, 64) + 1")
    assert findings(tmp_path, body.format("", many=""), "out: torch.Tensor") == []
    [found] = findings(tmp_path, body.format(" + 1", many=""), "out: torch.Tensor")
    assert (found.grows, found.value) == ("out.shape[0]", 1)
    thrown = body.replace("rows, columns", "_, columns").replace("rows * ", "3 * ")
    assert findings(tmp_path, thrown.format("", many=""), "out: torch.Tensor") == []


def test_tensors_of_numbers_hold_zeros(tmp_path: Path) -> None:
    body = "x = torch.empty(1, 64)\nout = torch.empty(other)\n"
    launch = "gather[(other,)](x, rows, out, x.stride(0))"
    assert findings(tmp_path, body + launch, "rows: torch.Tensor, other: int") == []
    empty = body.replace("empty(other)", "empty(other // 2)") + launch
    [found] = findings(tmp_path, empty, "rows: torch.Tensor, other: int")
    assert found.element == "out_ptr"
