"""CUDA graphs of the virtual device: a capture records what ran, a replay runs it again.

Invariant: a replay works on the addresses of the capture. Memory that was allocated while capturing
belongs to the graph's pool (`graph_pool`) and lives as long as the graph. All other memory, that of
other pools too, must still be there: a replay whose graph uses freed memory raises
`StaleGraphMemory`, where a GPU would read or write whatever lies there now.

A capture runs what it records, once, where a GPU only records: a program sees no difference unless
it relies on a captured update not to have happened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from harness.sanitizer.device import dispatch, graph_pool, memory, streams
from harness.sanitizer.device.callers import find_caller
from harness.sanitizer.device.nested_tensors import list_tensors

_bindings: Any = torch._C
_thread = threading.local()


class StaleGraphMemory(RuntimeError):
    """A replay of a graph whose memory was freed since the capture."""


class CaptureError(RuntimeError):
    """An operation that a GPU refuses while a stream is capturing."""

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"CUDA error: operation not permitted when stream is capturing: {operation} at "
            f"{find_caller()} makes the host wait for the device"
        )


class _CapturedTensor:
    """A tensor of a captured step, by its address: the step does not keep it alive."""

    __slots__ = ("_alive", "_borrowed", "_description", "_is_own", "_layout", "_storage")

    def __init__(self, tensor: torch.Tensor, own_pool: graph_pool.MemoryPool) -> None:
        storage = tensor.untyped_storage()
        self._alive = StorageWeakRef(storage)
        pool = graph_pool.find_owner(storage.data_ptr())
        self._is_own = pool is own_pool  # the graph keeps its pool
        self._borrowed: graph_pool.BorrowedBytes | None = None
        if pool is not None and not self._is_own:
            self._borrowed = pool.borrow(storage.data_ptr(), storage.nbytes())
        self._storage = storage.data_ptr(), storage.nbytes(), tensor.get_device()
        self._layout = tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()
        self._description = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"

    @property
    def _is_there(self) -> bool:
        if self._is_own or not self._alive.expired():
            return True
        return self._borrowed is not None and self._borrowed.is_kept

    def revive(self, step: str, by_address: bool = False) -> torch.Tensor:
        """Return the tensor; by its address it reaches to the end of its memory."""
        if not self._is_there:
            raise StaleGraphMemory(
                f"the graph's {step} uses a tensor ({self._description}, address "
                f"{self._storage[0]:#x}) that was freed after the capture: keep a reference to it "
                "for as long as the graph is replayed"
            )
        layout = self._layout
        if by_address:
            dtype, offset, *_ = layout
            layout = dtype, offset, (self._storage[1] // dtype.itemsize - offset,), (1,)
        return memory.make_unowned(self._storage, layout)


@dataclass(frozen=True, slots=True)
class _Step:
    """One captured operation."""

    name: str
    line: str  # the caller's file and line
    function: Callable[..., Any]
    arguments: Any
    options: Any
    results: tuple[Any, ...]  # new ones, into whose memory a replay writes
    by_address: bool = False  # a kernel's: a replay knows addresses, and no sizes of views

    def replay(self) -> None:
        described = f"{self.name} (captured at {self.line})"

        def revive(captured: _CapturedTensor) -> torch.Tensor:
            return captured.revive(described, self.by_address)

        arguments = _map_tensors(self.arguments, _CapturedTensor, revive)
        options = _map_tensors(self.options, _CapturedTensor, revive)
        result = self.function(*arguments, **options)
        if self.results:
            fresh = [tensor for tensor in list_tensors(result) if tensor.is_cuda]
            results = _map_tensors(self.results, _CapturedTensor, revive)
            for target, value in zip(results, fresh, strict=True):
                if not memory.has_values(value):
                    continue
                memory.to_host(target).copy_(memory.to_host(value))


class Capture:
    """The steps that a thread records, and the pool that gives its tensors their memory."""

    def __init__(self, pool: graph_pool.MemoryPool) -> None:
        self.steps: list[_Step] = []
        self.pool = pool
        self._thread = threading.get_ident()

    def start(self) -> None:
        _thread.capture = self
        dispatch.OBSERVERS.append(self._observe)
        memory.set_byte_source(self._take)
        self.pool.observe_reuse = self._record_reuse

    def stop(self) -> None:
        _thread.capture = None
        dispatch.OBSERVERS.remove(self._observe)
        memory.set_byte_source(None)
        self.pool.observe_reuse = None

    def _take(self, nbytes: int, index: int) -> torch.Tensor:
        return self.pool.take(nbytes, index, self)

    def _record_reuse(self, clear: Callable[[], None]) -> None:
        self.record("memory of the pool", clear, (), {}, None)

    def move_to_pool(self, result: Any, allocated: set[int]) -> Any:
        """Move what a launch allocated and returned to the pool: views of one storage stay so."""
        storages: dict[int, torch.Tensor] = {}

        def move(tensor: torch.Tensor) -> torch.Tensor:
            address = tensor.untyped_storage().data_ptr() if tensor.is_cuda else 0
            if address not in allocated:
                return tensor
            if address in storages:
                moved = memory.view_storage(storages[address], tensor)
            else:
                moved = memory.to_device(memory.to_host(tensor), tensor.get_device())
                storages[address] = moved
            dispatch.report_writes(moved)
            return moved

        return _map_tensors(result, torch.Tensor, move)

    def _observe(
        self,
        plan: dispatch.OperatorPlan,
        args: tuple[Any, ...],
        options: dict[str, Any],
        result: Any,
    ) -> None:
        if threading.get_ident() != self._thread:
            return
        if plan.name in dispatch.HOST_READS or _is_blocking_copy(plan.name, args, options, result):
            raise CaptureError(plan.name)
        if not plan.is_view and not plan.name.startswith("aten::empty"):
            self.record(plan.name, plan.operator, args, options, result)

    def record(
        self,
        name: str,
        function: Callable[..., Any],
        args: Any,
        options: Any,
        result: Any,
        by_address: bool = False,
    ) -> None:
        argument_ids = {id(tensor) for tensor in list_tensors(args, options)}
        results = [
            tensor
            for tensor in list_tensors(result)
            if id(tensor) not in argument_ids and tensor.is_cuda
        ]
        self.steps.append(
            _Step(
                name,
                find_caller(),
                function,
                _map_tensors(args, torch.Tensor, self._capture_tensor),
                _map_tensors(options, torch.Tensor, self._capture_tensor),
                tuple(map(self._capture_result, results)),
                by_address,
            )
        )

    def _capture_tensor(self, tensor: torch.Tensor) -> Any:
        """Return the tensor by its address; a number of the host is part of the launch itself."""
        if tensor.is_cuda:
            return _CapturedTensor(tensor, self.pool)
        return tensor if tensor.dim() else tensor.clone()

    def _capture_result(self, tensor: torch.Tensor) -> Any:
        """Return a new tensor by its address in a pool; one of no pool lives with its step."""
        is_pooled = graph_pool.find_owner(tensor.untyped_storage().data_ptr()) is not None
        return _CapturedTensor(tensor, self.pool) if is_pooled else tensor


def _is_blocking_copy(
    name: str, args: tuple[Any, ...], options: dict[str, Any], result: Any
) -> bool:
    if name == "aten::_to_copy":
        return args[0].is_cuda != result.is_cuda and not options["non_blocking"]
    if name != "aten::copy_":
        return False
    target, source, non_blocking = (*args, options.get("non_blocking", False))[:3]
    return target.is_cuda != source.is_cuda and not non_blocking and source.dim() > 0


def get_capture() -> Capture | None:
    """Return the capture of this thread, if its stream is capturing."""
    return getattr(_thread, "capture", None)


class GraphObserver(Protocol):
    """What is called for each launch that is more than one operator, and for each graph."""

    def wrap_launch(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]: ...

    def begin_capture(self, graph: CUDAGraph) -> None: ...

    def end_capture(self, graph: CUDAGraph) -> None: ...

    def reset(self, graph: CUDAGraph) -> None: ...

    def run_replay(self, graph: CUDAGraph) -> AbstractContextManager[None]:
        """Enter with a replay, and leave when its steps have run."""
        ...


GRAPH_OBSERVERS: list[GraphObserver] = []


def run_captured(name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Run what is one launch on a GPU, and record it as one step if a stream is capturing."""
    return _run_captured(name, function, args, options, by_address=False)


