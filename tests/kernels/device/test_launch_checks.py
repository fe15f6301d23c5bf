"""A planted fault of a graph or of streams is named with both stacks, and its correct twin is not.

Each test runs its program in a checked session of the virtual GPU, and once more with the source of
events that a card has.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from traced_card import trace_card

from harness import checking
from harness.kernels.launches.call_stacks import capture_stack
from harness.kernels.launches.launch_violations import (
    EarlyReuse,
    StaleGraphAddress,
    StaleGraphNumber,
    UnorderedAccess,
)

HERE = "test_launch_checks.py"


@triton.jit
def add_one(source, target, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.arange(0, BLOCK)
    inside = index < count
    tl.store(target + index, tl.load(source + index, mask=inside) + 1, mask=inside)


@triton.jit
def add_one_through(table, target, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    source = tl.load(table).to(tl.pointer_type(tl.float32))
    index = tl.arange(0, BLOCK)
    tl.store(target + index, tl.load(source + index) + 1)


@triton.jit
def scatter(values, slots, target, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.arange(0, BLOCK)
    tl.store(target + tl.load(slots + index), tl.load(values + index))


class CapturedModel:
    """A model whose forward is captured: it reads a buffer and a number of its own."""

    def __init__(self) -> None:
        self.buffer = torch.ones(8, device="cuda")
        self.out = torch.zeros(8, device="cuda")
        self.count = 8

    def capture(self, forward: Callable[[], Any]) -> None:
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            forward()
        self.graph.replay()

    def run_kernel(self) -> None:
        launch(self.buffer, self.out, self.count)

    def run_operator(self) -> None:
        self.out.copy_(self.buffer * self.count)


def launch(source: torch.Tensor, target: torch.Tensor, elements: int) -> None:
    count = elements
    add_one[(1,)](source, target, count, BLOCK=8)


_SOURCES: list[str] = []


@pytest.fixture(params=["virtual", "card"], autouse=True)
def _source(request: Any) -> Iterator[None]:
    """Let each program run under both sources of events."""
    _SOURCES.append(request.param)
    yield
    _SOURCES.pop()


def find_violation(program: Callable[[], Any], *checks: str) -> checking.Violation | None:
    checks = checks or ("graphs", "streams")
    try:
        if _SOURCES[-1] == "virtual":
            with checking.checked("virtual", launch_checks=checks):
                program()
        else:
            with checking.checked("virtual") as check, trace_card(checks, raise_violation):
                check.launches.keeps_tensors = False
                program()
    except checking.Violation as violation:
        return violation
    return None


def raise_violation(violation: checking.Violation) -> None:
    raise violation


def make_allocations() -> None:
    torch.ones(3, device="cuda")


# Graphs


@pytest.mark.parametrize("forward", [CapturedModel.run_kernel, CapturedModel.run_operator])
def test_a_captured_buffer_that_is_freed_is_reported_with_both_places(forward: Any) -> None:
    def program() -> None:
        model = CapturedModel()
        model.capture(lambda: forward(model))
        grow(model)
        make_allocations()

    def grow(model: CapturedModel) -> None:
        model.buffer = torch.ones(16, device="cuda")

    found = find_violation(program, "graphs")
    assert isinstance(found, StaleGraphAddress)
    argument = "source" if forward is CapturedModel.run_kernel else "self"
    assert f"{argument} is freed, and a captured graph still reads it" in found.headline
    captured, allocated, freed = found.details
    assert HERE in captured
    assert "in capture" in captured
    assert "in __init__" in allocated
    assert "in grow" in freed


def test_a_captured_buffer_that_moves_is_reported() -> None:
    def program() -> None:
        model = CapturedModel()
        model.capture(model.run_operator)
        model.buffer.resize_(1 << 12)
        make_allocations()

    found = find_violation(program, "graphs")
    assert isinstance(found, StaleGraphAddress)
    assert "self has moved, and a captured graph still reads it" in found.headline
    assert any("the tensor is at 0x" in line for line in found.details)


def test_a_tensor_behind_a_captured_table_of_addresses_is_reported() -> None:
    def program() -> None:
        layers = [torch.ones(8, device="cuda")]
        table = torch.tensor([one.data_ptr() for one in layers], device="cuda")
        target = torch.zeros(8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            add_one_through[(1,)](table, target, BLOCK=8)
        layers.clear()
        make_allocations()

    found = find_violation(program, "graphs")
    assert isinstance(found, StaleGraphAddress)
    assert "a tensor whose address is in table is freed" in found.headline


def test_a_graph_that_goes_with_its_buffers_is_right() -> None:
    def program() -> None:
        model = CapturedModel()
        model.cycle = model  # type: ignore[attr-defined]
        model.capture(model.run_kernel)
        del model.buffer
        del model
        make_allocations()

    assert find_violation(program) is None


def test_memory_of_a_graphs_own_pool_may_go() -> None:
    def program() -> None:
        model = CapturedModel()

        def forward() -> None:
            middle = model.buffer + 1
            model.out.copy_(middle * 2)

        model.capture(forward)
        gc.collect()
        make_allocations()
        model.graph.replay()

    assert find_violation(program) is None


@pytest.mark.parametrize("forward", [CapturedModel.run_kernel, CapturedModel.run_operator])
def test_a_number_that_changes_after_the_capture_is_reported(forward: Any) -> None:
    def program() -> None:
        model = CapturedModel()
        model.capture(lambda: forward(model))
        model.count = 4
        model.graph.replay()

    found = find_violation(program, "graphs")
    assert isinstance(found, StaleGraphNumber)
    assert "keeps self.count = 8, and it is 4 at the replay" in found.headline
    assert "captured at" in found.details[0]
    assert "replayed at" in found.details[1]


def test_a_number_in_a_tensor_of_the_host_is_kept_as_it_was_and_reported() -> None:
    factor = torch.tensor(2.0)
    model = CapturedModel()

    def program() -> None:
        model.capture(lambda: model.out.copy_(model.buffer * factor))
        factor.fill_(3.0)
        model.graph.replay()

    found = find_violation(program, "graphs")
    assert isinstance(found, StaleGraphNumber)
    assert "a tensor of the host (2.0) = 2.0, and it is 3.0 at the replay" in found.headline
    model.graph.replay()
    assert model.out.tolist() == [2.0] * 8


def test_a_number_of_another_object_is_no_report() -> None:
    """A server has metadata for each batch size, and replaces the current one."""

    class Metadata:
        def __init__(self, count: int) -> None:
            self.count = count

    def program() -> None:
        model = CapturedModel()
        model.metadata = Metadata(8)  # type: ignore[attr-defined]
        model.capture(lambda: launch(model.buffer, model.out, model.metadata.count))  # type: ignore[attr-defined]
        model.metadata = Metadata(4)  # type: ignore[attr-defined]
        model.graph.replay()

    assert find_violation(program) is None


# Streams


@contextlib.contextmanager
def on_side_stream() -> Any:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield side


@pytest.mark.parametrize("ordered", [True, False])
def test_a_read_that_waits_for_no_event_is_reported_with_both_launches(ordered: bool) -> None:
    def program() -> None:
        target = torch.zeros(8, device="cuda")
        with on_side_stream() as side:
            write(target)
            event = side.record_event()
        if ordered:
            torch.cuda.current_stream().wait_event(event)
        add_to(target)

    def write(target: torch.Tensor) -> None:
        add_one[(1,)](target, target, 8, BLOCK=8)

    def add_to(target: torch.Tensor) -> torch.Tensor:
        return target + 1

    found = find_violation(program, "streams")
    if ordered:
        assert found is None
        return
    assert isinstance(found, UnorderedAccess)
    assert found.headline.startswith(
        "aten::add reads self on stream 0 (the default), which add_one"
    )
    assert "in write" in found.details[0]
    assert "in add_to" in found.details[1]


def test_a_host_that_waits_orders_what_follows() -> None:
    def program() -> None:
        target = torch.zeros(8, device="cuda")
        with on_side_stream() as side:
            target.add_(1)
        side.synchronize()
        target.add_(1)
        with on_side_stream():
            total = target.sum().item()
        target.fill_(total)

    assert find_violation(program) is None


def test_an_order_through_a_third_stream_counts() -> None:
    def program() -> None:
        target, third = torch.zeros(8, device="cuda"), torch.cuda.Stream()
        with on_side_stream() as side:
            target.add_(1)
        third.wait_stream(side)
        torch.cuda.current_stream().wait_stream(third)
        target.add_(1)

    assert find_violation(program) is None


def test_two_scattered_writes_may_be_of_different_elements() -> None:
    def program(second: Callable[[torch.Tensor], Any]) -> None:
        pool = torch.zeros(64, device="cuda")
        slots, values = torch.arange(8, device="cuda"), torch.ones(8, device="cuda")
        with on_side_stream():
            scatter[(1,)](values, slots, pool, BLOCK=8)
        second(pool)

    rows = torch.arange(8, 16, device="cuda")
    assert find_violation(lambda: program(lambda pool: pool.index_fill_(0, rows, 2))) is None
    found = find_violation(lambda: program(torch.Tensor.zero_))
    assert isinstance(found, UnorderedAccess)


def test_rows_that_do_not_overlap_need_no_order() -> None:
    def program() -> None:
        pool = torch.zeros(4, 8, device="cuda")
        with on_side_stream():
            pool[:2].add_(1)
        pool[2:].add_(1)

    assert find_violation(program) is None


def test_a_replay_is_ordered_with_other_launches_and_a_capture_is_not() -> None:
    def program(waits: bool) -> None:
        model = CapturedModel()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            model.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(model.graph):
                model.run_kernel()
        model.out.add_(1)  # nothing of the capture has run
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model.graph.replay()
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        model.out.add_(1)

    assert find_violation(lambda: program(waits=True)) is None
    found = find_violation(lambda: program(waits=False))
    assert isinstance(found, UnorderedAccess)
    assert "which add_one of a replayed graph" in found.headline


@pytest.mark.parametrize("protection", ["record_stream", "wait", "none"])
def test_memory_that_is_reused_too_early_is_reported_with_both_launches(protection: str) -> None:
    def program() -> None:
        source = torch.zeros(8, device="cuda")
        with on_side_stream() as side:
            use(source)
            if protection == "record_stream":
                source.record_stream(side)
        drop([source])
        del source
        if protection == "wait":
            torch.cuda.current_stream().wait_stream(side)
        torch.ones(8, device="cuda")

    def use(source: torch.Tensor) -> None:
        source.sum()

    def drop(tensors: list[torch.Tensor]) -> None:
        tensors.clear()

    found = find_violation(program, "streams")
    if protection != "none":
        assert found is None
        return
    assert isinstance(found, EarlyReuse)
    assert "aten::sum reads self" in found.headline
    assert "in use" in found.details[0]
    assert "freed at" in found.details[2]
    assert "writes" in found.details[3]
    assert "on stream 0 (the default)" in found.details[3]


def test_a_stack_leaves_triton_out_wherever_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ModuleType("triton")
    package.__file__ = str(tmp_path / "triton" / "__init__.py")
    monkeypatch.setitem(sys.modules, "triton", package)
    launcher: dict[str, Any] = {"capture_stack": capture_stack}
    source = "def run():\n    return capture_stack()"
    exec(compile(source, str(tmp_path / "triton" / "runtime" / "jit.py"), "exec"), launcher)
    assert launcher["run"]()[0].file == __file__


def test_a_check_reports_only_its_own_kind() -> None:
    def program() -> None:
        target = torch.zeros(8, device="cuda")
        with on_side_stream():
            target.add_(1)
        target.add_(1)

    assert find_violation(program, "graphs") is None
    assert find_violation(program, "streams") is not None


def test_a_cpu_has_neither_graphs_nor_streams() -> None:
    with (
        pytest.raises(ValueError, match="on a GPU or on device 'virtual'"),
        checking.checked("cpu", launch_checks=("graphs",)),
    ):
        pass


def test_a_captured_buffer_that_a_cycle_held_is_reported_at_the_end() -> None:
    models = []

    def program() -> None:
        model = CapturedModel()
        models.append(model)
        model.capture(lambda: model.out.copy_(model.buffer * 2))
        cycle: list[Any] = [model.buffer]  # as Triton's compiler leaves them, of a kernel's globals
        cycle.append(cycle)
        model.buffer = torch.ones(16, device="cuda")

    gc.disable()
    try:
        found = find_violation(program, "graphs")
    finally:
        gc.enable()
    assert isinstance(found, StaleGraphAddress)


def test_an_error_of_the_program_names_the_report_that_was_still_to_be_confirmed() -> None:
    models = []  # whose graph is still there when the program fails

    def free_and_fail() -> None:
        model = CapturedModel()
        models.append(model)
        model.capture(lambda: model.out.copy_(model.buffer * 2))
        model.buffer = torch.ones(16, device="cuda")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        find_violation(free_and_fail, "graphs")
    (note,) = caught.value.__notes__
    assert "self is freed, and a captured graph" in note
