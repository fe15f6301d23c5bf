"""Launches a kernel that was built with checks through the driver; the executor is the card.

    python driver_program.py TOOLKIT FAKE_DRIVER

The driver below the stand-in only calls back (`fake_driver.c`); all else is the product's own.
"""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness.sanitizer.check.gpu_facts import violation_from_record
from harness.sanitizer.cuda import checked_launches, checked_modules, host_arguments
from harness.sanitizer.cuda.checked_toolchain import CheckedToolkit
from harness.sanitizer.device import installation
from harness.sanitizer.gpu.kernel_summaries import KernelSummaries
from harness.sanitizer.gpu.process_reports import PROCESS_REPORTS
from harness.sanitizer.ptx.executor import load_module
from harness.sanitizer.ptx.instrumented_kernel import MARKED_KEY
from harness.sanitizer.ptx.launch import Allocation, CudaLaunch, ExecutorChecks

SOURCE = """
template <typename T> __global__ void scale(T* out, const T* in, int count) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index <= count) out[index] = in[index] * T(2);
}
"""
COUNT, THREADS = 40, 64
ENTRY = b"_Z5scaleIfEvPT_PKS0_i"  # scale<float>
PTX = Path(__file__).with_name("scale.ptx")
OTHER = b"other"  # a kernel that its module's description lacks, so that it stays plain
SIDES = (1, 1, 1, THREADS, 1, 1)
Handle = ctypes.c_void_p
CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(Handle)
)
PROCESS_ADDRESS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Handle), Handle)


def assemble_kernel(toolkit: CheckedToolkit, folder: Path) -> tuple[bytes, bytes]:
    """Assemble the kernel with the toolkit's ptxas; return its PTX with checks and machine code."""
    source, text, code = folder / "scale.cu", folder / "scale.ptx", folder / "scale.cubin"
    source.write_text(SOURCE)
    text.write_text(PTX.read_text().replace("/somewhere/scale.cu", str(source)))
    ptxas = toolkit.home / "bin" / "ptxas"
    subprocess.run([ptxas, "-arch=sm_90", text, "-o", code], check=True)
    cubin = code.read_bytes()
    key = MARKED_KEY.search(cubin)
    assert key is not None
    return (toolkit.kernels / f"{key[1].decode()}.ptx").read_bytes(), cubin


class ExecutingCard:
    """Runs what the fake driver is given."""

    def __init__(self, toolkit: CheckedToolkit, fake: Any) -> None:
        self.summaries = KernelSummaries()
        self.launches = checked_launches.CheckedCudaLaunches(toolkit, self.summaries)
        self.text = ""
        self._toolkit = toolkit
        self._callback = CALLBACK(self._run)
        fake.fake_set_launch(self._callback)

    def _run(self, name: bytes, sides: Any, arguments: Any) -> int:
        if name == OTHER:
            return 5
        kernel = next(one for one in self._list_kernels() if one.entry == name.decode())
        parameters = host_arguments.pack_parameters(kernel.parameter_layout, arguments)
        parameters += bytes(-len(parameters) % 8)
        place = len(kernel.parameter_layout)
        parameters += ctypes.string_at(arguments[place], kernel.check_bytes)
        entry, block = name.decode(), (sides[3], sides[4], sides[5])
        launch = CudaLaunch(entry, entry, (1, 1, 1), block, 0, parameters, (), find_any_memory)
        checks = ExecutorChecks(overflow=False, uninitialized=False, races=False)
        for error in load_module(self.text).run(launch, checks):
            raise error
        return 0

    def _list_kernels(self) -> Any:
        key = MARKED_KEY.search(self.text.encode())
        assert key is not None
        file = self._toolkit.kernels / f"{key[1].decode()}.json"
        return checked_launches.read_kernels(file).values()

    def launch(self, call: Callable[[Any], int]) -> list[str]:
        """Have a function launch the kernel with its arguments; return the reports."""
        source = torch.arange(COUNT, dtype=torch.float32, device="cuda")
        out = torch.zeros_like(source)
        values = (
            ctypes.c_uint64(out.data_ptr()),
            ctypes.c_uint64(source.data_ptr()),
            ctypes.c_int(COUNT),
        )
        arguments = (Handle * 3)(*map(ctypes.addressof, values))
        names = ("out", "source")
        with self.launches.note_call("scale", names, (out, source)):
            assert call(arguments) == 0
        assert out.equal(source * 2)
        found = [
            str(violation_from_record(*report)) for report in PROCESS_REPORTS.read_new_reports()
        ]
        PROCESS_REPORTS.reset()
        return found


