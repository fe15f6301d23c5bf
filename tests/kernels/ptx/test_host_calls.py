"""A host call of a CUDA module: what a violation in it leaves behind for the next one."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.kernels.check.violations import OutOfBounds
from harness.kernels.cuda import cudart
from harness.kernels.cuda.host_calls import HostCalls
from harness.releases import cuda_toolkit


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


def test_a_launch_says_whether_its_limit_of_shared_memory_was_set(tmp_path: Path) -> None:
    (tmp_path / "unanswered.inc").write_text("")
    command = [cuda_toolkit.check_host_compiler(), "-x", "c", "-fPIC", "-shared", f"-I{tmp_path}"]
    subprocess.run([*command, cudart._SOURCE, "-o", tmp_path / "cudart.so"], check=True)
    library = ctypes.CDLL(str(tmp_path / "cudart.so"))
    limits: list[int] = []

    def launch(pointer: Any) -> int:
        limits.append(pointer.contents.max_shared_bytes)
        return 0

    answers = (launch, lambda *_: 0, lambda *_: 0, lambda _: None, lambda *_: 0)
    hooks = [kind(answer) for kind, answer in zip(cudart._HOOK_TYPES, answers, strict=True)]
    library.unfix_set_hooks(*hooks)
    library.unfix_set_device_attribute(8, 48 << 10)
    library.unfix_set_device_attribute(97, 227 << 10)
    library.__cudaRegisterFatBinary.restype = ctypes.c_void_p
    module = ctypes.c_void_p(library.__cudaRegisterFatBinary((ctypes.c_void_p * 3)()))
    kernel = ctypes.c_char_p(b"kernel")
    library.__cudaRegisterFunction(module, kernel, kernel, kernel, -1, *[None] * 5)
    one = cudart._Dimensions(1, 1, 1)
    for raised in (None, 40 << 10, 64 << 10):
        if raised is not None:
            assert library.cudaFuncSetAttribute(kernel, 8, raised) == 0
        assert library.cudaLaunchKernel(kernel, one, one, None, ctypes.c_size_t(0), None) == 0
    assert limits == [0, 40 << 10, 64 << 10]
