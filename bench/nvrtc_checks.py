"""Kernels that NVRTC compiles, plain and with checks on a card, and planted faults in them.

    python bench/nvrtc_checks.py run plain.json [WAY ...]
    unfix exec --check bounds,overflow,cuda -- python bench/nvrtc_checks.py run checked.json
    python bench/cuda_checks.py compare plain.json checked.json
    unfix exec --check bounds,overflow,cuda -- python bench/nvrtc_checks.py plant
    unfix exec --check all,cuda -- python bench/nvrtc_checks.py plant memory

The ways: `torch` (torch.cuda._compile_kernel: machine code), `driver` (PTX, by ctypes), `bindings`
(cuda-python), `cupy` (a RawKernel that gets torch's tensors through DLPack), `jiterator`, and
`deep-gemm` (its own build of nvcc's machine code, launched through the driver). A package that is
missing leaves its way out. `plant` makes an overrun in each of the first four, an overflow, and an
overrun that begins in the second replay of a graph; `plant memory` makes a race between two blocks
and a read of uninitialized memory in each of the four: each is to be reported, and the device
goes on. `plant` also launches CuPy's kernel over memory of CuPy's own: its accesses are to count as
unchecked, without a report.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from cuda_checks import Call, compute_digest, measure_microseconds

SOURCE = """
extern "C" __global__ void {name}(float* out, const float* source, const int* ends, int count) {{
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count + ends[0]) out[{index}] = source[index] * 2.0f;
}}
"""
OVERFLOW = "static_cast<int>(index * 4194304u) / 4194304"  # more than int32 holds from 512 on
RACE = "index / 512"  # the first two blocks write the first element
SQUARE = "template <typename T> T square_and_add(T x, T y) { return x * x + y; }"
COUNT, THREADS = 1 << 20, 256
Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def write_source(name: str, index: str = "index") -> str:
    return SOURCE.format(name=name, index=index)


def count_blocks(count: int) -> int:
    return count // THREADS + 1  # one thread more than there are elements, at least


def make_torch_launch(name: str, index: str = "index") -> Launch:
    kernel: Any = torch.cuda._compile_kernel(write_source(name, index), name)

    def launch(out: torch.Tensor, source: torch.Tensor, ends: torch.Tensor) -> None:
        count = source.numel()
        kernel((count_blocks(count), 1, 1), (THREADS, 1, 1), [out, source, ends, count])

    return launch


def check_result(result: int) -> None:
    if result:
        raise RuntimeError(f"CUDA answers error {result}")


def make_driver_launch(name: str, index: str = "index") -> Launch:
    nvrtc = ctypes.CDLL(f"libnvrtc.so.{(torch.version.cuda or '').partition('.')[0]}")
    driver = ctypes.CDLL("libcuda.so.1")
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = write_source(name, index).encode()
    check_result(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), source, f"{name}.cu".encode(), 0, None, None
        )
    )
    major, minor = torch.cuda.get_device_capability()
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture=compute_{major}{minor}".encode())
    check_result(nvrtc.nvrtcCompileProgram(program, 1, options))
    check_result(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    check_result(nvrtc.nvrtcGetPTX(program, text))
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    torch.cuda.current_stream().synchronize()  # there is a context
    check_result(driver.cuModuleLoadData(ctypes.byref(module), text))
    check_result(driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))

    def launch(out: torch.Tensor, source: torch.Tensor, ends: torch.Tensor) -> None:
        count = source.numel()
        pointers = [ctypes.c_void_p(one.data_ptr()) for one in (out, source, ends)]
        values = [*pointers, ctypes.c_int(count)]
        arguments = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        sides = count_blocks(count), 1, 1, THREADS, 1, 1
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        check_result(driver.cuLaunchKernel(function, *sides, 0, stream, arguments, None))

    return launch


def make_bindings_launch(name: str, index: str = "index") -> Launch:
    driver: Any = importlib.import_module("cuda.bindings.driver")
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")

    def call(result: Any) -> Any:
        check_result(int(result[0]))
        return result[1] if len(result) == 2 else result[1:]

    source, file = write_source(name, index).encode(), f"{name}.cu".encode()
    program = call(nvrtc.nvrtcCreateProgram(source, file, 0, [], []))
    major, minor = torch.cuda.get_device_capability()
    options = [f"--gpu-architecture=sm_{major}{minor}".encode()]
    call(nvrtc.nvrtcCompileProgram(program, len(options), options))
    code = b" " * call(nvrtc.nvrtcGetCUBINSize(program))
    call(nvrtc.nvrtcGetCUBIN(program, code))
    torch.cuda.current_stream().synchronize()
    library = call(driver.cuLibraryLoadData(code, [], [], 0, [], [], 0))
    kernel = call(driver.cuLibraryGetKernel(library, name.encode()))
    function = call(driver.cuKernelGetFunction(kernel))

    def launch(out: torch.Tensor, source: torch.Tensor, ends: torch.Tensor) -> None:
        count = source.numel()
        values = (out.data_ptr(), source.data_ptr(), ends.data_ptr(), count)
        types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
        sides = count_blocks(count), 1, 1, THREADS, 1, 1
        stream = torch.cuda.current_stream().cuda_stream
        call(driver.cuLaunchKernel(function, *sides, 0, stream, (values, types), 0))

    return launch


def make_cupy_kernel(name: str, index: str = "index") -> Callable[..., None]:
    cupy: Any = importlib.import_module("cupy")
    kernel = cupy.RawKernel(write_source(name, index), name)

    def launch(out: Any, source: Any, ends: Any) -> None:
        count = source.size
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((count_blocks(count),), (THREADS,), (out, source, ends, cupy.int32(count)))

    return launch


def make_cupy_launch(name: str, index: str = "index") -> Launch:
    cupy: Any = importlib.import_module("cupy")
    launch_arrays = make_cupy_kernel(name, index)

    def launch(out: torch.Tensor, source: torch.Tensor, ends: torch.Tensor) -> None:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            arrays = [cupy.from_dlpack(one) for one in (out, source, ends)]
        launch_arrays(*arrays)

    return launch


MAKERS: dict[str, Callable[..., Launch]] = {
    "torch": make_torch_launch,
    "driver": make_driver_launch,
    "bindings": make_bindings_launch,
    "cupy": make_cupy_launch,
}
PACKAGES = {"bindings": "cuda.bindings", "cupy": "cupy", "deep-gemm": "deep_gemm"}
WAYS = (*MAKERS, "jiterator", "deep-gemm")


def is_installed(way: str) -> bool:
    package = PACKAGES.get(way, "torch")
    try:
        found = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        print(f"{way}: {package} is not installed", flush=True)
    return found


# Runs


def make_call(way: str) -> Call:
    if way in MAKERS:
        launch = MAKERS[way](f"scale_{way}")
        out, source, ends = make_tensors(COUNT)
        return (lambda: launch(out, source, ends)), (out,)
    generator = torch.Generator().manual_seed(7)
    if way == "jiterator":
        function: Any = torch.cuda.jiterator._create_jit_fn(SQUARE)
        x, y = (torch.randn(COUNT, generator=generator).to("cuda") for _ in "xy")
        results = [function(x, y)]
        return (lambda: results.__setitem__(0, function(x, y))), (results[0],)
    deep_gemm: Any = importlib.import_module("deep_gemm")

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to("cuda")

    queries, keys = draw(256, 64, 128).to(torch.float8_e4m3fn), draw(512, 128)
    values = keys.to(torch.float8_e4m3fn), draw(512).abs()
    starts = torch.zeros(256, dtype=torch.int32, device="cuda")
    own = queries, values, draw(256, 64), starts, torch.full_like(starts, 512)
    logits = [deep_gemm.fp8_mqa_logits(*own)]
    return (lambda: logits.__setitem__(0, deep_gemm.fp8_mqa_logits(*own))), (logits[0],)


def make_tensors(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source = torch.arange(count, dtype=torch.float32).to("cuda")
    return torch.zeros_like(source), source, torch.zeros(1, dtype=torch.int32, device="cuda")


def run_ways(file: str, ways: Sequence[str]) -> None:
    results: dict[str, Any] = {}
    for way in ways:
        if not is_installed(way):
            continue
        start = time.time()
        call, written = make_call(way)
        call()
        torch.cuda.synchronize()
        seconds = round(time.time() - start, 2)
        one = {"digest": compute_digest(written), "microseconds": measure_microseconds(call)}
        results[way] = {**one, "first_call_s": seconds}
        print(way, results[way], flush=True)
        Path(file).write_text(json.dumps(results))  # of each way, since the next one may fail


# Faults


def plant_overrun(way: str) -> None:
    """The tensors fill their blocks of PyTorch's allocator, since CuPy's are known by these."""
    launch = MAKERS[way](f"overrun_{way}")
    out, source, ends = make_tensors(1024)
    launch(out, source, ends + 1)


def launch_over_own_memory() -> None:
    """No fault: CuPy's kernel over memory of CuPy's own, which is not known here."""
    cupy: Any = importlib.import_module("cupy")
    source = cupy.arange(1024, dtype=cupy.float32)
    ends = cupy.zeros(1, dtype=cupy.int32)
    cupy.cuda.Device().synchronize()
    make_cupy_kernel("own_cupy")(cupy.zeros_like(source), source, ends)


def plant_overflow() -> None:
    launch = make_torch_launch("overflow_torch", OVERFLOW)
    launch(*make_tensors(1000))


def plant_replay() -> None:
    """The captured launch is right; the end that it reads has moved by the second replay."""
    launch = make_torch_launch("replay_torch")
    out, source, ends = make_tensors(1000)
    launch(out, source, ends)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(out, source, ends)
    graph.replay()
    torch.cuda.synchronize()
    ends.fill_(1)
    graph.replay()


def plant_race(way: str) -> None:
    MAKERS[way](f"race_{way}", RACE)(*make_tensors(1024))


def plant_empty(way: str) -> None:
    launch = MAKERS[way](f"empty_{way}")
    out, _, ends = make_tensors(1000)
    launch(out, torch.empty(1000, device="cuda"), ends)


def plant_faults(what: str = "") -> None:
    plants: dict[str, Callable[[], None]]
    if what == "memory":
        plants = {f"{way}_race": partial(plant_race, way) for way in MAKERS}
        plants |= {f"{way}_empty": partial(plant_empty, way) for way in MAKERS}
    else:
        plants = {f"{way}_overrun": partial(plant_overrun, way) for way in MAKERS}
        plants |= {"torch_overflow": plant_overflow, "torch_replay": plant_replay}
        plants["cupy_own"] = launch_over_own_memory
    for name, make in plants.items():
        if not is_installed(name.partition("_")[0]):
            continue
        print(f"--- {name}", flush=True)
        make()
        torch.cuda.synchronize()
        time.sleep(0.1)  # reports come meanwhile
    print(f"the device goes on: {torch.ones(8, device='cuda').sum().item()}", flush=True)


def main(action: str, *words: str) -> None:
    if action == "plant":
        plant_faults(*words)
    else:
        run_ways(words[0], words[1:] or WAYS)


if __name__ == "__main__":
    main(*sys.argv[1:])
