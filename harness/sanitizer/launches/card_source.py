"""The events of a GPU, for a `LaunchTracer`, as torch reports them.

- Operators, custom ones too: a dispatch mode, in every thread.
- Memory, events, streams: torch's own trace of the GPU (`torch.cuda._gpu_trace`), which calls when
  an allocation is made or freed, an event is recorded or waited for, the host waits.
- Triton's kernels: `JITFunction.run`. Collectives: by their call, on the stream that they let wait.

Nothing here waits for the device. What torch does not tell: kernels that a library launches by
itself, and events that other code than torch records.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.cuda import _gpu_trace
from torch.utils._python_dispatch import TorchDispatchMode

from harness.core.after_import import call_after_import
from harness.sanitizer import plugins
from harness.sanitizer.device import streams
from harness.sanitizer.device.streams import Clock
from harness.sanitizer.launches import collective_effects, kernel_effects, operator_effects
from harness.sanitizer.launches.collective_effects import CollectiveEffects
from harness.sanitizer.launches.launch_tracer import LaunchTracer
from harness.sanitizer.plugins import CollectiveClass
from harness.sanitizer.triton import jit_kernels

_bindings: Any = torch._C
_DEFAULT_STREAM = -1  # the number of the stream whose handle is 0


class CardClocks:
    """The vector clocks of the GPU's streams, by handle: those of the virtual device."""

    def __init__(self) -> None:
        self._streams: dict[int, streams.Stream] = {}
        self._events: dict[int, streams.Event] = {}
        self._thread = threading.local()

    def get_current_stream(self) -> int:
        handle = _bindings._cuda_getCurrentRawStream(torch.cuda.current_device())
        return self._get_stream(handle).stream_id

    def advance(self, stream: int) -> tuple[int, Clock]:
        found = self._get_stream(stream)
        return found.advance(), dict(found.clock)

    def get_clock(self, stream: int) -> Clock:
        clock = dict(streams.get_host_clock())
        streams.merge_clock(clock, self._get_stream(stream).clock)
        return clock

    def _get_stream(self, handle: int) -> streams.Stream:
        number = handle or _DEFAULT_STREAM
        if number not in self._streams:
            self._streams[number] = streams.Stream(0, stream_id=number)
        return self._streams[number]

    def _get_event(self, handle: int) -> streams.Event:
        if handle not in self._events:
            self._events[handle] = streams.Event()
        return self._events[handle]

    # Reported by torch

    def record_event(self, event: int, stream: int) -> None:
        self._get_event(event).record(self._get_stream(stream))

    def wait_event(self, event: int, stream: int) -> None:
        self._get_event(event).wait(self._get_stream(stream))
        self._thread.waiting_stream = self._get_stream(stream).stream_id

    def delete_event(self, event: int) -> None:
        self._events.pop(event, None)

    def synchronize_event(self, event: int) -> None:
        self._get_event(event).synchronize()

    def synchronize_stream(self, stream: int) -> None:
        self._get_stream(stream).synchronize()

    def synchronize_device(self) -> None:
        for stream in list(self._streams.values()):
            stream.synchronize()

    def take_waiting_stream(self) -> int | None:
        """Return the stream that last waited for an event in this thread, and forget it."""
        found: int | None = getattr(self._thread, "waiting_stream", None)
        self._thread.waiting_stream = None
        return found


