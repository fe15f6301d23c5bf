"""A planted fault of a graph is named with both stacks, and its correct twin is not.

Each test runs its program in a checked session of the virtual GPU, and once more with the source of
events that a card has.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from launch_programs import (
    CapturedModel,
    add_one_through,
    find_violation,
    launch_copy,
    make_allocations,
    on_side_stream,
)

from harness import checking
from harness.sanitizer.launches.call_stacks import capture_stack
from harness.sanitizer.violations.exceptions import StaleGraphAddress, StaleGraphNumber

pytestmark = pytest.mark.usefixtures("event_source")
HERE = "launch_programs.py"
COUNT = 8  # elements that a captured launch computes


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
        table = torch.tensor([layer.data_ptr() for layer in layers], device="cuda")
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


def test_a_number_of_a_module_that_changes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> None:
        model = CapturedModel()
        model.capture(lambda: launch_copy(model.buffer, model.out, COUNT))
        model.graph.replay()
        monkeypatch.setattr(sys.modules[__name__], "COUNT", 4)
        model.graph.replay()

    found = find_violation(program, "graphs")
    assert isinstance(found, StaleGraphNumber)
    assert "keeps COUNT = 8, and it is 4 at the replay" in found.headline


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
        model.capture(lambda: launch_copy(model.buffer, model.out, model.metadata.count))  # type: ignore[attr-defined]
        model.metadata = Metadata(4)  # type: ignore[attr-defined]
        model.graph.replay()

    assert find_violation(program) is None


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
