"""A host call of a CUDA module: what a violation in it leaves behind for the next one."""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ptx_kernels import HEAD

from harness.releases import cuda_toolkit
from harness.sanitizer.cuda import cudart
from harness.sanitizer.cuda.host_calls import HostCalls
from harness.sanitizer.cuda.kernel_lines import KernelLines
from harness.sanitizer.cuda.registers import find_register_refusal
from harness.sanitizer.device.cards import get_card
from harness.sanitizer.ptx.executor import load_module
from harness.sanitizer.ptx.launch import CudaLaunch
from harness.sanitizer.violations.exceptions import LaunchRefused, OutOfBounds


@pytest.mark.parametrize("is_violation", [True, False], ids=["violation", "refused by host code"])
def test_an_error_of_one_call_is_not_the_next_ones(
    is_violation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    monkeypatch.setattr(cudart, "take_last_error", lambda: taken.append("last error"))
    calls = HostCalls()

    def launch_and_fail() -> None:
        if is_violation:
            calls._stack[-1].errors.append(OutOfBounds("a launch reads past its tensor"))
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    calls.run("jit:good", (), set(), lambda: None, ())
    assert taken == []
    with pytest.raises(OutOfBounds if is_violation else RuntimeError):
        calls.run("jit:bad", (), set(), launch_and_fail, ())
    assert taken == ["last error"]
    assert calls._stack == []


def make_wide_kernel(words: str = "") -> str:
    """Write a kernel whose threads hold 90 numbers at once."""
    loads = [f"ld.global.f32 %f{place}, [%rd1+{4 * place}];" for place in range(90)]
    stores = [f"st.global.f32 [%rd1+{4 * place}], %f{89 - place};" for place in range(90)]
    body = "\n".join([*loads, "bar.sync 0;", *stores])
    return (
        f"{HEAD}.visible .entry wide(.param .u64 p)\n{words}\n{{\n.reg .b64 %rd<2>;\n"
        f".reg .f32 %f<90>;\nld.param.u64 %rd1, [p];\n{body}\nret;\n}}\n"
    )


def test_a_block_with_more_registers_than_the_card_has_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cudart, "take_last_error", lambda: 0)
    module = load_module(make_wide_kernel())
    launch = functools.partial(CudaLaunch, "wide", "wide", (1, 1, 1))
    rest = 0, b"", (), lambda address: None
    words = r"wide: 1024 threads with \d+ registers each, and the card has 65536 for a block"
    refusal = find_register_refusal(module, launch((1024, 1, 1), *rest))
    assert re.fullmatch(words, str(refusal))
    calls, size = HostCalls(), cudart._Dimensions(1, 1, 1)
    calls._lines[1, ""] = KernelLines([module.text])
    calls._modules[1, ""] = [module]
    address = ctypes.c_uint64()
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(address))
    sizes = 0, 0, size, cudart._Dimensions(1024, 1, 1), size, 0
    raw = cudart.RawLaunch(b"wide", 1, arguments, *sizes)
    with pytest.raises(LaunchRefused, match="1024 threads with"):
        calls.run("f", (), set(), lambda: calls.launch(SimpleNamespace(contents=raw)), ())
    assert find_register_refusal(module, launch((256, 1, 1), *rest)) is None
    assert find_register_refusal(module, launch((512, 1, 1), *rest)) is None  # 96 registers fit
    bounded = load_module(make_wide_kernel(" .maxntid 1024, 1, 1"))
    assert find_register_refusal(bounded, launch((1024, 1, 1), *rest)) is None


def load_library(folder: Path, launch: Any, most_threads: int = 0) -> tuple[Any, ctypes.c_char_p]:
    """Compile the stand-in for libcudart; return it, and a kernel that it has registered."""
    (folder / "unanswered.inc").write_text("")
    command = [cuda_toolkit.check_host_compiler(), "-x", "c", "-fPIC", "-shared", f"-I{folder}"]
    subprocess.run([*command, cudart._SOURCE, "-o", folder / "cudart.so"], check=True)
    library = ctypes.CDLL(str(folder / "cudart.so"))
    answers = (launch, lambda *_: 0, lambda *_: 16, lambda *_: most_threads)
    answers += (lambda _: None, lambda *_: 0)
    hooks = [kind(answer) for kind, answer in zip(cudart._HOOK_TYPES, answers, strict=True)]
    library.unfix_set_hooks(*hooks)
    library.hooks = hooks  # which must stay alive
    for attribute, value in cudart._list_device_attributes(get_card("H100")).items():
        library.unfix_set_device_attribute(attribute, value)
    library.__cudaRegisterFatBinary.restype = ctypes.c_void_p
    module = ctypes.c_void_p(library.__cudaRegisterFatBinary((ctypes.c_void_p * 3)()))
    kernel = ctypes.c_char_p(b"kernel")
    library.__cudaRegisterFunction(module, kernel, kernel, kernel, -1, *[None] * 5)
    return library, kernel


def test_a_launch_says_whether_its_limit_of_shared_memory_was_set(tmp_path: Path) -> None:
    limits: list[int] = []

    def launch(pointer: Any) -> int:
        limits.append(pointer.contents.max_shared_bytes)
        return 0

    library, kernel = load_library(tmp_path, launch)
    one = cudart._Dimensions(1, 1, 1)
    for raised in (None, 40 << 10, 64 << 10):
        if raised is not None:
            assert library.cudaFuncSetAttribute(kernel, 8, raised) == 0
        assert library.cudaLaunchKernel(kernel, one, one, None, ctypes.c_size_t(0), None) == 0
    assert limits == [0, 40 << 10, 64 << 10]


@pytest.mark.parametrize(
    ("bound", "threads", "registers"),
    [(0, 256, 255), (1024, 1024, 64), (384, 384, 168), (96, 96, 255)],
)
def test_a_kernel_has_the_most_registers_that_its_threads_can_have(
    bound: int, threads: int, registers: int, tmp_path: Path
) -> None:
    library, kernel = load_library(tmp_path, lambda _: 0, bound)
    assert threads * registers <= 65536
    for raised, limit in ((None, (48 << 10) - 16), (64 << 10, 64 << 10)):
        if raised is not None:
            assert library.cudaFuncSetAttribute(kernel, 8, raised) == 0
        found = (ctypes.c_int * 36)()
        assert library.cudaFuncGetAttributes(found, kernel) == 0
        # Static shared memory (8 bytes); threads, registers and versions; dynamic shared memory.
        assert (found[0], list(found[6:8]), found[11]) == (16, [threads, registers], limit)
        assert list(found[8:10]) == [90, 90]
    assert library.cudaFuncGetAttributes(found, ctypes.c_char_p(b"other")) == 98


@pytest.mark.parametrize(
    ("directives", "most"),
    [("", 0), (".maxntid 128, 2", 256), (".reqntid 64, 1, 1", 64), (".maxntid 2048", 1024)],
)
def test_a_text_says_how_many_threads_its_kernel_takes(directives: str, most: int) -> None:
    text = f"{HEAD}.visible .entry bounded()\n{directives}\n{{\nret;\n}}\n"
    assert load_module(text).most_threads("bounded") == most
