"""Streams and events of the virtual device, with the order that they put launches in.

Everything runs at once, in the program's order; on a GPU, launches on two streams have no order
unless an event, a wait or a synchronization gives them one. Each stream therefore has a vector
clock: for every stream, how many of its launches have happened before the stream's next one.

    side.wait_stream(main)  # side's clock now holds main's: launches so far happened before
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

Clock = dict[int, int]  # by a stream's id: launches that have happened before

_numbers = itertools.count(1)
_thread = threading.local()
_living_streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
_host_clock: Clock = {}


def merge_clock(clock: Clock, other: Clock) -> None:
    for stream, count in other.items():
        if count > clock.get(stream, 0):
            clock[stream] = count


def get_host_clock() -> Clock:
    """Return what the host has waited for: later launches happen after that.

    It is one clock for all threads, as they order each other in ways that are not seen here.
    """
    return _host_clock


def find_stream(stream_id: int) -> Stream | None:
    return _living_streams.get(stream_id)


# Called with what the host has waited for.
WAIT_OBSERVERS: list[Callable[[Clock], None]] = []
# Called with each event that is recorded.
RECORD_OBSERVERS: list[Callable[[Event], None]] = []


def wait_on_host(clock: Clock) -> None:
    """Order the next launches, and the host's reads, after a clock."""
    merge_clock(_host_clock, clock)
    for observe in WAIT_OBSERVERS:
        observe(_host_clock)


class Stream:
    """A stream, in place of `torch.cuda.Stream`."""

    def __init__(self, device: Any = None, priority: int = 0, **options: Any) -> None:
        self.device = torch.device("cuda", get_device_index(device))
        self.priority = priority
        self.stream_id = options.get("stream_id") or next(_numbers)
        self.clock: Clock = {}
        _living_streams.setdefault(self.stream_id, self)

    @property
    def device_index(self) -> int:
        return int(self.device.index)

    @property
    def device_type(self) -> int:
        return 1

    @property
    def cuda_stream(self) -> int:
        """The handle; the default stream's is 0, as on a GPU."""
        return 0 if self.stream_id < 0 else self.stream_id

    _as_parameter_ = cuda_stream

    def advance(self) -> int:
        """Count a launch, which happens after all that the host has waited for."""
        merge_clock(self.clock, _host_clock)
        self.clock[self.stream_id] = count = self.clock.get(self.stream_id, 0) + 1
        return count

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        wait_on_host(self.clock)

    def query(self) -> bool:
        """Return True, and order what follows: a program that sees the end may rely on it."""
        self.synchronize()
        return True

    def is_capturing(self) -> bool:
        return bool(torch.cuda.is_current_stream_capturing())

    def __enter__(self) -> Stream:
        self._before = current_stream(self.device)
        set_stream(self)
        return self

    def __exit__(self, *error: object) -> None:
        set_stream(self._before)

    def __repr__(self) -> str:
        return f"<virtual stream {self.cuda_stream} of {self.device}>"


class ExternalStream(Stream):
    """A stream that other code has made: known by its handle alone."""

    def __init__(self, stream_ptr: int, device: Any = None, **options: Any) -> None:
        super().__init__(device, stream_id=stream_ptr or None)


class Event:
    """An event, in place of `torch.cuda.Event`: the clock of a stream when it was recorded."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self.clock: Clock | None = None
        self.host_time = 0.0  # when it was recorded
        self.device = torch.device("cuda", get_device_index(None))

    cuda_event = property(id)

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or current_stream()
        merge_clock(stream.clock, _host_clock)
        self.clock, self.host_time = dict(stream.clock), time.perf_counter()
        for observe in RECORD_OBSERVERS:
            observe(self)

    def wait(self, stream: Stream | None = None) -> None:
        """Order a stream after the recorded launches; an unrecorded event orders nothing."""
        merge_clock((stream or current_stream()).clock, self.clock or {})

    def query(self) -> bool:
        self.synchronize()
        return True

    def synchronize(self) -> None:
        wait_on_host(self.clock or {})

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds that this machine took: benchmarks divide by them."""
        return max(1e-3, 1000 * (end_event.host_time - self.host_time))

    def ipc_handle(self) -> bytes:
        raise NotImplementedError("the virtual device shares no events between processes")


_default_streams: dict[int, Stream] = {}


def default_stream(device: Any = None) -> Stream:
    index = get_device_index(device)
    if index not in _default_streams:
        _default_streams[index] = Stream(index, stream_id=-1 - index)
    return _default_streams[index]


def current_stream(device: Any = None) -> Stream:
    index = get_device_index(device)
    streams: dict[int, Stream] = _thread.__dict__.setdefault("streams", {})
    return streams.get(index) or default_stream(index)


def set_stream(stream: Stream | None) -> None:
    if stream is not None:
        _thread.__dict__.setdefault("streams", {})[stream.device_index] = stream
        set_device(stream.device_index)


class StreamContext:
    """`torch.cuda.stream(stream)`; None leaves the current one."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self._device = current_device()
        if self.stream is not None:
            self._before = current_stream(self.stream.device)
            set_stream(self.stream)

    def __exit__(self, *error: object) -> None:
        if self.stream is not None:
            set_stream(self._before)
            set_device(self._device)


# Devices


def current_device() -> int:
    return getattr(_thread, "device", 0)


def set_device(device: Any) -> None:
    index = get_device_index(device)
    if index >= torch.cuda.device_count():
        raise torch.AcceleratorError(f"CUDA error: invalid device ordinal ({index})")
    _thread.device = index


def get_device_index(device: Any, optional: bool = True, allow_cpu: bool = False) -> int:
    """Return the index that `device` names; None is this thread's current device."""
    if isinstance(device, int):
        return device if device >= 0 else current_device()
    if device is None:
        return current_device()
    index = torch.device(device).index
    return current_device() if index is None else int(index)


class DeviceContext:
    """`torch.cuda.device(index)`."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else get_device_index(device)

    def __enter__(self) -> None:
        self.prev_idx = current_device()
        if self.idx >= 0:
            set_device(self.idx)

    def __exit__(self, *error: object) -> None:
        set_device(self.prev_idx)


class DeviceOf(DeviceContext):
    """`torch.cuda.device_of(tensor)`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.get_device() if tensor.is_cuda else None)


def synchronize_device(device: Any = None) -> None:
    """Order the next launches after all launches of a device."""
    index = get_device_index(device)
    for stream in list(_living_streams.values()):
        if stream.device_index == index:
            stream.synchronize()


def exchange_device(index: int) -> int:
    """Set the current device and return the one before; a negative index changes nothing."""
    before = current_device()
    if index >= 0:
        set_device(index)
    return before
