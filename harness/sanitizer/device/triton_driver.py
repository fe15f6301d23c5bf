"""The driver that Triton finds: it names the card, and launches nothing itself.

Kernels are launched by whatever replaces `JITFunction.run` (`harness/sanitizer/triton/adapter.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from harness.core.after_import import call_after_import
from harness.sanitizer.device import cubin, streams
from harness.sanitizer.device.cards import MAX_THREADS, get_card


class VirtualDriver:
    """The methods of Triton's driver that code under test calls."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        major, minor = get_card().capability
        return GPUTarget("cuda", 10 * major + minor, 32)

    def get_current_device(self) -> int:
        return streams.current_device()

    def set_current_device(self, device: int) -> None:
        streams.set_device(device)

    def get_current_stream(self, device: int | None = None) -> int:
        return streams.current_stream(device).cuda_stream

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", streams.current_device())

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        return get_card().capability

    def get_benchmarker(self) -> Callable[..., Any]:
        return measure_call

    @property
    def launcher_cls(self) -> Callable[..., Any]:
        return _CompiledKernelLauncher

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """Return what a benchmark clears between two runs."""
        return torch.empty(1, dtype=torch.int32, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()

    @property
    def utils(self) -> Any:
        return _DriverUtilities()


def measure_call(
    call: Callable[[], Any],
    *args: Any,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    **options: Any,
) -> Any:
    """Call once and measure a millisecond, as `triton.testing.do_bench` returns it.

    All that is compared takes the same time, for none is faster here.
    """
    call()
    return [1.0] * len(quantiles) if quantiles else [1.0] if return_mode == "all" else 1.0


class _CompiledKernelLauncher:
    """What Triton calls to launch a compiled kernel: the checked launch of its function."""

    def __init__(self, source: Any, metadata: Any) -> None:
        names = ("num_warps", "num_stages", "num_ctas", "debug")
        self._kernel = source.fn
        self._options = {name: getattr(metadata, name) for name in names}

    def __call__(self, x: int, y: int, z: int, stream: int, function: Any, *rest: Any) -> None:
        """Launch; `rest`: metadata and hooks, which the checked launch has too, and arguments."""
        args = rest[len(rest) - len(self._kernel.params) :]
        self._kernel.run(*args, grid=(x, y, z), warmup=False, **self._options)


class _DriverUtilities:
    """`triton.runtime.driver.active.utils`."""

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """Return handles, registers a thread, spilled words and the most threads of a block."""
        use = cubin.read_thread_use(binary)
        return 1, 1, use.registers, use.stack_bytes // 4, MAX_THREADS

    def get_device_properties(self, device: int) -> dict[str, int]:
        card = get_card()
        return {
            "max_shared_mem": card.shared_memory_per_block_optin,
            "max_num_regs": card.registers_per_multiprocessor,
            "multiprocessor_count": card.multiprocessors,
            "warpSize": 32,
            "sm_clock_rate": 1_980_000,
            "mem_clock_rate": 2_619_000,
            "mem_bus_width": 5120,
        }


def install_driver() -> None:
    call_after_import({"triton.runtime.driver": _set_driver})


def _set_driver(module: ModuleType) -> None:
    module.driver.set_active(VirtualDriver())
