"""Lines that only some launches reach: the launches that are tried, and the host's names."""

from __future__ import annotations

import pytest

from harness.releases.managed_releases import CPU_BASE
from harness.runs.audit.findings import AuditFinding
from harness.runs.audit.release_audit import AuditRequest, audit_release

ROW = 32 * 1024  # columns of `out`, as the launching function allocates it
KERNELS = """
import torch
import triton
import triton.language as tl


@triton.jit
def of_what_begins(x_ptr, cu_seqlens_ptr, stride):
    row = tl.program_id(0)
    start = tl.load(cu_seqlens_ptr + row)
    if start >= tl.load(cu_seqlens_ptr + row + 1):
        return
    tl.store(x_ptr + start * stride, 1)


@triton.jit
def each_as_many(x_ptr, extend_lens, seq_lens, total_len, stride):
    row = tl.program_id(0)
    if tl.load(seq_lens + row) < 10000:
        return
    at = row * tl.load(extend_lens + row)
    tl.store(x_ptr + at * stride, 1, mask=at < total_len)


@triton.jit
def in_blocks(
    x_ptr, max_len, stride, bs: tl.constexpr, next_n: tl.constexpr,
    BLOCK_ALL: tl.constexpr, BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0) // tl.cdiv(max_len, BLOCK_N)
    if row < bs * next_n:
        tl.store(x_ptr + row * stride + tl.arange(0, BLOCK_ALL), 1)


@triton.jit
def along_columns(x_ptr, stride_x_token: tl.constexpr):
    tl.store(x_ptr + tl.program_id(0) * stride_x_token, 1)


@triton.jit
def of_parts(x_ptr, stride, WIDTH: tl.constexpr, hidden: tl.constexpr):
    head = tl.program_id(0) // (WIDTH // hidden)
    tl.store(x_ptr + head * stride, 1)


@triton.jit
def the_fourth_from_the_end_comes_far(x_ptr, rows, stride):
    row = tl.program_id(0)
    far = tl.where(row == rows - 4, 2 * rows, row)
    tl.store(x_ptr + far * stride + 1, 1)


@triton.jit
def of_heads(o_ptr, stride_o_n):
    tl.store(o_ptr + tl.program_id(0) * stride_o_n, 1)


@triton.jit
def of_blocks(a_ptr, H: tl.constexpr, BC: tl.constexpr):
    tl.store(a_ptr + tl.program_id(0) * H * BC, 1)


@triton.jit
def in_turn(x_ptr, num_ptr, rows, stride):
    at = tl.atomic_add(num_ptr, rows)
    tl.store(x_ptr + at * stride, 2)


def of_sides(q: torch.Tensor, k: torch.Tensor, v_cache: torch.Tensor):
    total_q, num_heads, qk_head_dim = q.shape
    B, T, H, K = k.shape
    v_head_dim = v_cache.shape[-1]
    o = torch.empty(total_q, num_heads, v_head_dim)
    of_heads[(total_q,)](o, o.stride(0))
    of_blocks[(T,)](k, H=H, BC=16)


def launch(
    x: torch.Tensor, cu_seqlens: torch.Tensor, extend_lens: torch.Tensor, seq_lens: torch.Tensor,
    page_table: torch.Tensor, num: torch.Tensor, bs: int, next_n: int, total_len: int, max_len: int,
    hidden
):
    tokens = x.shape[0]
    out = torch.empty((tokens, 32, 1024), dtype=torch.int32)
    of_what_begins[(bs,)](out, cu_seqlens, out.stride(0))
    each_as_many[(bs,)](out, extend_lens, seq_lens, total_len, out.stride(0))
    block_n = 128
    in_blocks[(bs * next_n * triton.cdiv(max_len, block_n),)](
        page_table, max_len, page_table.stride(0), bs, next_n,
        BLOCK_ALL=triton.next_power_of_2(bs * next_n), BLOCK_N=block_n,
    )
    along_columns[(tokens,)](x, x.stride(1))
    of_parts[(tokens,)](out, out.stride(0), 64, hidden)
    the_fourth_from_the_end_comes_far[(tokens,)](out, tokens, out.stride(0))
    in_turn[(1,)](out, num, tokens, out.stride(0))
"""


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, AuditFinding]:
    if not CPU_BASE.is_current():
        pytest.skip("the releases' base is not installed here")
    folder = tmp_path_factory.mktemp("tried")
    package = folder / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "kernels.py").write_text(KERNELS)
    audit = audit_release(AuditRequest(folder, "tried"), print)
    return {finding.text: finding for finding in audit.findings if finding.is_confirmed}


@pytest.mark.parametrize(
    ("line", "threshold"),
    [
        # A start is half of the total at most: something begins before it ends.
        ("tl.store(x_ptr + start * stride, 1)", 2 * 2**31 // ROW + 1),
        # A pitch of tokens is a row.
        ("tl.store(x_ptr + tl.program_id(0) * stride_x_token, 1)", 2**31 // 4096 + 1),
        # Programs before the one that wraps are run as well.
        ("tl.store(x_ptr + far * stride + 1, 1)", 2**31 // ROW // 2),
        # Each launch finds the initial value, not the sum of atomics of earlier launches.
        ("tl.store(x_ptr + at * stride, 2)", 2**31 // ROW + 1),
    ],
)
def test_the_least_load_that_wraps(
    findings: dict[str, AuditFinding], line: str, threshold: int
) -> None:
    assert findings[line].threshold == threshold


def test_so_many_parts_are_each_as_long(findings: dict[str, AuditFinding]) -> None:
    """The last of 256 requests begins at that many tokens, each with the root of a context."""
    one = findings["tl.store(x_ptr + at * stride, 1, mask=at < total_len)"]
    assert 2**31 // ROW < one.threshold <= 255 * 362 + 1


def test_a_number_that_is_passed_alone_is_that_number_elsewhere(
    findings: dict[str, AuditFinding],
) -> None:
    """The block sizes come from the host, since Triton infers the types."""
    one = findings["tl.store(x_ptr + row * stride + tl.arange(0, BLOCK_ALL), 1)"]
    assert one.shape == ""
    assert "BLOCK_N = 128 (the code that launches it)" in one.constants


def test_constants_that_do_not_go_together_are_guessed_otherwise(
    findings: dict[str, AuditFinding],
) -> None:
    """The value by its name exceeds 64, and the kernel would divide by zero."""
    one = findings["tl.store(x_ptr + head * stride, 1)"]
    assert "hidden = 32 (by its name)" in one.constants
    assert one.threshold == 2**31 // ROW + 1


def test_a_side_is_what_the_launching_function_calls_it(findings: dict[str, AuditFinding]) -> None:
    """Each factor of a product is named by itself: not two rows for heads of a row."""
    one = findings["tl.store(o_ptr + tl.program_id(0) * stride_o_n, 1)"]
    assert one.shape == "q.shape[1] * v_cache.shape[-1] = 73,728"
    assert one.threshold == -(-(2**31) // 73728) + 1


def test_a_letter_for_a_side_is_what_the_limits_file_says(
    findings: dict[str, AuditFinding],
) -> None:
    one = findings["tl.store(a_ptr + tl.program_id(0) * H * BC, 1)"]
    assert "H = 32 (the code that launches it)" in one.constants
