"""Checks written into a kernel's IR: the checked accesses, Triton's output, and the overhead.

Triton's compiler for CUDA needs no GPU, so everything but the running is tested here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kernels_to_check as known
import pytest
import torch
import triton
import triton.language as tl
from assembly_to_check import store_in_assembly
from cpu_runs import float16_zeros, int32_zeros
from triton.compiler.compiler import ASTSource, GPUTarget

from harness.sanitizer.gpu import (
    ALL_CHECKS,
    DEFAULT_CHECKS,
    RULES_CHECK,
    InstrumentationRequest,
    checked_launches,
    compiler_hooks,
)
from harness.sanitizer.gpu.pointer_arguments import find_overlapping_pointers, flatten_arguments
from harness.sanitizer.ir import mlir_printer
from harness.sanitizer.triton import frontend, graph_loader, mlir_parser

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
def by_step(source, target, count, stride, BLOCK: tl.constexpr):
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
def load_aligned(source, target, stride, ROWS: tl.constexpr, BYTES: tl.constexpr):
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


def compile_kernel(
    kernel: Any,
    *args: Any,
    checks: tuple[str, ...] = DEFAULT_CHECKS,
    symbolic: bool = False,
    **named: Any,
) -> Any:
    """Compile a kernel for a Hopper GPU as a launch with these arguments would."""
    compiler_hooks.install_compiler_hooks()
    pointers, _ = flatten_arguments(kernel, args, named)
    call = checked_launches.KernelCall(args, (1,), named)
    if symbolic:
        call = checked_launches.specialize_call(kernel, call)
    request = InstrumentationRequest(
        len(pointers), checks, find_overlapping_pointers(pointers), call.specialization
    )
    checked = compiler_hooks.build_checked_kernel(kernel, request) if checks else kernel
    more = (
        (
            *(0 for _ in request.leading_parameters),
            *(pointer.reachable_bytes for pointer in pointers),
        )
        if checks
        else ()
    )
    bound = frontend.get_binder(checked).bind(
        (*more, *call.symbolic_values, *call.args), call.options
    )
    signature = dict(zip(bound.values, bound.types, strict=True))
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (value, kind) in enumerate(zip(bound.values.values(), bound.types, strict=True))
        if isinstance(value, torch.Tensor) or (kind in ("i32", "i64") and value % 16 == 0)
    }
    source = ASTSource(checked, signature, dict(bound.iterate_constants()), aligned)
    with compiler_hooks.compile_with_checks(request if checks else None):
        return triton.compile(source, target=HOPPER)


def list_sites(kernel_binary: Any) -> list[tuple[str, int | None]]:
    return [
        (site.label, site.argument) for site in compiler_hooks.load_sites(kernel_binary, "sites")
    ]


@pytest.mark.parametrize(
    ("kernel", "args", "named"),
    [
        (known.copy, (int32_zeros(8), int32_zeros(8), 8, 0), {"BLOCK": 8}),
        (known.choose_pointer, (int32_zeros(1), int32_zeros(1), int32_zeros(1), 3), {}),
        (by_step, (float16_zeros(64), float16_zeros(64), 2, 3), {"BLOCK": 64}),
        (while_it_lasts, (int32_zeros(8), int32_zeros(8), 8, 2), {}),
        (product, (float16_zeros(1 << 12),) * 3 + (64,), {"BLOCK": 64}),
    ],
)
def test_a_graph_is_printed_so_that_it_reads_the_same(kernel: Any, args: Any, named: Any) -> None:
    graph = graph_loader.read_graph(kernel, args, named)
    again = mlir_parser.parse_mlir(mlir_printer.format_mlir(graph))
    assert mlir_printer.format_mlir(again) == mlir_printer.format_mlir(
        mlir_parser.parse_mlir(mlir_printer.format_mlir(again))
    )
    assert [operation.name for operation in again.walk()] == [
        operation.name for operation in graph.walk()
    ]
    assert [operation.source for operation in again.walk()] == [
        operation.source for operation in graph.walk()
    ]


def test_every_access_is_checked_against_the_argument_it_came_from() -> None:
    kernel_binary = compile_kernel(known.copy, int32_zeros(24), int32_zeros(24), 24, 0, BLOCK=8)
    assert list_sites(kernel_binary) == [("read", 0), ("write", 1)]
    assert kernel_binary.asm["ptx"].count("atom.global.add") == 2
    lines = [site.source.line for site in compiler_hooks.load_sites(kernel_binary, "sites")]
    code = Path(known.__file__).read_text().splitlines()
    assert ["tl.load" in code[line - 1] for line in lines] == [True, False]


@pytest.mark.parametrize(
    ("kernel", "args", "expected"),
    [
        (known.choose_pointer, (int32_zeros(1), int32_zeros(1), int32_zeros(1), 3), [None, 2]),
        (known.through_table, (torch.zeros(1, dtype=torch.int64), int32_zeros(1)), [0, None, 1]),
        (known.copied_from_table, (int32_zeros(2).long(), int32_zeros(8), 8, 1), [0, None, 1]),
    ],
)
def test_a_pointer_of_no_single_argument_is_checked(
    kernel: Any, args: Any, expected: list[int | None]
) -> None:
    kernel_binary = compile_kernel(kernel, *args)
    assert [argument for _, argument in list_sites(kernel_binary)] == expected
    assert kernel_binary.metadata.unfix["unchecked"] == {}
    fenced = compile_kernel(kernel, *args, checks=(*DEFAULT_CHECKS, RULES_CHECK))
    assert "no one argument" in fenced.metadata.unfix["refused"]


def test_a_refusal_holds_for_its_specialization_and_its_access_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher, kernel = checked_launches.CheckedLauncher(), known.copy
    monkeypatch.setattr(kernel, "device_caches", {})

    def find(block: int, **more: Any) -> tuple[str, str]:
        call = kernel, (int32_zeros(24), int32_zeros(24), 24, 0), {"BLOCK": block, **more}
        return launcher.find_refusal(*call), launcher.find_refusal(*call, with_access_rules=True)

    def refuse(reason: str, **options: Any) -> None:
        args = int32_zeros(24), int32_zeros(24), 24, 0
        rules = reason == "no rules here"
        checked_launches.remember_refusal(kernel, args, options, reason, rules)

    refuse("no rules here", BLOCK=8)
    assert (find(8), find(16)) == (("", "no rules here"), ("", ""))
    refuse("too many warps", BLOCK=16, num_warps=32)
    assert (find(16), find(16, num_warps=32)) == (("", ""), ("too many warps", "too many warps"))
    refuse("nothing here", BLOCK=8)
    assert (find(8)[0], find(16)) == ("nothing here", ("", ""))
    assert launcher.find_any_refusal(kernel) == "no rules here"


def test_access_rules_check_each_lane_beside_the_row() -> None:
    kernel_binary = compile_kernel(
        known.move_block,
        int32_zeros(64),
        int32_zeros(64),
        64,
        0,
        checks=(*DEFAULT_CHECKS, RULES_CHECK),
        BLOCK=32,
    )
    assert list_sites(kernel_binary) == [("read", 0), ("read", 0), ("write", 1), ("write", 1)]
    assert "refused" not in kernel_binary.metadata.unfix


def test_a_pointer_into_unknown_memory_is_counted_as_unchecked() -> None:
    kernel_binary = compile_kernel(known.along_a_list, int32_zeros(2).long(), int32_zeros(8), 8)
    assert list(kernel_binary.metadata.unfix["unchecked"].values()) == [2]


def test_only_integers_that_lead_to_an_address_are_tracked() -> None:
    def list_watched_sites(kernel: Any, *args: Any, **named: Any) -> list[str]:
        kernel_binary = compile_kernel(kernel, *args, **named, checks=("overflow",))
        return [site.label for site in compiler_hooks.load_sites(kernel_binary, "overflows")]

    assert list_watched_sites(known.at_product, int32_zeros(4), 3, 5) == ["*"]
    assert list_watched_sites(known.wide_product, int32_zeros(4), 3, 5) == []
    assert list_watched_sites(known.value_overflows, int32_zeros(4), 3, 5) == []
    assert list_watched_sites(
        known.narrow_index, int32_zeros(4), torch.zeros(1, dtype=torch.int64)
    ) == ["narrowed"]


@pytest.mark.parametrize(
    ("kernel", "args", "wraps"),
    [
        (by_step, (float16_zeros(64), float16_zeros(64), 5, 1 << 30), 1),
        (reset, (float16_zeros(64), float16_zeros(64), 5, 1 << 30), 1),
        (while_it_lasts, (int32_zeros(8), int32_zeros(8), 8, 1 << 30), 2),
    ],
)
def test_loops_carry_overflow(kernel: Any, args: Any, wraps: int) -> None:
    kernel_binary = compile_kernel(
        kernel, *args, **({"BLOCK": 64} if kernel is not while_it_lasts else {})
    )
    assert len(compiler_hooks.load_sites(kernel_binary, "overflows")) == wraps
    assert kernel_binary.asm["ptx"].count("atom.global.add") >= 2


@pytest.mark.parametrize(
    ("kernel", "args", "named", "wraps"),
    [
        (known.at_product, (int32_zeros(4), 1 << 40, 5), {}, ["*"]),
        (in_branches, (int32_zeros(4), 3, 5, 4), {}, ["*"]),
        (at_sums, (int32_zeros(4), int32_zeros(8), 3), {"N": 8}, ["*", "sum", "sum"]),
    ],
)
def test_triton_compiles_overflow_tracking(
    kernel: Any, args: Any, named: Any, wraps: list[str]
) -> None:
    kernel_binary = compile_kernel(kernel, *args, **named)
    assert "refused" not in kernel_binary.metadata.unfix
    assert [site.label for site in compiler_hooks.load_sites(kernel_binary, "overflows")] == wraps
    assert kernel_binary.asm["ptx"].count("+48], left") >= 1


@triton.jit
def product_of_sixteen_rows(a, b, c, BLOCK: tl.constexpr):
    row, lane = tl.arange(0, 16)[:, None], tl.arange(0, BLOCK)
    left = tl.load(a + row * BLOCK + lane[None, :])
    right = tl.load(b + lane[:, None] * BLOCK + lane[None, :])
    tl.store(c + row * BLOCK + lane[None, :], tl.dot(left, right))


def test_races_of_a_product_compile() -> None:
    """Triton 3.8 asserts if the layout of the product reaches the exchange of its value."""
    tensors = (float16_zeros(1 << 12), float16_zeros(1 << 12), torch.zeros(1 << 10))
    kernel_binary = compile_kernel(product_of_sixteen_rows, *tensors, BLOCK=64, checks=ALL_CHECKS)
    assert "exch" in kernel_binary.asm["ptx"]


def test_loads_are_as_wide_and_as_early_as_without() -> None:
    arguments = (float16_zeros(1 << 12), float16_zeros(1 << 12), float16_zeros(1 << 12), 64)
    plain, checked = (
        compile_kernel(product, *arguments, BLOCK=64, checks=c) for c in ((), ("bounds",))
    )

    def copies(kernel_binary: Any) -> int:
        return len(
            re.findall(
                r"cp\.async\.cg\S* \[ %r\d+ \+ 0 \], \[ %rd\d+ \+ 0 \], 0x10",
                kernel_binary.asm["ptx"],
            )
        )

    assert copies(plain) > 0
    assert copies(checked) == copies(plain)


def test_a_loop_may_carry_the_result_of_a_reduction() -> None:
    kernel_binary = compile_kernel(
        summed_rows, float16_zeros(1 << 10), float16_zeros(32), 3, ROWS=32, WIDTH=32
    )
    assert list_sites(kernel_binary) == [("read", 0), ("read", 1), ("write", 1)]


def test_hints_about_lanes_are_dropped_from_rows() -> None:
    table = torch.zeros(1, dtype=torch.int64)
    kernel_binary = compile_kernel(
        load_aligned, table, float16_zeros(1 << 10).view(torch.int8), 64, ROWS=16, BYTES=64
    )
    assert list_sites(kernel_binary) == [("read", 0), ("read", None), ("write", 1)]
    assert kernel_binary.metadata.unfix["unchecked"] == {}


def test_a_tensor_reaches_to_its_end_or_its_storages() -> None:
    rows = torch.zeros((4, 8), dtype=torch.float16)

    def reach(tensor: torch.Tensor, whole: bool) -> int:
        [pointer], _ = flatten_arguments(known.count_programs, (tensor,), {}, whole)
        return pointer.reachable_bytes

    assert [reach(rows[1], whole) for whole in (False, True)] == [16, 48]
    assert [reach(rows[:, 2], whole) for whole in (False, True)] == [50, 60]
    assert reach(rows[:0], whole=False) == 0


def test_a_kernel_that_cannot_be_checked_is_refused_with_the_reason() -> None:
    assembly = (store_in_assembly, {"N": 64}, "its assembly accesses memory: st.global.b32")
    for kernel, sizes, reason in ((through_descriptor, {"BLOCK": 64}, "it uses tt."), assembly):
        kernel_binary = compile_kernel(kernel, float16_zeros(1 << 12), **sizes)
        assert kernel_binary.metadata.unfix["refused"].startswith(reason)
        assert "atom.global.add" not in kernel_binary.asm["ptx"]


def test_symbolic_constants_are_parameters() -> None:
    """One kernel serves all constants: it reads their values as it runs, checks included."""
    fixed, *loose = (
        compile_kernel(
            known.by_rows, int32_zeros(64), int32_zeros(64), stride, 5, BLOCK=8, symbolic=symbolic
        )
        for stride, symbolic in [(9, False), (9, True), (11, True)]
    )
    assert loose[0].asm["ptx"] == loose[1].asm["ptx"] != fixed.asm["ptx"]
    assert list_sites(loose[0]) == list_sites(fixed)


def test_a_checked_kernel_has_more_parameters_and_its_own_cache_key() -> None:
    checked = compiler_hooks.build_checked_kernel(
        known.copy, InstrumentationRequest(2, DEFAULT_CHECKS)
    )
    own = [parameter.name for parameter in known.copy.params]
    assert [parameter.name for parameter in checked.params][-len(own) :] == own
    assert len(checked.params) == len(own) + 4
    assert checked.cache_key != known.copy.cache_key
    assert (
        checked.cache_key
        != compiler_hooks.build_checked_kernel(
            known.copy, InstrumentationRequest(2, ("bounds",))
        ).cache_key
    )
