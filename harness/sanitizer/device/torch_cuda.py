"""The answers of `torch.cuda` for a virtual card; a name without an answer raises when called.

`ANSWERS` are functions and classes by name. `UNCHANGED` are torch's own, which need no driver.
Every other function of the package is replaced by one that raises UnansweredName.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from harness.sanitizer.device import default_generators, graph_pool, graphs, host_memory, streams
from harness.sanitizer.device.callers import find_caller
from harness.sanitizer.device.cards import Card, get_card, get_card_count
from harness.sanitizer.device.memory import LEDGER
from harness.sanitizer.device.record import RECORD
from harness.sanitizer.device.refusals import UnansweredName
from harness.sanitizer.device.streams import get_device_index

CUDA_VERSION = "13.0"
_bindings: Any = torch._C

# Functions of torch.cuda that are plain Python, or call only answered ones.
UNCHANGED = frozenset(
    """
    _check_capability _code_compatible_with_device _dummy_type _extract_arch_version _lazy_call
    _lazy_new _register_triton_kernels _transform_uuid_to_ordinals cast classproperty lru_cache
    _warn_typed_storage_removal _get_device_index _get_device range range_push range_pop
    custom_fwd custom_bwd
    """.split()
)


def replace_torch_cuda() -> None:
    """Replace every function of torch.cuda and of its modules."""
    answers = {**_DEVICE, **_MEMORY, **_STREAMS, **_RANDOM}
    for module in _list_modules():
        for name, value in list(vars(module).items()):
            if name in answers:
                setattr(module, name, answers[name])
            elif _is_unanswered(name, value):
                setattr(module, name, _make_refusal(f"{module.__name__}.{name}"))
    for name, value in answers.items():
        setattr(torch.cuda, name, value)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(torch.cuda.nvtx, name, lambda *args, **options: 0)
    torch.version.cuda = CUDA_VERSION
    torch.cuda.default_generators = default_generators.make_generators(get_card_count())
    _bindings._cuda_getCurrentRawStream = lambda device: streams.current_stream(device).cuda_stream
    _bindings._cuda_getDevice = streams.current_device
    _bindings._cuda_getCompiledVersion = lambda: 13000
    _bindings._get_accelerator = lambda *checked: torch.device("cuda")
    _bindings._cuda_clearCublasWorkspaces = lambda: None


def _list_modules() -> list[types.ModuleType]:
    return [
        module
        for name, module in list(sys.modules.items())
        if (name == "torch.cuda" or name.startswith("torch.cuda."))
        and isinstance(module, types.ModuleType)
    ]


def _is_unanswered(name: str, value: Any) -> bool:
    return (
        isinstance(value, types.FunctionType)
        and str(value.__module__).startswith("torch.cuda")
        and not value.__module__.startswith(("torch.cuda.amp", "torch.cuda.jiterator"))
        and name not in UNCHANGED
    )


def _make_refusal(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **options: Any) -> Any:
        raise UnansweredName(
            f"{name} has no answer, called at {find_caller()}: give it one in "
            "harness/sanitizer/device/torch_cuda.py"
        )

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    return refuse


def _ignore_call(*args: Any, **options: Any) -> None:
    """Do nothing, as the driver would have nothing to do."""


def _make_constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **options: value


# Devices


def get_device_properties(device: Any = None) -> Any:
    card = get_card()
    index = get_device_index(device)
    return _DeviceProperties(card, index)


class _DeviceProperties(SimpleNamespace):
    """What `torch.cuda.get_device_properties` returns."""

    def __init__(self, card: Card, index: int) -> None:
        super().__init__(
            name=card.name,
            major=card.capability[0],
            minor=card.capability[1],
            total_memory=card.memory,
            multi_processor_count=card.multiprocessors,
            warp_size=32,
            is_integrated=False,
            is_multi_gpu_board=False,
            max_threads_per_multi_processor=card.threads_per_multiprocessor,
            max_threads_per_block=1024,
            regs_per_multiprocessor=card.registers_per_multiprocessor,
            shared_memory_per_block=card.shared_memory_per_block,
            shared_memory_per_block_optin=card.shared_memory_per_block_optin,
            shared_memory_per_multiprocessor=card.shared_memory_per_multiprocessor,
            L2_cache_size=card.l2_cache,
            uuid=f"GPU-virtual-{index}",
            pci_bus_id=index,
            pci_device_id=0,
            pci_domain_id=0,
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "gcnArchName":  # AMD's, which programs probe
            raise AttributeError(name)
        raise UnansweredName(f"a device's property '{name}' has no answer, at {find_caller()}")


def _is_available() -> bool:
    RECORD.count_branch("torch.cuda.is_available")
    return True


def _is_bf16_supported(including_emulation: bool = True) -> bool:
    return get_card().capability >= (8, 0)


def _get_cudart() -> Any:
    return SimpleNamespace(
        cudaError=SimpleNamespace(success=0),
        cudaHostRegister=host_memory.register_memory,
        cudaHostUnregister=host_memory.unregister_memory,
        cudaGetErrorString=_make_constant("no error"),
        cudaMemGetInfo=_mem_get_info,
        cudaProfilerStart=_make_constant(0),
        cudaProfilerStop=_make_constant(0),
    )


_DEVICE: dict[str, Any] = {
    "is_available": _is_available,
    "is_initialized": _make_constant(True),
    "init": _ignore_call,
    "_lazy_init": _ignore_call,
    "_is_compiled": _make_constant(True),
    "_is_in_bad_fork": _make_constant(False),
    "_nvml_based_avail": _make_constant(True),
    "device_count": lambda: get_card_count(),
    "_device_count_nvml": lambda: get_card_count(),
    "current_device": streams.current_device,
    "set_device": streams.set_device,
    "_exchange_device": lambda index: streams.exchange_device(index),
    "_maybe_exchange_device": lambda index: streams.exchange_device(index),
    "_get_device_index": get_device_index,
    "device": streams.DeviceContext,
    "device_of": streams.DeviceOf,
    "_DeviceGuard": streams.DeviceContext,
    "get_device_capability": lambda device=None: get_card().capability,
    "get_device_name": lambda device=None: get_card().name,
    "get_device_properties": get_device_properties,
    "get_arch_list": lambda: [get_card().architecture],
    "get_gencode_flags": lambda: f"-gencode arch=compute_{get_card().architecture[3:]}",
    "can_device_access_peer": _make_constant(True),
    "is_bf16_supported": _is_bf16_supported,
    "is_tf32_supported": _make_constant(True),
    "cudart": _get_cudart,
    "ipc_collect": _ignore_call,
    "current_blas_handle": _make_constant(0),
    "get_sync_debug_mode": _make_constant(0),
    "set_sync_debug_mode": _ignore_call,
    "_sleep": _ignore_call,
}

# Memory


def _mem_get_info(device: Any = None) -> tuple[int, int]:
    card = get_card()
    return card.memory - LEDGER.measure(get_device_index(device)), card.memory


def _measure_allocated(device: Any = None) -> int:
    return LEDGER.measure(get_device_index(device))


def _get_peak(device: Any = None) -> int:
    return max(_measure_allocated(device), LEDGER.peaks.get(get_device_index(device), 0))


def _reset_peak(device: Any = None) -> None:
    LEDGER.peaks.pop(get_device_index(device), None)


def _memory_stats(device: Any = None) -> dict[str, int]:
    used, peak = _measure_allocated(device), _get_peak(device)
    names = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
    values = {f"{name}.all.current": used for name in names}
    return {**values, **{f"{name}.all.peak": peak for name in names}}


class _MemoryPool:
    """A private pool of the allocator: here all memory comes from one place."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.id = graph_pool.make_handle()


