"""A small release: a folder with a few kernels and the functions that launch them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.audit import ranking
from harness.core.outcomes import Verdict
from harness.releases.managed_releases import CPU_BASE
from harness.runs.audit.findings import AuditFinding, KernelAudit
from harness.runs.audit.release_audit import AuditRequest, ReleaseAudit, audit_release
from harness.store.rehearse.values import RehearsalRun

KERNELS = """
import torch
import triton
import triton.language as tl

from sglang.nowhere import is_rare
from sglang.srt import sizes

WIDTH = 64 if is_rare() else 128
KIND = tl.constexpr(tl.float8e4nv)


@triton.jit
def row_in_32_bits(x_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    value = tl.load(x_ptr + row.to(tl.int64) * stride + columns)
    tl.store(out_ptr + row * stride + columns, value)


@triton.jit
def masked_away(x_ptr, rows, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + row * stride, 1, mask=(row < rows) & (row < 1000))


@triton.jit
def masked_by_what_wraps(x_ptr, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * stride + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, 1, mask=at < 1000)


@triton.jit
def early_return(x_ptr, rows, stride):
    row = tl.program_id(0)
    if row >= 1000:
        return
    tl.store(x_ptr + row * stride, 1)


@triton.jit
def carried(x_ptr, rows, stride):
    at = 0
    for step in range(rows):
        tl.store(x_ptr + at, 1)
        at += stride


@triton.jit
def scaled(row, stride):
    return row * stride


@triton.jit
def through_a_helper(x_ptr, stride):
    tl.store(x_ptr + scaled(tl.program_id(0), stride), 1)


@triton.jit
def of_what_it_loads(x_ptr, zebras_ptr, stride):
    zebra = tl.load(zebras_ptr + tl.program_id(0))
    tl.store(x_ptr + zebra * stride, 1)


@triton.jit
def nearer_behind_farther(x_ptr, stride):
    row = tl.program_id(0) * 1024
    tl.store(x_ptr + row * stride, 1)


@triton.jit
def two_lines(x_ptr, stride):
    row = tl.program_id(0)
    tl.store(x_ptr + row * stride, 1)
    tl.store(x_ptr + row * 512, 2)


@triton.jit
def the_second_comes_far(x_ptr, rows, stride):
    row = tl.program_id(0)
    far = tl.where(row == 1, 2 * rows, row)
    tl.store(x_ptr + far * stride, 1)


@triton.jit
def with_assembly(x_ptr, stride):
    lanes = tl.arange(0, 64)
    value = tl.load(x_ptr + lanes)
    value = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], tl.int32, True, 1)
    tl.store(x_ptr + tl.program_id(0) * stride + lanes, value)


@triton.jit
def where_another_is_empty(x_ptr, page_table_ptr, seq_lens_ptr, stride):
    if tl.load(seq_lens_ptr) < 1:
        tl.store(x_ptr + tl.load(page_table_ptr) * stride, 1)


@triton.jit
def insists(x_ptr, mask_ptr, stride, MODE: tl.constexpr, FOUR: tl.constexpr, TURNS: tl.constexpr):
    tl.static_assert(FOUR == 4 and MODE == "rows")
    tl.atomic_add(mask_ptr, 1)
    for turn in tl.static_range(TURNS):
        tl.store(x_ptr + tl.program_id(0) * stride + turn, 1)


@triton.jit
def in_a_later_turn(x_ptr, stride, TURNS: tl.constexpr):
    for turn in tl.static_range(TURNS):
        if turn > 5:
            tl.store(x_ptr + tl.program_id(0) * stride + turn, 1)


@triton.jit
def turns_that_are_a_stride(x_ptr, TURNS: tl.constexpr):
    for turn in tl.static_range(TURNS):
        tl.store(x_ptr + tl.program_id(0) * (TURNS * 4096) + turn, 1)


