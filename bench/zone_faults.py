"""Custom operators that write past the end of an argument, under `exec --check zones` on a GPU.

    unfix exec --check zones -- python bench/zone_faults.py [plain]

Needs a GPU. The operators' body is a `cudaMemsetAsync` of 8 bytes more than their tensor has. Two
reports are expected, of `out` in an eager call and in a replay of a graph; with `plain`, which
stays inside, none.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import torch

PAST = 8  # bytes


def load_runtime() -> Any:
    """Load the CUDA runtime that torch has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcudart.so" in line:
            return ctypes.CDLL(line.split()[-1])
    raise SystemExit("torch has loaded no libcudart here")


def main(*words: str) -> None:
    past = 0 if "plain" in words else PAST
    captured = torch.zeros(251, dtype=torch.int32, device="cuda")
    runtime = load_runtime()

    def fill(out: torch.Tensor, source: torch.Tensor) -> None:
        size = out.numel() * out.element_size() + past
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        runtime.cudaMemsetAsync(ctypes.c_void_p(out.data_ptr()), 7, ctypes.c_size_t(size), stream)

    library = torch.library.Library("zone_faults", "DEF")
    for name in ("fill", "fill_captured"):
        library.define(f"{name}(Tensor(a!) out, Tensor source) -> ()")
        library.impl(name, fill, "CUDA")
    out = torch.zeros(250, dtype=torch.int32, device="cuda")
    source = torch.zeros(77, dtype=torch.int32, device="cuda")
    torch.ops.zone_faults.fill(out, source)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        torch.ops.zone_faults.fill_captured(captured, source)
    graph.replay()
    torch.cuda.synchronize()
    print("filled", int(out[0]), int(captured[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