def run_captured_kernel(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Run a kernel's launch, and record it as one step if a stream is capturing.

    A replay may use more of a buffer than the view that was captured: a server passes the part that
    a dummy batch needs, and fills more of it later. So the buffer's end is the bound of a replay.
    """
    return _run_captured(name, function, args, {}, by_address=True)


def _run_captured(
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    by_address: bool,
) -> Any:
    capture = get_capture()
    run = function
    for observer in tuple(GRAPH_OBSERVERS):
        run = observer.wrap_launch(name, run)
    if capture is None:
        return run(*args, **options)
    capture.stop()
    try:
        with memory.record_allocations() as allocated:
            result = run(*args, **options)
    finally:
        capture.start()
    result = capture.move_to_pool(result, allocated)
    capture.record(name, function, args, options, result, by_address)
    return result


class CUDAGraph:
    """A graph, in place of `torch.cuda.CUDAGraph`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._capture: Capture | None = None
        self._pool: Any = None
        self.replays = 0

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", **options: Any
    ) -> None:
        if get_capture() is not None:
            raise RuntimeError("CUDA error: a capture is under way on this stream")
        self._pool = pool or graph_pool.make_handle()
        for observer in GRAPH_OBSERVERS:
            observer.begin_capture(self)
        self._capture = Capture(graph_pool.find_pool(self._pool))
        self._capture.start()

    def capture_end(self) -> None:
        assert self._capture is not None
        self._capture.stop()
        for observer in GRAPH_OBSERVERS:
            observer.end_capture(self)

    def instantiate(self) -> None:
        """Do nothing: a captured graph can be replayed."""

    def replay(self) -> None:
        if self._capture is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        self.replays += 1
        with ExitStack() as stack:
            for observer in GRAPH_OBSERVERS:
                stack.enter_context(observer.run_replay(self))
            stack.enter_context(graph_pool.note_replay(self._capture.pool))
            stack.enter_context(memory.leave_uncounted())  # a replay writes into the pool
            stack.enter_context(torch.no_grad())
            stack.enter_context(_bindings.DisableTorchFunction())
            for step in self._capture.steps:
                step.replay()

    def reset(self) -> None:
        self._capture = None
        for observer in GRAPH_OBSERVERS:
            observer.reset(self)

    def pool(self) -> Any:
        return self._pool

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the captured operations and launches."""
        return tuple(step.name for step in self._capture.steps) if self._capture else ()

    def register_generator_state(self, generator: Any) -> None:
        """Do nothing: random numbers come from the CPU's generator at each replay."""

    def enable_debug_mode(self) -> None:
        """Do nothing: `steps` is always there."""

    def debug_dump(self, debug_path: str) -> None:
        with open(debug_path, "w") as file:
            file.write("\n".join(self.steps))


class GraphContext:
    """`torch.cuda.graph(graph)`: captures the body on a stream of its own."""

    default_capture_stream: streams.Stream | None = None

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: streams.Stream | None = None,
        capture_error_mode: str = "global",
        **options: Any,
    ) -> None:
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.capture_error_mode = capture_error_mode
        if stream is None:
            cls = type(self)
            if cls.default_capture_stream is None:
                cls.default_capture_stream = streams.Stream()
            stream = cls.default_capture_stream
        self.capture_stream = stream

    def __enter__(self) -> None:
        streams.synchronize_device()
        self._context = streams.StreamContext(self.capture_stream)
        self._context.__enter__()
        self.cuda_graph.capture_begin(self.pool, self.capture_error_mode)

    def __exit__(self, *error: object) -> None:
        self.cuda_graph.capture_end()
        self._context.__exit__(*error)


def is_current_stream_capturing() -> bool:
    return get_capture() is not None


def _map_tensors(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {name: _map_tensors(one, kind, change) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map_tensors(one, kind, change) for one in value)
    return value