def find_any_memory(_: int) -> Allocation:
    return Allocation("memory", 1 << 32, 1 << 47)


def call_graph_functions(driver: Any, function: Handle | None, kernel: Handle | None) -> list[int]:
    """Return what each function answers that puts a kernel into a graph by hand."""
    words = (Handle * 10)(function)
    words[7] = kernel
    node = (Handle * 12)(0, 0, *words)
    second = [
        driver.cuGraphAddKernelNode_v2(None, None, None, 0, words),
        driver.cuGraphAddNode(None, None, None, 0, node),
        driver.cuGraphAddNode_v2(None, None, None, None, 0, node),
        driver.cuGraphKernelNodeSetParams_v2(None, words),
        driver.cuGraphNodeSetParams(None, node),
        driver.cuGraphExecKernelNodeSetParams_v2(None, None, words),
        driver.cuGraphExecNodeSetParams(None, None, node),
    ]
    if function is None:  # the first functions know no other kernels
        return second
    return [
        driver.cuGraphAddKernelNode(None, None, None, 0, words),
        driver.cuGraphKernelNodeSetParams(None, words),
        driver.cuGraphExecKernelNodeSetParams(None, None, words),
        *second,
    ]


def find_address(driver: Any, name: bytes, version: int) -> int | None:
    address, status, flags = Handle(), ctypes.c_int(), ctypes.c_uint64(0)
    driver.cuGetProcAddress_v2(name, ctypes.byref(address), version, flags, ctypes.byref(status))
    return address.value


def main(folder: str, fake_file: str) -> None:
    installation.install_device()
    with tempfile.TemporaryDirectory() as sources:
        print(
            json.dumps(launch_in_all_ways(CheckedToolkit(Path(folder)), fake_file, Path(sources)))
        )


