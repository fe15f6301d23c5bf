"""Live toggles on kernels on the CPU: the patched source runs, and is gone afterwards."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import calling
import pytest
import torch
from sglang import kernels
from triton.runtime.jit import JITFunction, KernelInterface

from harness import checking, toggles
from harness.core import paths
from harness.patching import attestation, live_engine, original_code
from harness.sanitizer.triton import frontend, jit_kernels

FOLDER = (Path(__file__).parents[2] / "toy" / "toggles",)


def launch_kernel(kernel: Any, **options: Any) -> int:
    x = torch.arange(20, dtype=torch.int32)
    out = torch.zeros_like(x)
    with checking.checked("cpu"):
        kernel[(2,)](out, x, 20, **options)
    return int(out[3])


CASES = [
    ("toy-kernel", lambda: launch_kernel(kernels.add_kernel, BLOCK=16), 4, 103),
    ("toy-helper", lambda: launch_kernel(kernels.calling_kernel, BLOCK=16), 6, 60),
    ("toy-heuristic", lambda: launch_kernel(kernels.heuristic_kernel), 8, 53),
    ("toy-tuned", lambda: launch_kernel(kernels.tuned_kernel), 10, 73),
    ("toy-scale", lambda: launch_kernel(kernels.scaled_kernel, BLOCK=16), 9, 90),
]


def take_snapshot() -> dict[str, Any]:
    found: dict[str, Any] = {"run": JITFunction.__dict__["run"]}
    for name, value in vars(kernels).items():
        if isinstance(value, KernelInterface):
            found[name] = (id(value), {k: id(v) for k, v in vars(value).items()})
            found[f"{name}.code"] = getattr(getattr(value, "fn", None), "__code__", None)
    return found


def test_a_kernel_that_is_made_later_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its name was bound to None, or to another kernel."""
    other = JITFunction(kernels.add_kernel.fn)
    for name, content in (("new", {}), ("late", {"kernel": None}), ("held", {"kernel": other})):
        module = ModuleType(f"made_{name}")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert list(jit_kernels.iterate_loaded_kernels())
    new_kernel = JITFunction(kernels.add_kernel.fn)
    for name in ("new", "late", "held"):
        sys.modules[f"made_{name}"].kernel = new_kernel  # type: ignore[attr-defined]
        assert new_kernel in list(jit_kernels.iterate_loaded_kernels())
        sys.modules[f"made_{name}"].kernel = None  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "call", "fixed", "buggy"), CASES, ids=[c[0] for c in CASES])
def test_a_kernel_changes_and_comes_back(name: str, call: Any, fixed: int, buggy: int) -> None:
    assert call() == fixed  # compiled before
    before = take_snapshot()
    for _ in range(2):
        with toggles.reverted(name, folders=FOLDER) as toggled:
            assert call() == buggy
            assert call() == buggy
        assert toggled.reach >= 2
        assert take_snapshot() == before
        assert call() == fixed


def test_launches_are_counted_through_callers_while_observed() -> None:
    with toggles.observed("toy-helper", folders=FOLDER) as observed:
        launch_kernel(kernels.calling_kernel, BLOCK=16)
        launch_kernel(kernels.add_kernel, BLOCK=16)
        launch_kernel(kernels.calling_kernel, BLOCK=16)
    launch_kernel(kernels.calling_kernel, BLOCK=16)
    assert observed.reach == 2


AT_IMPORT = """
import torch
from harness import checking
from sglang import kernels
x = torch.arange(20, dtype=torch.int32)
out = torch.zeros_like(x)
with checking.checked("cpu"):
    for kernel in (kernels.calling_kernel, kernels.add_kernel, kernels.calling_kernel):
        kernel[(2,)](out, x, 20, BLOCK=16)
        print(int(out[3]))
"""


def test_at_import_the_patched_kernels_run_and_their_launches_are_counted(tmp_path: Path) -> None:
    toy = FOLDER[0].parent
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(paths.HARNESS_FOLDER / "startup"), str(toy)]),
        "SGLANG_DEBUG_REVERT_PR": "toy-helper,toy-kernel,toy-tuned",
        "UNFIX_TOGGLES": str(FOLDER[0]),
        "UNFIX_ATTESTATIONS": str(tmp_path / "attestations"),
    }
    done = calling.run_program([sys.executable, "-c", AT_IMPORT], env=environment)
    assert done.stdout.split() == ["60", "103", "60"], done.stderr
    [left] = attestation.read_attestations(tmp_path / "attestations")
    reached = {slot.toggle: (count, left.kinds[slot]) for slot, count in left.counts.items()}
    assert reached == {
        "toy-helper": (2, "launches"),
        "toy-kernel": (1, "launches"),
        "toy-tuned": (0, "launches"),
    }


@pytest.mark.parametrize(("name", "call", "fixed", "buggy"), CASES, ids=[c[0] for c in CASES])
def test_a_toggle_leaves_other_compiled_kernels_in_the_cache(
    name: str, call: Any, fixed: int, buggy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    call()
    looked_up: list[str] = []
    compute_cache_key = frontend.compute_cache_key
    monkeypatch.setattr(
        frontend,
        "compute_cache_key",
        lambda kernel, bound: looked_up.append(kernel.__name__) or compute_cache_key(kernel, bound),
    )
    assert call() == fixed
    assert looked_up == []  # another session, and no lookup
    for _ in range(2):
        with toggles.reverted(name, folders=FOLDER):
            assert call() == buggy
            assert call() == buggy
        assert call() == fixed
    assert len(set(looked_up)) <= 1  # only kernels that use the changed code


def test_launches_are_counted_whichever_comes_first() -> None:
    x = torch.arange(20, dtype=torch.int32)
    out = torch.zeros_like(x)
    with toggles.observed("toy-helper", folders=FOLDER) as observed, checking.checked("cpu"):
        kernels.calling_kernel[(2,)](out, x, 20, BLOCK=16)
    assert observed.reach == 1
    with checking.checked("cpu"):
        with toggles.observed("toy-helper", folders=FOLDER) as observed:
            kernels.calling_kernel[(2,)](out, x, 20, BLOCK=16)
        kernels.calling_kernel[(2,)](out, x, 20, BLOCK=16)
    assert observed.reach == 1


def test_a_preloaded_module_is_not_parsed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forks of a process that has preloaded a module need not parse it."""
    monkeypatch.setattr(toggles, "engine", live_engine.ToggleEngine())
    source = toggles.engine.sources.read("sglang.kernels")
    assert source is not None
    for cache in (original_code.parse_definitions, original_code.compile_unpatched):
        cache.cache_clear()
    original_code.preload_module_text(source.text, source.path)
    caches = original_code.parse_definitions, original_code.compile_unpatched
    before = [cache.cache_info() for cache in caches]
    with toggles.reverted("toy-kernel", folders=FOLDER):
        pass
    after = [cache.cache_info() for cache in caches]
    assert [cache.misses for cache in after] == [cache.misses for cache in before]
    assert [cache.hits for cache in after] == [cache.hits + 1 for cache in before]
