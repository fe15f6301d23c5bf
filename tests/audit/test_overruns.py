"""Accesses past a tensor that the launching function allocates or whose shape it unpacks."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from harness.core.outcomes import Verdict
from harness.releases.managed_releases import CPU_BASE
from harness.runs.audit.findings import AuditFinding, FindingKind
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


def launch({parameters}):
{body}
"""
FLAT = "fill_flat[(triton.cdiv(rows, 64),)](out, {many}, BLOCK=64)"


# Each launching function is a module of one package, which one audit reads; by its test's words.
LEAST_LOADS = [
    ("rows", "rows", None),
    ("rows", "rows + 1", 1),
    ("triton.cdiv(rows, 64) * 64", "rows", None),
    ("rows // 8 * 8", "rows", 1),
    ("max(rows, 100)", "rows", None),
    ("min(rows, 100)", "rows", 101),
]
UNKNOWN_SIZES = {
    "nothing says how two words go together": "out = torch.empty(rows)\n"
    + FLAT.format(many="other"),
    "what the function asserts holds": "assert rows % 8 == 0\nout = torch.empty(rows // 8 * 8)\n"
    + FLAT.format(many="rows"),
    "a limit that it asserts holds": "assert rows <= 100\nout = torch.empty(min(rows, 100))\n"
    + FLAT.format(many="rows"),
    "what its test says of the word is not known": "if not supported(rows):\n    return\n"
    "out = torch.empty(rows - 1)\n" + FLAT.format(many="rows"),
    "a name that is bound twice is no word": "many = rows\nout = torch.empty(many)\n"
    "many = rows - 1\n" + FLAT.format(many="rows"),
    "a tensor of which a part is given has no size": "out = torch.empty(rows)\n"
    "out = out if other else out[1:]\n" + FLAT.format(many="rows"),
}
EQUAL_WORDS = "assert other == rows and 48 == rows\nout = torch.empty(rows)\n"
SHAPE = "rows, columns = out.shape\n" + FLAT.format(many="rows * columns{}").replace(
    "cdiv(rows, 64)", "cdiv(rows * columns, 64) + 1"
)
THROWN_AWAY = SHAPE.replace("rows, columns", "_, columns").replace("rows * ", "3 * ")
GATHER = (
    "x = torch.empty(1, 64)\nout = torch.empty({size})\ngather[(other,)](x, rows, out, x.stride(0))"
)
BODIES = {
    "one row too few": "out = torch.empty(rows - 1, 64)\n"
    "fill[(rows,)](out, rows, out.stride(0), BLOCK=64)",
    **{
        f"{size} and {many}": f"out = torch.zeros(({size},))\n" + FLAT.format(many=many)
        for size, many, _ in LEAST_LOADS
    },
    **UNKNOWN_SIZES,
    "equal words": EQUAL_WORDS + FLAT.format(many="other"),
    "equal words and one more": EQUAL_WORDS + FLAT.format(many="other + 1"),
    "shape": SHAPE.format("", many=""),
    "shape and one more": SHAPE.format(" + 1", many=""),
    "shape that is thrown away": THROWN_AWAY.format("", many=""),
    "rows that hold zeros": GATHER.format(size="other"),
    "too few rows": GATHER.format(size="other // 2"),
}
PARAMETERS = {
    **dict.fromkeys(
        ("shape", "shape and one more", "shape that is thrown away"), "out: torch.Tensor"
    ),
    **dict.fromkeys(("rows that hold zeros", "too few rows"), "rows: torch.Tensor, other: int"),
}
Findings = Callable[[str], list[AuditFinding]]


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> ReleaseAudit:
    if not CPU_BASE.is_current():
        pytest.skip("the releases' base is not installed here")
    root = tmp_path_factory.mktemp("release")
    package = root / "sglang" / "srt"
    package.mkdir(parents=True)
    for number, (name, body) in enumerate(BODIES.items()):
        text = KERNELS.replace("{parameters}", PARAMETERS.get(name, "rows: int, other: int"))
        text = text.replace("{body}", textwrap.indent(body, "    "))
        (package / f"launch_{number}.py").write_text(text)
    return audit_release(AuditRequest(root, "small"), print)


@pytest.fixture
def findings(audit: ReleaseAudit) -> Findings:
    """Find what the audit says of a launching function."""

    def select(name: str) -> list[AuditFinding]:
        module = f"sglang.srt.launch_{list(BODIES).index(name)}"
        return [one for one in audit.findings if one.module == module]

    return select


def test_one_row_too_few_is_seen_at_the_first_row(findings: Findings) -> None:
    [found] = findings("one row too few")
    assert found.kind is FindingKind.OVERRUNS
    assert found.text.startswith("tl.store(out_ptr + row * stride")
    assert found.condition == "at rows = 1"
    assert "index 0 of out_ptr, which has 0 elements: (rows - 1) * 64" in found.arithmetic
    assert found.confirmed == "confirmed"


def test_each_kernel_with_a_finding_is_counted(audit: ReleaseAudit) -> None:
    kernels = {(one.module, one.kernel) for one in audit.findings}
    assert len(kernels) == 7
    assert audit.count_verdicts()[Verdict.OVERRUNS] == len(kernels)


@pytest.mark.parametrize(("size", "many", "at"), LEAST_LOADS)
def test_the_least_load_that_goes_past(
    size: str, many: str, at: int | None, findings: Findings
) -> None:
    found = findings(f"{size} and {many}")
    assert [one.value for one in found] == ([] if at is None else [at])


@pytest.mark.parametrize("name", UNKNOWN_SIZES)
def test_what_the_host_does_not_say_is_no_finding(name: str, findings: Findings) -> None:
    assert findings(name) == []


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("equal words", "equal words and one more", "at other = 48, rows = 48"),
        ("shape", "shape and one more", "at out.shape[0] = 1"),
        ("shape that is thrown away", None, ""),
        ("rows that hold zeros", "too few rows", ""),  # tensors of numbers hold zeros
    ],
)
def test_what_the_host_says_of_sizes_counts(
    right: str, wrong: str | None, told: str, findings: Findings
) -> None:
    assert findings(right) == []
    if wrong is not None:
        [found] = findings(wrong)
        assert told in found.condition
        assert found.element in ("out_ptr", "out_ptr element")