@triton.jit
def by_its_word(x_ptr, stride, MODE: tl.constexpr):
    row = tl.program_id(0)
    if MODE == "narrow":
        tl.store(x_ptr + row.to(tl.int64) * stride, 1)
    elif MODE == "wide":
        tl.store(x_ptr + row * stride, 1)


@triton.jit
def beyond_any_memory(x_ptr, stride):
    row = tl.program_id(0)
    tl.store(x_ptr + row.to(tl.int64) * stride * 4096, 1)
    tl.store(x_ptr + row * stride, 1)


@triton.jit
def beside_a_long_loop(x_ptr, out_ptr, stride, max_seq_len):
    row = tl.program_id(0)
    lanes = tl.arange(0, 8192)
    total = tl.zeros([8192], dtype=tl.float32)
    for at in range(max_seq_len):
        total += tl.load(x_ptr + at % 1000 + lanes)
    tl.store(out_ptr + lanes + row * stride, total)


@triton.jit
def ends_at_a_count(x_ptr, token_num, stride):
    row = tl.program_id(0)
    if row >= tl.load(token_num):
        return
    tl.store(x_ptr + row * stride, 1)


@triton.jit
def where_flagged(x_ptr, flags_ptr, stride):
    if tl.load(flags_ptr) != 0:
        tl.store(x_ptr + tl.program_id(0) * stride, 1)


@triton.jit
def of_its_own_kinds(x_ptr, wanted_ptr, where_ptr, stride):
    lanes = tl.arange(0, 64)
    wanted = tl.load(wanted_ptr + lanes)
    other = tl.load(where_ptr).to(tl.pointer_type(tl.float32))
    tl.store(other + lanes, 1.0, mask=wanted)
    tl.store(x_ptr + tl.program_id(0) * stride, 1)


@triton.jit
def behind_its_scales(x_ptr, stride, SCALE: tl.constexpr):
    tl.store(x_ptr + tl.program_id(0) * stride + SCALE, 1)


@triton.jit
def by_its_bits(x_ptr, stride):
    value = tl.load(x_ptr + tl.program_id(0) * stride)
    tl.store(x_ptr, value.to(KIND, bitcast=True).to(tl.float32).to(tl.uint8))


@triton.jit
def of_one_row(x_ptr, width):
    tl.store(x_ptr + tl.program_id(0) * width, 1)


@triton.jit
def of_sides_that_nobody_has(x_ptr, left, middle, right):
    tl.store(x_ptr + tl.program_id(0) * (left * middle * right), 1)


@triton.jit
def in_steps(x_ptr, stride, END: tl.constexpr, STEP: tl.constexpr):
    for turn in tl.static_range(0, END, STEP):
        if turn > 5:
            tl.store(x_ptr + tl.program_id(0) * stride + turn, 1)


match triton.__name__:
    case "triton":

        @triton.jit
        def under_match(x_ptr, stride):
            tl.store(x_ptr + tl.program_id(0) * stride, 1)


@triton.jit
def by_another_module(x_ptr):
    tl.store(x_ptr + tl.program_id(0) * sizes.WIDE, 1)


@triton.jit
def behind_what_is_counted(x_ptr, total):
    tl.store(x_ptr + (total + tl.arange(0, 64)), 1)


@triton.jit
def by_its_side(x_ptr, far):
    tl.store(x_ptr + tl.program_id(0) * far, 1)


def launch_by_a_side(q: torch.Tensor):
    tokens, hidden = q.shape
    by_its_side[(tokens,)](q[:], q.shape[1])


