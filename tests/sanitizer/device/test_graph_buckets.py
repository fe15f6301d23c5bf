"""The largest and the smallest of SGLang's graphs: which batches run in them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.runs.rehearse import graph_buckets
from harness.runs.rehearse.graph_buckets import GraphCaptures, PrefillCaptures
from harness.sanitizer.device import graphs, stand_ins
from harness.sanitizer.device.record import RECORD

SIZES = [1, 2, 4, 8, 248, 256]


class GraphRunner:
    """Captures a graph of a size, and keeps it."""

    def __init__(self) -> None:
        self.graphs: dict[int, graphs.CUDAGraph] = {}

    def capture_one_shape(self, size: int, forward: Callable[[], Any]) -> None:
        graph = self.graphs[size] = graphs.CUDAGraph()
        graph.capture_begin()
        forward()
        graph.capture_end()


def make_captures(monkeypatch: pytest.MonkeyPatch) -> tuple[GraphCaptures, Any, Any]:
    """Return captures with a launcher, and a module that chooses sizes as SGLang's does."""
    module: Any = ModuleType(graph_buckets._RUNNER_MODULE)
    module.get_batch_sizes_to_capture = lambda runner: (list(SIZES), list(SIZES))
    module.DecodeCudaGraphRunner = type("Runner", (GraphRunner,), {})
    monkeypatch.setitem(sys.modules, graph_buckets._RUNNER_MODULE, module)
    launcher = SimpleNamespace(phase="", is_recording=False)
    return GraphCaptures(launcher), launcher, module  # type: ignore[arg-type]


def test_the_ends_alone_are_captured_and_their_launches_are_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captures, launcher, module = make_captures(monkeypatch)
    with captures.record():
        assert module.get_batch_sizes_to_capture(None) == ([1, 256], [1, 256])
        states = []
        runner = module.DecodeCudaGraphRunner()
        runner.capture_one_shape(
            256, lambda: states.append((launcher.phase, launcher.is_recording))
        )
        assert states == [("graph capture", True)]
        assert not launcher.is_recording
        runner.capture_one_shape(1, int)
    assert captures.buckets == SIZES
    captures.check_captured()
    with captures.require_replay(256):
        runner.graphs[256].replay()
    message = r"without the graph of 1 request \(sizes that were replayed: {}\)"
    with pytest.raises(RuntimeError, match=message.format(256)), captures.require_replay(1):
        runner.graphs[256].replay()
    with pytest.raises(RuntimeError, match=message.format("none")), captures.require_replay(1):
        pass
    assert module.get_batch_sizes_to_capture(None) == (SIZES, SIZES)
    assert module.DecodeCudaGraphRunner.capture_one_shape is GraphRunner.capture_one_shape
    assert captures not in graphs.GRAPH_OBSERVERS


class PrefillRunner(GraphRunner):
    """Captures each of its sizes in two segments, as it is made."""

    def __init__(self, sizes: list[int], begin: Callable[[], Any]) -> None:
        super().__init__()
        self.capture_num_tokens = sizes
        begin()
        self.capture()

    def capture(self) -> None:
        for size in reversed(self.capture_num_tokens):
            self.capture_one_shape(size, int)
            self.capture_one_shape(size, int)


def test_of_prefill_the_ends_of_the_runners_sizes_are_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher: Any = SimpleNamespace(phase="", is_recording=False)
    captures = PrefillCaptures(launcher)
    module: Any = ModuleType(PrefillCaptures._module)
    module.PrefillCudaGraphRunner = type("Runner", (PrefillRunner,), {})
    monkeypatch.setitem(sys.modules, PrefillCaptures._module, module)

    def capture_decode() -> None:
        """Capture a graph that is not one of prefill."""
        graph = graphs.CUDAGraph()
        graph.capture_begin()
        assert not launcher.is_recording
        graph.capture_end()

    with captures.record():
        runner = module.PrefillCudaGraphRunner([64, 4, 16], capture_decode)
    assert (captures.buckets, sorted(runner.graphs)) == ([4, 16, 64], [4, 64])
    assert [size for size, _ in captures._graphs] == [64, 64, 4, 4]
    assert launcher.phase == "prefill graph capture"
    with captures.require_replay(4):
        runner.graphs[4].replay()
    with pytest.raises(RuntimeError, match="the graph of 64 tokens"), captures.require_replay(64):
        runner.graphs[4].replay()
    shared = SimpleNamespace(can_run_graph=lambda batch: True)
    captures.keep_others_out(SimpleNamespace(prefill_cuda_graph_runner=shared))
    taken = [size for size in (1, 4, 5, 16, 17, 64) if shared.can_run_graph(make_chunk(size))]
    assert taken == [1, 4, 17, 64]


def make_chunk(tokens: int) -> Any:
    return SimpleNamespace(input_ids=[7] * tokens)


def test_arguments_that_ask_for_graphs_and_get_none_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captures, _, module = make_captures(monkeypatch)
    with captures.record():
        pass
    with pytest.raises(RuntimeError, match=r"no CUDA graph of decode was captured .*sizes: none"):
        captures.check_captured()
    with captures.record():
        module.get_batch_sizes_to_capture(None)
    with pytest.raises(RuntimeError, match="no CUDA graph of decode was captured"):
        captures.check_captured()


def test_a_batch_that_a_graph_between_would_take_runs_without_one() -> None:
    captures = GraphCaptures(SimpleNamespace())  # type: ignore[arg-type]
    captures.buckets = SIZES
    runner = SimpleNamespace(
        decode_cuda_graph_runner=SimpleNamespace(can_run_graph=lambda batch: batch.batch_size < 257)
    )
    captures.keep_others_out(runner)
    can_run = runner.decode_cuda_graph_runner.can_run_graph
    sizes = (1, 2, 6, 248, 249, 256, 257)
    taken = [size for size in sizes if can_run(SimpleNamespace(batch_size=size))]
    assert taken == [1, 249, 256]
    assert captures.smallest_padded == 249


def test_a_replay_counts_the_operators_that_nothing_checks() -> None:
    name = "test.operator_of_a_graph"
    graph = graphs.CUDAGraph()
    before = RECORD.stand_ins[name]
    graph.capture_begin()
    try:
        stand_ins._run_counted(name, lambda: None, (), {})
    finally:
        graph.capture_end()
    graph.replay()
    assert RECORD.stand_ins[name] - before == 2
