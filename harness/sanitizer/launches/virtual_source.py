"""The events of the virtual GPU, for a `LaunchTracer`.

torch's operators report what they did. A launch that is more than one operator (a Triton kernel, a
stand-in for a CUDA binary) is one launch: a kernel's IR says what it accesses, and of a stand-in
the operators that it is made of.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from harness.sanitizer.device import dispatch, graphs, host_memory, memory, streams
from harness.sanitizer.device.streams import Clock
from harness.sanitizer.launches import kernel_effects, operator_effects
from harness.sanitizer.launches.device_launch import ArgumentUse
from harness.sanitizer.launches.launch_tracer import LaunchTracer


class VirtualClocks:
    """The clocks that the virtual device's streams have."""

    def get_current_stream(self) -> int:
        return int(streams.current_stream().stream_id)

    def advance(self, stream: int) -> tuple[int, Clock]:
        current = streams.current_stream()
        return current.advance(), dict(current.clock)

    def get_clock(self, stream: int) -> Clock:
        clock = dict(streams.get_host_clock())
        if (found := streams.find_stream(stream)) is not None:
            streams.merge_clock(clock, found.clock)
        return clock


class _InnerOperators:
    """The effects of a stand-in's operators on the memory that it was called with."""

    def __init__(self, arguments: Any) -> None:
        self._names = {
            tensor.untyped_storage().data_ptr(): name
            for name, tensor in operator_effects.iterate_tensors("argument", arguments)
            if tensor.is_cuda
        }
        self.uses: list[ArgumentUse] = []

    def add(self, uses: list[ArgumentUse]) -> None:
        for use in uses:
            name = self._names.get(use.tensor.untyped_storage().data_ptr())
            if name is not None:
                self.uses.append(replace(use, name=name))


class VirtualSource:
    """Observes the device while it is open."""

    def __init__(self, tracer: LaunchTracer) -> None:
        self._tracer = tracer
        self._living: dict[int, Any] = {}  # weak references, which call when memory is freed
        self._thread = threading.local()

    def open(self) -> None:
        dispatch.OBSERVERS.append(self._observe_operator)
        memory.ALLOCATION_OBSERVERS.append(self._observe_allocation)
        host_memory.RECORD_STREAM_OBSERVERS.append(self._observe_record_stream)
        streams.RECORD_OBSERVERS.append(self._tracer.note_event)
        graphs.GRAPH_OBSERVERS.append(self)

    def close(self) -> None:
        dispatch.OBSERVERS.remove(self._observe_operator)
        memory.ALLOCATION_OBSERVERS.remove(self._observe_allocation)
        host_memory.RECORD_STREAM_OBSERVERS.remove(self._observe_record_stream)
        streams.RECORD_OBSERVERS.remove(self._tracer.note_event)
        graphs.GRAPH_OBSERVERS.remove(self)
        self._living.clear()

    # Memory

    def _observe_allocation(self, tensor: torch.Tensor, owner: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        if not start:
            return

        def note_free(reference: Any) -> None:
            self._living.pop(id(reference), None)
            self._tracer.free(start)

        reference = weakref.ref(owner, note_free)
        self._living[id(reference)] = reference
        self._tracer.allocate(start, storage.nbytes())

    def _observe_record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        self._tracer.record_stream(tensor, int(stream.stream_id))

    # Launches

    def _observe_operator(
        self,
        plan: dispatch.OperatorPlan,
        args: tuple[Any, ...],
        options: dict[str, Any],
        result: Any,
    ) -> None:
        inner: _InnerOperators | None = getattr(self._thread, "inner", None)
        if inner is None and self._tracer.is_paused:
            return
        effects = operator_effects.find_effects(plan.operator)
        if not effects.launches:
            return
        uses = effects.list_uses(args, options, result)
        if inner is not None:
            inner.add(uses)
        else:
            self._tracer.launch_operator(effects.name, uses, args, options, result)

    def wrap_launch(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run_launch(*args: Any, **options: Any) -> Any:
            if self._tracer.is_paused:
                return function(*args, **options)
            if args and type(args[0]).__name__ == "JITFunction":
                kernel, kernel_args, _, kernel_options = args
                found = kernel_effects.list_kernel_uses(kernel, kernel_args, kernel_options)
                with self._tracer.pause():
                    result = function(*args, **options)
                values = kernel_args, kernel_options
                self._tracer.launch(kernel.fn.__name__, found.uses, values, found.is_known)
                return result
            self._thread.inner = inner = _InnerOperators([args, options])
            try:
                with self._tracer.pause():
                    result = function(*args, **options)
            finally:
                self._thread.inner = None
            for _, tensor in operator_effects.iterate_tensors("result", result):
                self._add_result(tensor, inner)
            self._tracer.launch(name, inner.uses, (args, options))
            return result

        return run_launch

    def _add_result(self, tensor: torch.Tensor, inner: _InnerOperators) -> None:
        """Note a new tensor of a stand-in, which it allocated and wrote."""
        if not tensor.is_cuda or not tensor.numel():
            return
        storage = tensor.untyped_storage()
        if not self._tracer.knows(storage.data_ptr()):
            self._tracer.allocate(storage.data_ptr(), storage.nbytes())
            inner.uses.append(ArgumentUse("result", tensor, writes=True))

    # Graphs

    def begin_capture(self, graph: Any) -> None:
        self._tracer.begin_capture(graph, graph.pool())

    def end_capture(self, graph: Any) -> None:
        self._tracer.end_capture(graph)

    def reset(self, graph: Any) -> None:
        self._tracer.reset(graph)

    @contextlib.contextmanager
    def run_replay(self, graph: Any) -> Iterator[None]:
        self._tracer.replay(graph)
        with self._tracer.pause():
            yield
