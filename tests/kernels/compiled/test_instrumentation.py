"""Checks written into a kernel's IR: what is checked, what Triton still makes of it, what is left.

Triton's compiler for CUDA needs no GPU, so all but the running is tried here.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.compiler import ASTSource, GPUTarget

from harness.kernels.gpu import (
    DEFAULT_CHECKS,
    RULES_CHECK,
    InstrumentationRequest,
    KernelSummary,
    checked_launches,
    compiler_hooks,
)
from harness.kernels.gpu.pointer_arguments import find_overlapping_pointers, flatten_arguments
from harness.kernels.ir import mlir_printer
from harness.kernels.triton import frontend, graph_loader, mlir_parser

sys.path.insert(0, str(Path(__file__).parents[1] / "checked"))
import kernels_to_check as known

HOPPER = GPUTarget("cuda", 90, 32)


@triton.jit
def product(a, b, c, deep, BLOCK: tl.constexpr):
    row, lane = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    left = a + row[:, None] * deep + lane[None, :]
    right = b + lane[:, None] * BLOCK + row[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for _ in range(0, deep, BLOCK):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += BLOCK
        right += BLOCK * BLOCK
    tl.store(c + row[:, None] * BLOCK + lane[None, :], total.to(tl.float16))


@triton.jit
def stepped(source, target, count, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    near, far = source + at, source + at
    for _ in range(count):
        tl.store(target + at, tl.load(near))
        near, far = far, near + stride * BLOCK


@triton.jit
def reset(source, target, count, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    near = source + at * stride
    for turn in range(count):
        if turn > 2:
            tl.store(target + at, tl.load(near))
        near = source + at


@triton.jit
def summed_rows(source, target, turns, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row, lane = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    values = tl.load(source + row[:, None] * WIDTH + lane[None, :])
    total = tl.sum(values, 1)
    for _ in range(turns):
        total += tl.load(target + row)
    tl.store(target + row, total)


@triton.jit
def while_it_lasts(source, target, count, stride):
    at = 0
    while at < count:
        tl.store(target + at, tl.load(source + at * stride))
        at += 1


@triton.jit
def through_descriptor(target, BLOCK: tl.constexpr):
    rows = tl.make_tensor_descriptor(
        target, shape=[BLOCK, BLOCK], strides=[BLOCK, 1], block_shape=[BLOCK, BLOCK]
    )
    rows.store([0, 0], tl.full((BLOCK, BLOCK), 7, tl.float16))


@triton.jit
def promised(source, target, stride, ROWS: tl.constexpr, BYTES: tl.constexpr):
    row = tl.arange(0, ROWS)
    at = tl.multiple_of(tl.program_id(0) * BYTES + tl.arange(0, BYTES), 16)
    base = tl.load(source).to(tl.pointer_type(tl.int8))
    values = tl.load(base + row[:, None] * stride + at[None, :])
    tl.store(target + row[:, None] * stride + at[None, :], values)


@triton.jit
def at_sums(target, rows, stride, N: tl.constexpr):
    at = tl.load(rows + tl.arange(0, N)) * stride
    tl.store(target + tl.sum(at, 0), 1)
    tl.store(target + tl.cumsum(at, 0), 1)


@triton.jit
def in_branches(target, row, stride, which):
    if which > 3:
        at = row * stride
        if which > 4:
            return
    else:
        at = row
    tl.store(target + at, 1)


def halves(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.float16)


def numbers(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32)


def compiled(
    kernel: Any,
    *args: Any,
    checks: tuple[str, ...] = DEFAULT_CHECKS,
    loosens: bool = False,
    **named: Any,
) -> Any:
    """A kernel as a launch with these arguments would have it compiled for a Hopper GPU."""
    compiler_hooks.install_compiler_hooks()
    pointers, _ = flatten_arguments(kernel, args, named)
    call = checked_launches.KernelCall(args, (1,), named)
    if loosens:
        call = checked_launches.specialize_call(kernel, call)
    asked = InstrumentationRequest(
        len(pointers), checks, find_overlapping_pointers(pointers), call.specialization
    )
    twin = compiler_hooks.build_checked_kernel(kernel, asked) if checks else kernel
    more = (
        (*(0 for _ in asked.leading_parameters), *(one.reachable_bytes for one in pointers))
        if checks
        else ()
    )
    bound = frontend.get_binder(twin).bind((*more, *call.symbolic_values, *call.args), call.options)
    signature = dict(zip(bound.values, bound.types, strict=True))
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (value, kind) in enumerate(zip(bound.values.values(), bound.types, strict=True))
        if isinstance(value, torch.Tensor) or (kind in ("i32", "i64") and value % 16 == 0)
    }
    source = ASTSource(twin, signature, dict(bound.iterate_constants()), aligned)
    with compiler_hooks.compile_with_checks(asked if checks else None):
        return triton.compile(source, target=HOPPER)


def sites(made: Any) -> list[tuple[str, int | None]]:
    return [(site.label, site.argument) for site in compiler_hooks.load_sites(made, "sites")]


@pytest.mark.parametrize(
    ("kernel", "args", "named"),
    [
        (known.copy, (numbers(8), numbers(8), 8, 0), {"BLOCK": 8}),
        (known.chosen, (numbers(1), numbers(1), numbers(1), 3), {}),
        (stepped, (halves(64), halves(64), 2, 3), {"BLOCK": 64}),
        (while_it_lasts, (numbers(8), numbers(8), 8, 2), {}),
        (product, (halves(1 << 12),) * 3 + (64,), {"BLOCK": 64}),
    ],
)
def test_a_graph_is_printed_so_that_it_reads_the_same(kernel: Any, args: Any, named: Any) -> None:
    graph = graph_loader.read_graph(kernel, args, named)
    again = mlir_parser.parse_mlir(mlir_printer.format_mlir(graph))
    assert mlir_printer.format_mlir(again) == mlir_printer.format_mlir(
        mlir_parser.parse_mlir(mlir_printer.format_mlir(again))
    )
    assert [one.name for one in again.walk()] == [one.name for one in graph.walk()]
    assert [one.source for one in again.walk()] == [one.source for one in graph.walk()]


def test_every_access_is_checked_against_the_argument_it_came_from() -> None:
    made = compiled(known.copy, numbers(24), numbers(24), 24, 0, BLOCK=8)
    assert sites(made) == [("read", 0), ("write", 1)]
    assert made.asm["ptx"].count("atom.global.add") == 2
    lines = [site.source.line for site in compiler_hooks.load_sites(made, "sites")]
    code = Path(known.__file__).read_text().splitlines()
    assert ["tl.load" in code[line - 1] for line in lines] == [True, False]


@pytest.mark.parametrize(
    ("kernel", "args", "expected"),
    [
        (known.chosen, (numbers(1), numbers(1), numbers(1), 3), [None, 2]),
        (known.through_table, (torch.zeros(1, dtype=torch.int64), numbers(1)), [0, None, 1]),
        (known.copied_from_table, (numbers(2).long(), numbers(8), 8, 1), [0, None, 1]),
    ],
)
def test_a_pointer_of_no_one_argument_is_checked_all_the_same(
    kernel: Any, args: Any, expected: list[int | None]
) -> None:
    made = compiled(kernel, *args)
    assert [argument for _, argument in sites(made)] == expected
    assert made.metadata.unfix["unchecked"] == {}
    fenced = compiled(kernel, *args, checks=(*DEFAULT_CHECKS, RULES_CHECK))
    assert "no one argument" in fenced.metadata.unfix["refused"]


def test_what_fences_refuse_is_refused_with_fences_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher, kernel, tally = (
        checked_launches.CheckedLauncher(),
        known.through_table,
        KernelSummary(),
    )
    monkeypatch.setattr(kernel, "device_caches", {})
    launcher._record_refusal(kernel, tally, "no fences here", with_access_rules=True)
    assert (
        launcher.find_refusal(kernel),
        launcher.find_refusal(kernel, with_access_rules=True),
    ) == (
        "",
        "no fences here",
    )
    launcher._record_refusal(kernel, tally, "nothing here")
    assert (
        launcher.find_refusal(kernel)
        == launcher.find_refusal(kernel, with_access_rules=True)
        == "nothing here"
    )


def test_a_fence_is_asked_of_each_lane_beside_the_row() -> None:
    made = compiled(
        known.moved,
        numbers(64),
        numbers(64),
        64,
        0,
        checks=(*DEFAULT_CHECKS, RULES_CHECK),
        BLOCK=32,
    )
    assert sites(made) == [("read", 0), ("read", 0), ("write", 1), ("write", 1)]
    assert "refused" not in made.metadata.unfix


def test_a_pointer_that_leads_anywhere_is_left_and_said() -> None:
    made = compiled(known.along_a_list, numbers(2).long(), numbers(8), 8)
    assert list(made.metadata.unfix["unchecked"].values()) == [2]


def test_the_integers_that_lead_to_an_address_are_watched_and_no_others() -> None:
    def watched(kernel: Any, *args: Any, **named: Any) -> list[str]:
        made = compiled(kernel, *args, **named, checks=("wraps",))
        return [site.label for site in compiler_hooks.load_sites(made, "overflows")]

    assert watched(known.at_product, numbers(4), 3, 5) == ["*"]
    assert watched(known.wide_product, numbers(4), 3, 5) == []
    assert watched(known.value_overflows, numbers(4), 3, 5) == []
    assert watched(known.narrowed, numbers(4), torch.zeros(1, dtype=torch.int64)) == ["narrowed"]


@pytest.mark.parametrize(
    ("kernel", "args", "wraps"),
    [
        (stepped, (halves(64), halves(64), 5, 1 << 30), 1),
        (reset, (halves(64), halves(64), 5, 1 << 30), 1),
        (while_it_lasts, (numbers(8), numbers(8), 8, 1 << 30), 2),
    ],
)
def test_loops_hand_on_what_wrapped(kernel: Any, args: Any, wraps: int) -> None:
    made = compiled(kernel, *args, **({"BLOCK": 64} if kernel is not while_it_lasts else {}))
    assert len(compiler_hooks.load_sites(made, "overflows")) == wraps
    assert made.asm["ptx"].count("atom.global.add") >= 2


@pytest.mark.parametrize(
    ("kernel", "args", "named", "wraps"),
    [
        (known.at_product, (numbers(4), 1 << 40, 5), {}, ["*"]),
        (in_branches, (numbers(4), 3, 5, 4), {}, ["*"]),
        (at_sums, (numbers(4), numbers(8), 3), {"N": 8}, ["*", "sum", "sum"]),
    ],
)
def test_triton_compiles_what_follows_a_number(
    kernel: Any, args: Any, named: Any, wraps: list[str]
) -> None:
    made = compiled(kernel, *args, **named)
    assert "refused" not in made.metadata.unfix
    assert [site.label for site in compiler_hooks.load_sites(made, "overflows")] == wraps
    assert made.asm["ptx"].count("+48], left") >= 1


def test_loads_are_as_wide_and_as_early_as_without() -> None:
    given = (halves(1 << 12), halves(1 << 12), halves(1 << 12), 64)
    plain, checked = (compiled(product, *given, BLOCK=64, checks=c) for c in ((), ("bounds",)))

    def copies(made: Any) -> int:
        return len(
            re.findall(
                r"cp\.async\.cg\S* \[ %r\d+ \+ 0 \], \[ %rd\d+ \+ 0 \], 0x10", made.asm["ptx"]
            )
        )

    assert copies(plain) > 0
    assert copies(checked) == copies(plain)


def test_a_loop_may_go_on_with_what_a_reduction_made() -> None:
    made = compiled(summed_rows, halves(1 << 10), halves(32), 3, ROWS=32, WIDTH=32)
    assert sites(made) == [("read", 0), ("read", 1), ("write", 1)]


def test_what_a_kernel_promises_of_its_lanes_is_not_promised_of_rows() -> None:
    table = torch.zeros(1, dtype=torch.int64)
    made = compiled(promised, table, halves(1 << 10).view(torch.int8), 64, ROWS=16, BYTES=64)
    assert sites(made) == [("read", 0), ("read", None), ("write", 1)]
    assert made.metadata.unfix["unchecked"] == {}


def test_a_tensor_reaches_to_its_end_or_its_storages() -> None:
    rows = torch.zeros((4, 8), dtype=torch.float16)

    def reach(tensor: torch.Tensor, whole: bool) -> int:
        [given], _ = flatten_arguments(known.counted, (tensor,), {}, whole)
        return given.reachable_bytes

    assert [reach(rows[1], whole) for whole in (False, True)] == [16, 48]
    assert [reach(rows[:, 2], whole) for whole in (False, True)] == [50, 60]
    assert reach(rows[:0], whole=False) == 0


def test_what_goes_through_descriptors_runs_as_it_is_and_says_so() -> None:
    made = compiled(through_descriptor, halves(1 << 12), BLOCK=64)
    assert made.metadata.unfix["refused"].startswith("it uses tt.")
    assert "atom.global.add" not in made.asm["ptx"]


def test_numbers_in_the_place_of_constants_are_parameters() -> None:
    """One kernel for all of them: what was its constants' is read as it runs, checks and all."""
    fixed, *loose = (
        compiled(known.by_rows, numbers(64), numbers(64), stride, 5, BLOCK=8, loosens=loosens)
        for stride, loosens in [(9, False), (9, True), (11, True)]
    )
    assert loose[0].asm["ptx"] == loose[1].asm["ptx"] != fixed.asm["ptx"]
    assert sites(loose[0]) == sites(fixed)


def test_the_twin_is_the_kernel_with_more_parameters() -> None:
    twin = compiler_hooks.build_checked_kernel(
        known.copy, InstrumentationRequest(2, DEFAULT_CHECKS)
    )
    own = [parameter.name for parameter in known.copy.params]
    assert [parameter.name for parameter in twin.params][-len(own) :] == own
    assert len(twin.params) == len(own) + 4
    assert twin.cache_key != known.copy.cache_key
    assert (
        twin.cache_key
        != compiler_hooks.build_checked_kernel(
            known.copy, InstrumentationRequest(2, ("bounds",))
        ).cache_key
    )