def launch(
    x: torch.Tensor, zebras: torch.Tensor, page_table: torch.Tensor, seq_lens: torch.Tensor, mode,
    max_seq_len: int
):
    tokens = x.shape[0]
    out = torch.empty((tokens, 32, WIDTH), dtype=torch.int32)
    row_in_32_bits[(tokens,)](x, out, out.stride(0), BLOCK=64)
    masked_away[(triton.cdiv(tokens, 64),)](out, tokens, out.stride(0), BLOCK=64)
    masked_by_what_wraps[(tokens,)](out, out.stride(0), BLOCK=64)
    early_return[(tokens,)](out, tokens, out.stride(0))
    carried[(1,)](out, tokens, out.stride(0))
    through_a_helper[(tokens,)](out, out.stride(0))
    of_what_it_loads[(tokens,)](out, zebras, out.stride(0))
    nearer_behind_farther[(tokens,)](out[:], out.stride(0))
    two_lines[(tokens,)](out, out.stride(0))
    the_second_comes_far[(tokens,)](out, tokens, out.stride(0))
    with_assembly[(tokens,)](out, out.stride(0))
    insists[(tokens,)](out, zebras, out.stride(0), mode, x.shape[2], x.shape[1])
    in_a_later_turn[(tokens,)](out, out.stride(0), x.shape[1])
    turns_that_are_a_stride[(tokens,)](out, x.shape[1])
    by_its_word[(tokens,)](out, out.stride(0), mode)
    beyond_any_memory[(tokens,)](out[:], out.stride(0))
    beside_a_long_loop[(tokens,)](x, out[:], out.stride(0), max_seq_len)
    ends_at_a_count[(tokens,)](out, zebras, out.stride(0))
    where_flagged[(tokens,)](out, zebras, out.stride(0))
    of_its_own_kinds[(tokens,)](out, zebras, zebras, out.stride(0))
    behind_its_scales[(tokens,)](out, out.stride(0), layout.scale)
    by_its_bits[(tokens,)](x, out.stride(0))
    of_one_row[(x.shape[0],)](x, x.shape[1] * x.shape[2])
    of_sides_that_nobody_has[(8,)](x, x.shape[1], x.shape[2], x.shape[3])
    in_steps[(tokens,)](out[:], out.stride(0), x.shape[1], x.shape[2])
    under_match[(tokens,)](out[:], out.stride(0))
    by_another_module[(tokens,)](x)
    where_another_is_empty[(1,)](out, page_table, seq_lens, out.stride(0))
    behind_what_is_counted[(1,)](out[:], tokens * 32768)
"""
SIZES = "import triton.language as tl\n\nWIDE = tl.constexpr(4096)\n"


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    package = folder / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "kernels.py").write_text(KERNELS)
    (package / "sizes.py").write_text(SIZES)
    return folder


@pytest.fixture(scope="session")
def small(release: Path) -> ReleaseAudit:
    if not CPU_BASE.is_current():
        pytest.skip("the releases' base is not installed here")
    return audit_release(AuditRequest(release, "small"), print)


@pytest.fixture
def audit(tmp_path: Path) -> ReleaseAudit:
    """An audit whose arithmetic finds what deployments reach and what is possible, not the near."""
    from rehearsals import POSSIBLE, REACHED, SOURCE  # not there for tests of kernels

    file = tmp_path / "sglang" / "srt" / "layers" / "walk.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    words = "element access quantity shape grows model arithmetic launched"
    texts = dict.fromkeys(words.split(), "")
    findings = tuple(
        AuditFinding(
            kernel="walk",
            module="m",
            file=str(file),
            line=line,
            text=text,
            access_line=line,
            threshold=1,
            largest=10,
            value=1,
            reaches=(),
            confirmed="confirmed",
            **texts,  # type: ignore[arg-type]
        )
        for line, text in ((4, REACHED), (6, POSSIBLE))
    )
    kernel = KernelAudit("walk", "m", str(file), 2, Verdict.OVERFLOWS, 3, findings)
    return ReleaseAudit("0.5.23", (kernel,), "", 1)


@pytest.fixture
def ranked_audit(audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun]) -> ReleaseAudit:
    from rehearsals import RUN

    stored_runs["0.5.23"] = RUN
    return ranking.rank_release(audit, rehearses=False)


@pytest.fixture
def stored_runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, RehearsalRun]:
    """The rehearsals that the store has, by release."""
    runs: dict[str, RehearsalRun] = {}
    monkeypatch.setattr(ranking, "_find_rehearsal", runs.get)
    return runs