def launch_in_all_ways(toolkit: CheckedToolkit, fake_file: str, sources: Path) -> dict[str, Any]:
    """Return the reports of each way to launch, and what the driver answers in other cases."""
    starts: list[bool] = []

    def start_checks() -> None:
        starts.append(True)
        card.launches.install()

    checked_modules.build_with_checks(toolkit, start_checks)
    driver = ctypes.CDLL("libcuda.so.1")
    card = ExecutingCard(toolkit, ctypes.CDLL(fake_file))
    found: dict[str, Any] = {"real": driver.cuInit(7)}

    def get(library_function: Any, owner: Handle, name: bytes) -> Handle:
        function = Handle()
        assert not library_function(ctypes.byref(function), owner, name)
        return function

    text, cubin = assemble_kernel(toolkit, sources)
    card.text = text.decode()
    module = Handle()
    assert not driver.cuModuleLoadData(ctypes.byref(module), cubin)
    function = get(driver.cuModuleGetFunction, module, ENTRY)
    found["machine code"] = card.launch(
        lambda own: driver.cuLaunchKernel(function, *SIDES, 0, None, own, None)
    )

    def launch_buffer(own: Any) -> int:
        count = ctypes.cast(own[2], ctypes.POINTER(ctypes.c_int))[0]
        pointers = [ctypes.cast(own[n], ctypes.POINTER(ctypes.c_uint64))[0] for n in range(2)]
        buffer = ctypes.create_string_buffer(struct.pack("<QQi", *pointers, count))
        size = ctypes.c_size_t(20)
        extra = (Handle * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
        return int(driver.cuLaunchKernel(function, *SIDES, 0, None, None, extra))

    found["a buffer"] = card.launch(launch_buffer)
    found["by hand"] = call_graph_functions(driver, function, None)
    other = (Handle * 12)(1, 0, function)  # no node of a kernel
    found["of another kind"] = driver.cuGraphAddNode(None, None, None, 0, other)
    addresses = [find_address(driver, b"cuGraphAddNode", version) for version in (12020, 12030)]
    own = (driver.cuGraphAddNode, driver.cuGraphAddNode_v2)
    found["versions"] = addresses == [ctypes.cast(one, Handle).value for one in own]

    with tempfile.NamedTemporaryFile() as file:
        file.write(cubin)
        file.flush()
        name_of_file = file.name.encode()
        assert not driver.cuModuleLoad(ctypes.byref(module), name_of_file)
        library = Handle()
        nothing = (None, None, 0, None, None, 0)
        assert not driver.cuLibraryLoadFromFile(ctypes.byref(library), name_of_file, *nothing)
    function = get(driver.cuModuleGetFunction, module, ENTRY)
    found["a file"] = card.launch(
        lambda own: driver.cuLaunchKernel_ptsz(function, *SIDES, 0, None, own, None)
    )
    room = (Handle * 4)(*[1] * 4)  # addresses that nobody can read
    assert not driver.cuLibraryEnumerateKernels(room, len(room), library)
    listed = Handle(room[0])
    found["a library's file"] = card.launch(
        lambda own: driver.cuLaunchCooperativeKernel_ptsz(listed, *SIDES, 0, None, own)
    )
    found["by hand, a library's"] = call_graph_functions(driver, None, listed)
    room = (Handle * 4)(*[1] * 4)
    assert not driver.cuModuleEnumerateFunctions(room, len(room), module)
    function = Handle(room[0])
    found["a module's list"] = card.launch(
        lambda own: driver.cuLaunchCooperativeKernel(function, *SIDES, 0, None, own)
    )
    sides = (ctypes.c_uint * 16)(*SIDES)
    found["a configuration"] = card.launch(
        lambda own: driver.cuLaunchKernelEx_ptsz(sides, function, own, None)
    )

    other = get(driver.cuModuleGetFunction, module, OTHER)
    attributes = ctypes.create_string_buffer(33 * 72)  # more than a checked launch may have
    words = struct.pack("<7I4xQQQ", *SIDES, 0, 0, ctypes.addressof(attributes), 33)
    plain_launch = ctypes.create_string_buffer(words)
    found["a plain kernel"] = driver.cuLaunchKernelEx(plain_launch, other, (Handle * 3)(), None)

    fatbin = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, (9 << 20) + len(cubin))
    image = fatbin + bytes(9 << 20) + cubin
    large = Handle()
    assert not driver.cuModuleLoadData(ctypes.byref(large), image)
    function = get(driver.cuModuleGetFunction, large, ENTRY)
    found["a large image"] = call_graph_functions(driver, function, None)

    function = get(driver.cuModuleGetFunction, module, ENTRY)
    fake = ctypes.CDLL(fake_file)
    fake.fake_set_unload(1)
    assert driver.cuModuleUnload(module) == 1
    same = get(driver.cuModuleGetFunction, module, ENTRY)
    found["not unloaded"] = call_graph_functions(driver, same, None)
    fake.fake_set_unload(0)
    assert not driver.cuModuleUnload(module)
    plain = Handle()
    assert not driver.cuModuleLoadData(ctypes.byref(plain), b"plain")
    function = get(driver.cuModuleGetFunction, plain, ENTRY)
    assert (plain.value, function.value) == (module.value, same.value)
    found["used again"] = call_graph_functions(driver, function, None)

    library = Handle()
    assert not driver.cuLibraryLoadData(ctypes.byref(library), text, *nothing)
    kernel = get(driver.cuLibraryGetKernel, library, ENTRY)
    address = find_address(driver, b"cuKernelGetFunction", 13000)
    assert address
    assert not PROCESS_ADDRESS(address)(ctypes.byref(function), kernel)
    found["PTX"] = card.launch(lambda own: driver.cuLaunchKernelEx(sides, function, own, None))
    found["PTX, its handle"] = card.launch(
        lambda own: driver.cuLaunchKernel(kernel, *SIDES, 0, None, own, None)
    )
    summaries = [(summary.name, summary.checked_launches) for summary in card.summaries]
    summaries = [(one, count) for one, count in summaries if one != OTHER.decode()]
    return {**found, "starts": len(starts), "summaries": summaries}


if __name__ == "__main__":
    main(*sys.argv[1:])
