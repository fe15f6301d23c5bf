"""torch's trace of a GPU, made by the virtual one: the source for cards then runs without a card.

A torch with CUDA calls `torch.cuda._gpu_trace` when memory is made or freed, an event is recorded
or waited for, and the host waits. Here the virtual device's classes are wrapped to call it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch.cuda import _gpu_trace

from harness.sanitizer.device import graphs, memory, streams
from harness.sanitizer.launches import stream_check
from harness.sanitizer.launches.card_source import CardClocks, CardSource
from harness.sanitizer.launches.launch_checks import run_tracer
from harness.sanitizer.launches.launch_tracer import LaunchTracer
from harness.sanitizer.violations.exceptions import Violation


@contextlib.contextmanager
def trace_card(
    checks: Sequence[str],
    report: Callable[[Violation], None],
) -> Iterator[None]:
    clocks = CardClocks()
    tracer = LaunchTracer(checks, clocks, report, stream_check.has_fitting_size)
    source = CardSource(tracer, clocks)
    with _fire_trace(), _hide_replays(tracer), run_tracer(tracer, source):
        yield


class _ReplayHider:
    """What a replay does is no call of the host on a GPU, so torch's trace says nothing of it."""

    def __init__(self, tracer: LaunchTracer) -> None:
        self._tracer = tracer

    def wrap_launch(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def ignore(self, graph: Any) -> None:
        """Ignore an event that the source for cards observes by itself."""

    begin_capture = end_capture = reset = ignore

    def run_replay(self, graph: Any) -> contextlib.AbstractContextManager[None]:
        return self._tracer.pause()


@contextlib.contextmanager
def _hide_replays(tracer: LaunchTracer) -> Iterator[None]:
    hider = _ReplayHider(tracer)
    graphs.GRAPH_OBSERVERS.append(hider)
    try:
        yield
    finally:
        graphs.GRAPH_OBSERVERS.remove(hider)


def _get_handle(stream: Any) -> int:
    return int((stream or streams.current_stream()).cuda_stream)


@contextlib.contextmanager
def _fire_trace() -> Iterator[None]:
    living: dict[int, Any] = {}
    firing: list[bool] = []

    def fire_allocation(tensor: torch.Tensor, owner: torch.Tensor) -> None:
        start = tensor.untyped_storage().data_ptr()

        def fire_free(reference: Any) -> None:
            living.pop(id(reference), None)
            _gpu_trace.MemoryDeallocationCallbacks.fire_callbacks(start)

        reference = weakref.ref(owner, fire_free)
        living[id(reference)] = reference
        _gpu_trace.MemoryAllocationCallbacks.fire_callbacks(start)

    def wrap(cls: Any, name: str, fire: Callable[..., None]) -> Any:
        original = getattr(cls, name)

        def call(*args: Any) -> Any:
            result = original(*args)
            if not firing:  # the source has streams and events of the same classes
                firing.append(True)
                try:
                    fire(*args)
                finally:
                    firing.pop()
            return result

        return mock.patch.object(cls, name, call)

    memory.ALLOCATION_OBSERVERS.append(fire_allocation)
    with contextlib.ExitStack() as stack:
        stack.callback(living.clear)
        stack.callback(memory.ALLOCATION_OBSERVERS.remove, fire_allocation)
        for cls, name, fire in (
            (
                streams.Event,
                "record",
                lambda event, stream=None: _gpu_trace.EventRecordCallbacks.fire_callbacks(
                    id(event), _get_handle(stream)
                ),
            ),
            (
                streams.Event,
                "wait",
                lambda event, stream=None: _gpu_trace.EventWaitCallbacks.fire_callbacks(
                    id(event), _get_handle(stream)
                ),
            ),
            (
                streams.Stream,
                "synchronize",
                lambda stream: _gpu_trace.StreamSynchronizationCallbacks.fire_callbacks(
                    _get_handle(stream)
                ),
            ),
        ):
            stack.enter_context(wrap(cls, name, fire))
        yield
