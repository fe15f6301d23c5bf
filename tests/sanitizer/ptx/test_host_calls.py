"""A host call of a CUDA module: what a violation in it leaves behind for the next one."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ptx_kernels import HEAD

from harness.releases import cuda_toolkit
from harness.sanitizer.cuda import cudart
from harness.sanitizer.cuda.host_calls import HostCalls
from harness.sanitizer.device.cards import get_card
from harness.sanitizer.ptx.executor import load_module
from harness.sanitizer.violations.exceptions import OutOfBounds


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
