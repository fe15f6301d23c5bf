"""Live toggles on compiled kernels: compiled forms are set aside, and restored afterwards.

Without a GPU nothing is compiled, so a stand-in for a compiled kernel is put into the caches; the
recorded results show that the swapped kernels run on a GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sglang import kernels
from triton.runtime.jit import JITFunction

from harness import toggles
from harness.sanitizer.triton.jit_kernels import unwrap_kernel

FOLDER = (Path(__file__).parents[2] / "toy" / "toggles",)
KERNELS = {
    "toy-kernel": kernels.add_kernel,
    "toy-heuristic": kernels.heuristic_kernel,
    "toy-tuned": kernels.tuned_kernel,
}


def cache_with(kernel: Any, compiled: object) -> None:
    unwrap_kernel(kernel).device_caches[0] = ({"key": compiled}, {}, None, None, None)


def take_snapshot(kernel: Any) -> dict[str, Any]:
    found = {k: id(v) for k, v in vars(unwrap_kernel(kernel)).items()}
    found["run"] = id(JITFunction.__dict__["run"])
    found["compiled"] = unwrap_kernel(kernel).device_caches[0][0].copy()
    found["wrapper"] = {k: id(v) for k, v in vars(kernel).items()}
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_a_compiled_kernel_is_set_aside_and_comes_back(name: str) -> None:
    kernel = KERNELS[name]
    inner = unwrap_kernel(kernel)
    key = inner.cache_key
    cache_with(kernel, "compiled before")
    before = take_snapshot(kernel)
    with toggles.reverted(name, folders=FOLDER):
        assert unwrap_kernel(kernel) is inner
        assert dict(inner.device_caches) == {}
        assert inner.cache_key != key
        # Kernels compiled meanwhile stay with the toggle.
        cache_with(kernel, "compiled while toggled")
    assert take_snapshot(kernel) == before
    assert inner.cache_key == key
    with toggles.reverted(name, folders=FOLDER):
        assert inner.device_caches[0][0] == {"key": "compiled while toggled"}
    assert take_snapshot(kernel) == before


def test_the_callers_of_a_helper_are_compiled_again() -> None:
    caller = kernels.calling_kernel
    key = caller.cache_key
    cache_with(caller, "compiled before")
    before = take_snapshot(caller)
    with toggles.reverted("toy-helper", folders=FOLDER):
        assert dict(caller.device_caches) == {}
        assert caller.cache_key != key
    assert take_snapshot(caller) == before
    assert caller.cache_key == key


def test_the_readers_of_a_constant_are_compiled_again() -> None:
    reader = kernels.scaled_kernel
    key = reader.cache_key
    cache_with(reader, "compiled before")
    with toggles.reverted("toy-scale", folders=FOLDER):
        assert dict(reader.device_caches) == {}
        assert reader.cache_key != key
    assert reader.cache_key == key
    assert reader.device_caches[0][0] == {"key": "compiled before"}


def test_the_patched_source_is_what_triton_parses() -> None:
    with toggles.reverted("toy-kernel", folders=FOLDER):
        assert "+ 100" in kernels.add_kernel.src
    assert "+ 100" not in kernels.add_kernel.src
