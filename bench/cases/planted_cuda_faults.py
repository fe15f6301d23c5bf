"""Faults planted in three of SGLang's CUDA kernels, to be reported by `exec --check` on a GPU.

    unfix exec --check bounds,overflow,cuda -- python -m bench.run planted_cuda_faults
    unfix exec --check all,cuda -- python -m bench.run planted_cuda_faults store_race clamp_empty

Without a name, all of bounds and overflow. The report of `exec` names each, and the device goes on.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import sglang.kernels.jit
import torch
from sglang.kernels.jit.utils import (
    get_activation_cuda_cflags,
    is_arch_support_pdl,
    load_jit,
    make_cpp_args,
)

from bench.measuring import Result

CSRC = Path(sglang.kernels.jit.__file__).parent / "csrc" / "elementwise"
BF16 = torch.bfloat16
FILES = {
    "store": "kvcache.cuh",
    "activation": "activation.cuh",
    "clamp": "clamp_position.cuh",
}
_PLANTED = tempfile.TemporaryDirectory()  # of the sources with faults, while this process runs


def overflow_in(index: str, factor: str, shift: int) -> str:
    """Return C++ for an index by way of a 32-bit product that a large one overflows."""
    scale = f"({factor} << {shift})"
    product = f"static_cast<uint32_t>({index}) * static_cast<uint32_t>({scale})"
    return f"static_cast<int32_t>({product}) / static_cast<int32_t>({scale})"


# Texts in a kernel's source and what is put in their place, by the name of the fault.
EDITS: dict[str, list[tuple[str, str]]] = {
    "store_overflow": [
        (
            f"index * stride_{one}_cache,",
            f"{overflow_in('index', f'stride_{one}_cache', 11)} * stride_{one}_cache,",
        )
        for one in "kv"
    ],
    "activation_overrun": [
        ("if (token_id >= params.num_tokens) return;", "if (token_id > params.num_tokens) return;")
    ],
    "activation_overflow": [
        (
            "const auto output_offset = kReuseInput ? input_offset : tid;",
            f"const auto output_offset = {overflow_in('token_id', 'params.hidden_dim', 15)}"
            " * static_cast<int32_t>(num_vecs) + static_cast<int32_t>(offset);",
        )
    ],
    "clamp_overrun": [("if (idx < n) {", "if (idx <= n) {")],
    "clamp_overflow": [("= seq_lens[idx]", f"= seq_lens[{overflow_in('idx', 'n', 10)}]")],
    "clamp_race": [("dst[idx] =", "dst[idx / 512] =")],
}


def load_module(name: str) -> Any:
    kernel = name.partition("_")[0]
    source = CSRC / FILES[kernel]
    if name in EDITS:
        text = source.read_text()
        for old, new in EDITS[name]:
            if text.count(old) != 1:
                raise ValueError(
                    f"{source} has {text.count(old)} times what {name} replaces: {old}"
                )
            text = text.replace(old, new)
        source = Path(_PLANTED.name) / name / source.name
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(text)
    options: dict[str, Any] = {"cuda_files": [str(source)]}
    pdl = is_arch_support_pdl()
    if kernel == "store":
        args = make_cpp_args(1024, 1024, 64, pdl)
        wrappers = [("store_cache", f"StoreKVCacheKernel<{args}>::run")]
    elif kernel == "activation":
        args = make_cpp_args(BF16, pdl)
        wrappers = [("run_activation", f"ActivationKernel<{args}>::run_activation")]
        options["extra_cuda_cflags"] = get_activation_cuda_cflags()
    else:
        args = make_cpp_args(torch.int64)
        wrappers = [("clamp_position", f"ClampPosition<{args}>::run")]
    return load_jit(name, *args, cuda_wrappers=wrappers, **options)


def load_all(names: Sequence[str]) -> dict[str, Any]:
    start = time.time()
    load_module(names[0])  # what SGLang asks the device is asked once
    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(names, pool.map(load_module, names), strict=True))
    print(f"{len(names)} modules loaded in {time.time() - start:.1f} s", flush=True)
    return found


def draw_values(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(BF16).to("cuda")


def make_store_arguments(rows: int, last: int) -> list[Any]:
    caches = [torch.zeros(rows, 512, dtype=BF16, device="cuda") for _ in "kv"]
    slots = torch.tensor([1, 2, last], device="cuda")
    return [draw_values(3, 512), draw_values(3, 512), *caches, slots, 1 << 20, -1]


def plant_store_overrun(modules: dict[str, Any]) -> None:
    modules["store"].store_cache(*make_store_arguments(16, 16))


def plant_store_replay(modules: dict[str, Any]) -> None:
    """The captured launch is right; its slots have changed by the time of the second replay."""
    arguments = make_store_arguments(24, 23)
    modules["store"].store_cache(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        modules["store"].store_cache(*arguments)
    graph.replay()
    torch.cuda.synchronize()
    arguments[4][2] = 24
    graph.replay()


def plant_store_overflow(modules: dict[str, Any]) -> None:
    modules["store_overflow"].store_cache(*make_store_arguments(1100, 1030))


def plant_activation(name: str, tokens: int) -> Callable[[dict[str, Any]], None]:
    def call(modules: dict[str, Any]) -> None:
        out = torch.zeros(tokens, 64, dtype=BF16, device="cuda")
        modules[name].run_activation(draw_values(tokens, 128), out, "silu")

    return call


def plant_clamp(name: str, count: int) -> Callable[[dict[str, Any]], None]:
    def call(modules: dict[str, Any]) -> None:
        lengths = torch.arange(count, device="cuda")
        modules[name].clamp_position(torch.zeros_like(lengths), lengths)

    return call


def plant_store_race(modules: dict[str, Any]) -> None:
    """Two tokens get one slot."""
    arguments = make_store_arguments(16, 15)
    arguments[4][0] = 15
    modules["store"].store_cache(*arguments)


def plant_activation_empty(modules: dict[str, Any]) -> None:
    gate = torch.empty(8, 128, dtype=BF16, device="cuda")
    out = torch.zeros(8, 64, dtype=BF16, device="cuda")
    modules["activation"].run_activation(gate, out, "silu")


def plant_clamp_empty(modules: dict[str, Any]) -> None:
    lengths = torch.empty(1024, dtype=torch.int64, device="cuda")
    modules["clamp"].clamp_position(torch.zeros_like(lengths), lengths)


PLANTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "store_overrun": plant_store_overrun,
    "store_replay": plant_store_replay,  # alone, since it has the line of the one above
    "store_overflow": plant_store_overflow,
    "activation_overrun": plant_activation("activation_overrun", 3),
    "activation_overflow": plant_activation("activation_overflow", 1026),
    "clamp_overrun": plant_clamp("clamp_overrun", 1000),
    "clamp_overflow": plant_clamp("clamp_overflow", 2048),
    "clamp_right": plant_clamp("clamp", 1024),  # no fault
    "store_race": plant_store_race,
    "clamp_race": plant_clamp("clamp_race", 1024),
    "activation_empty": plant_activation_empty,
    "clamp_empty": plant_clamp_empty,
}
ADDRESS_FAULTS = [name for name in PLANTS if name.endswith(("_overrun", "_overflow"))]


def list_modules(faults: Sequence[str]) -> list[str]:
    """List the modules that faults need: one with an edit, or the kernel as it is."""
    listed = (name if name in EDITS else name.partition("_")[0] for name in faults)
    return list(dict.fromkeys(listed))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("faults", nargs="*", default=ADDRESS_FAULTS, metavar="FAULT")


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    modules = load_all(list_modules(options.faults))
    for name in options.faults:
        print(f"--- {name}", flush=True)
        PLANTS[name](modules)
        torch.cuda.synchronize()
        time.sleep(0.1)  # reports come meanwhile
    goes_on = torch.ones(8, device="cuda").sum().item() == 8.0
    yield Result({"faults": options.faults, "the device goes on": goes_on}, goes_on)