class _NullContext:
    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


_MEMORY: dict[str, Any] = {
    "mem_get_info": _mem_get_info,
    "memory_allocated": _measure_allocated,
    "memory_reserved": _measure_allocated,
    "max_memory_allocated": _get_peak,
    "max_memory_reserved": _get_peak,
    "reset_peak_memory_stats": _reset_peak,
    "reset_max_memory_allocated": _reset_peak,
    "reset_accumulated_memory_stats": _ignore_call,
    "memory_stats": _memory_stats,
    "empty_cache": _ignore_call,
    "get_allocator_backend": _make_constant("native"),
    "set_per_process_memory_fraction": _ignore_call,
    "get_per_process_memory_fraction": _make_constant(1.0),
    "MemPool": _MemoryPool,
    "use_mem_pool": _NullContext,
}

# Streams and graphs

_STREAMS: dict[str, Any] = {
    "Stream": streams.Stream,
    "ExternalStream": streams.ExternalStream,
    "Event": streams.Event,
    "stream": streams.StreamContext,
    "StreamContext": streams.StreamContext,
    "current_stream": streams.current_stream,
    "default_stream": streams.default_stream,
    "set_stream": streams.set_stream,
    "get_stream_from_external": lambda data_ptr, device=None: streams.ExternalStream(
        data_ptr, device
    ),
    "synchronize": streams.synchronize_device,
    "CUDAGraph": graphs.CUDAGraph,
    "graph": graphs.GraphContext,
    "graph_pool_handle": graph_pool.make_handle,
    "is_current_stream_capturing": graphs.is_current_stream_capturing,
}

# Random numbers come from the CPU's generator.

_RANDOM: dict[str, Any] = {
    "manual_seed": lambda seed: _seed_generator(seed),
    "manual_seed_all": lambda seed: _seed_generator(seed),
    "seed": _ignore_call,
    "seed_all": _ignore_call,
    "initial_seed": lambda: torch.default_generator.initial_seed(),
    "get_rng_state": lambda device="cuda": torch.default_generator.get_state(),
    "get_rng_state_all": lambda: [torch.default_generator.get_state()],
    "set_rng_state": lambda state, device="cuda": torch.default_generator.set_state(state),
    "set_rng_state_all": lambda states: torch.default_generator.set_state(states[0]),
}


def _seed_generator(seed: int) -> None:
    for generator in torch.cuda.default_generators:
        generator.manual_seed(int(seed))