class CardSource:
    def __init__(self, tracer: LaunchTracer, clocks: CardClocks) -> None:
        self._tracer, self._clocks = tracer, clocks
        self._mode = _TracingMode(tracer, clocks)
        self._is_open = False
        self._undo: list[Callable[[], Any]] = []

    def open(self) -> None:
        self._is_open = True
        streams.RECORD_OBSERVERS.append(self._tracer.note_event)
        _bindings._activate_gpu_trace()
        clocks = self._clocks
        callbacks: dict[str, Callable[..., Any]] = {
            "event_record": clocks.record_event,
            "event_wait": clocks.wait_event,
            "event_deletion": clocks.delete_event,
            "event_synchronization": clocks.synchronize_event,
            "stream_synchronization": clocks.synchronize_stream,
            "device_synchronization": clocks.synchronize_device,
            "memory_allocation": self._note_allocation,
            "memory_deallocation": self._tracer.free,
        }
        for name, function in callbacks.items():
            register = getattr(_gpu_trace, f"register_callback_for_{name}")
            register(self._while_open(function))  # torch has no way to take it back
        self._mode.__enter__()
        self._undo.append(lambda: self._mode.__exit__(None, None, None))
        self._replace(threading.Thread, "_bootstrap_inner", self._start_thread)
        self._observe_graphs()
        self._observe_queries()
        self._replace(torch.Tensor, "record_stream", self._record_stream)
        self._replace(torch, "tensor", self._make_tensor)
        call_after_import({"triton.runtime.jit": self._observe_kernels})
        for plugin in plugins.list_installed():
            for cls in plugin.collectives:
                observe = functools.partial(self._observe_collectives, cls)
                call_after_import({cls.module: observe})

    def close(self) -> None:
        self._is_open = False
        streams.RECORD_OBSERVERS.remove(self._tracer.note_event)
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _note_allocation(self, start: int) -> None:
        self._tracer.allocate(start, 0)

    def _while_open(self, function: Callable[..., Any]) -> Callable[..., None]:
        def call(*args: int) -> None:
            if self._is_open:
                function(*args)

        return call

    def _replace(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Replace a function until `close`; `call` gets the original one, and its arguments."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def call_with_original(*args: Any, **options: Any) -> Any:
            return call(original, *args, **options)

        setattr(owner, name, call_with_original)
        self._undo.append(lambda: setattr(owner, name, original))

    def _start_thread(self, start: Callable[[Any], None], thread: Any) -> None:
        with self._mode:
            start(thread)

    # Graphs

    def _observe_graphs(self) -> None:
        cls = torch.cuda.CUDAGraph
        self._replace(cls, "capture_begin", self._begin_capture)
        self._replace(cls, "capture_end", self._end_capture)
        self._replace(cls, "replay", functools.partial(self._report_graph, self._tracer.replay))
        self._replace(cls, "reset", functools.partial(self._report_graph, self._tracer.reset))

    def _begin_capture(
        self, begin: Callable[..., None], graph: Any, *args: Any, **options: Any
    ) -> None:
        self._tracer.begin_capture(graph, args[0] if args else options.get("pool"))
        begin(graph, *args, **options)

    def _end_capture(self, end: Callable[[Any], None], graph: Any) -> None:
        end(graph)
        self._tracer.end_capture(graph)

    @staticmethod
    def _report_graph(report: Callable[[Any], None], original: Any, graph: Any) -> Any:
        report(graph)
        return original(graph)

    # Orders that torch's trace leaves out: a program that polls until an event has happened

    def _observe_queries(self) -> None:
        def query_event(query: Callable[[Any], bool], event: Any) -> bool:
            if has_happened := query(event):
                self._clocks.synchronize_event(int(event.cuda_event))
            return has_happened

        def query_stream(query: Callable[[Any], bool], stream: Any) -> bool:
            if has_happened := query(stream):
                self._clocks.synchronize_stream(int(stream.cuda_stream))
            return has_happened

        self._replace(torch.cuda.Event, "query", query_event)
        self._replace(torch.cuda.Stream, "query", query_stream)

    # Tensors

    def _record_stream(self, record: Callable[..., None], tensor: Any, stream: Any) -> None:
        record(tensor, stream)
        self._tracer.record_stream(tensor, int(stream.cuda_stream) or _DEFAULT_STREAM)

    def _make_tensor(self, make: Callable[..., Any], data: Any, *args: Any, **options: Any) -> Any:
        tensor = make(data, *args, **options)
        is_list = isinstance(data, (list, tuple))
        if is_list and tensor.is_cuda and not tensor.is_floating_point():
            self._tracer.note_addresses(tensor, make(data, dtype=tensor.dtype))
        return tensor

    # Kernels

    def _observe_kernels(self, module: Any) -> None:
        tracer = self._tracer

        def launch_kernel(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            result = before(kernel, *args, grid=grid, warmup=warmup, **options)
            if not warmup and self._is_open and not tracer.is_paused:
                with tracer.pause():
                    found = kernel_effects.list_kernel_uses(kernel, args, options)
                tracer.launch(kernel.fn.__name__, found.uses, (args, options), found.is_known)
            return result

        before = jit_kernels.replace_run(module.JITFunction, launch_kernel)
        self._undo.append(functools.partial(jit_kernels.replace_run, module.JITFunction, before))

    def _observe_collectives(self, described: CollectiveClass, module: Any) -> None:
        cls = getattr(module, described.name)
        for name, (tensors, writes) in described.methods.items():
            if hasattr(cls, name):
                effects = CollectiveEffects(tensors, writes)
                call = functools.partial(self._call_collective, name, effects)
                self._replace(cls, name, call)

    def _call_collective(
        self,
        name: str,
        effects: CollectiveEffects,
        original: Callable[..., Any],
        communicator: Any,
        *args: Any,
        **options: Any,
    ) -> Any:
        result = original(communicator, *args, **options)
        stream = options.get("stream")
        number = None if stream is None else int(stream.cuda_stream) or _DEFAULT_STREAM
        self._tracer.launch(f"NCCL {name}", effects.list_uses(args, options), stream=number)
        return result


class _TracingMode(TorchDispatchMode):  # type: ignore[misc]
    """Reports each operator that ran on the GPU."""

    def __init__(self, tracer: LaunchTracer, clocks: CardClocks) -> None:
        super().__init__()
        self._tracer, self._clocks = tracer, clocks

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        self._clocks.take_waiting_stream()
        result = func(*args, **options)
        if self._tracer.is_paused:
            return result
        collective = collective_effects.OPERATORS.get(func._schema.name)
        if collective is not None:
            uses = collective.list_uses(args, options)
            # An asynchronous collective runs on a stream of its own, which waits for this one.
            stream = self._clocks.take_waiting_stream()
            self._tracer.launch(func._schema.name, uses, stream=stream)
            return result
        effects = operator_effects.find_effects(func)
        if effects.launches:
            uses = effects.list_uses(args, options, result)
            self._tracer.launch_operator(effects.name, uses, args, options, result)
        return result
