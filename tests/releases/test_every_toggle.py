"""Every toggle of the registry on the real release that runs these tests, live and at import."""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from memory import write_toggle

from fixtures.release_modules import require_module
from harness import toggles
from harness.core.cpp_tokens import is_cpp_path
from harness.core.errors import PatchError
from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus, find_toggle_status
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.schema import Toggle
from harness.patching import attestation
from harness.patching.live_engine import engine
from harness.releases import installer, source_trees
from harness.sanitizer.triton import jit_kernels

TOGGLES = list(toggle_catalogue.load_catalogue())
# transformers probes for torch_npu, so its stand-in is on the path for NPU modules only.
NPU = "23268-"
CLOCKS = {"sglang.srt.observability.req_time_stats:global_diff_realtime_monotonic"}


@functools.lru_cache(maxsize=1)
def open_tree() -> source_trees.FolderSourceTree:
    found = source_trees.find_installed_tree()
    assert found is not None, "these tests run in the environment of a release"
    return found


@functools.lru_cache(maxsize=64)
def find_status(toggle_id: str) -> ToggleStatus:
    return find_toggle_status(next(t for t in TOGGLES if t.id == toggle_id), open_tree())


def modules_of(toggle: Toggle) -> list[str]:
    return sorted({site.target.module for site in find_status(toggle.id).sites})


def list_present_toggles() -> list[Toggle]:
    return [t for t in TOGGLES if find_status(t.id).state is not ToggleState.ABSENT]


@pytest.fixture
def npu_standins() -> Any:
    sys.path.append(str(installer.STANDINS_NPU))
    yield
    sys.path.remove(str(installer.STANDINS_NPU))


def read_body(target: Any, module: Any) -> Any:
    """Return the target's present form: a kernel's source, or a function's code."""
    found: Any = module
    for name in target.qualname.split(".") if target.qualname else []:
        found = vars(found)[name]
    kernel = jit_kernels.unwrap_kernel(found)
    if kernel is not None:
        return kernel.fn.__code__, id(kernel)
    while hasattr(found, "__func__") or hasattr(found, "__wrapped__"):
        found = getattr(found, "__func__", None) or found.__wrapped__
    return getattr(found, "__code__", None), id(found)


def in_python() -> list[Toggle]:
    return [t for t in list_present_toggles() if not any(map(is_cpp_path, modules_of(t)))]


@pytest.mark.parametrize("toggle", in_python(), ids=lambda t: t.id)
@pytest.mark.usefixtures("npu_standins")
def test_live_in_and_out(toggle: Toggle) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modules = {name: importlib.import_module(name) for name in modules_of(toggle)}
        targets = {site.target for site in find_status(toggle.id).sites}
        before = {t: read_body(t, modules[t.module]) for t in targets}
        names = {name: dict(vars(module)) for name, module in modules.items()}
        turned = find_status(toggle.id).state is ToggleState.FIXED
        with (toggles.reverted if turned else toggles.enabled)(toggle.id):
            for target, (code, identity) in before.items():
                now, same = read_body(target, modules[target.module])
                assert same == identity
                assert now is not code or code is None  # a class or a module has no code
            assert engine._original_states
        assert {t: read_body(t, modules[t.module]) for t in targets} == before
        for target, (code, _) in before.items():
            assert read_body(target, modules[target.module])[0] is code
        assert {name: dict(vars(module)) for name, module in modules.items()} == names
        assert not engine._original_states


def import_in_process(
    modules: list[str], at_import: dict[str, str], live: tuple[list[str], list[str]]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Import modules in a new process; return how that went, and what SGLang's modules hold."""
    script = Path(__file__).parent / "held_values.py"
    done = subprocess.run(
        [sys.executable, str(script), *map(json.dumps, (modules, *live))],
        env={**os.environ, "PYTHONHASHSEED": "0", **at_import},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes, held = json.loads(done.stdout.splitlines()[-1])
    return outcomes, held


def test_all_at_once_at_import_hold_what_they_hold_live(tmp_path: Path) -> None:
    """Apply every applicable toggle in one process, and import each patched module.

    A process that applies all of them live holds the same values: no import derived another.
    """
    reverted, enabled = (
        [t.id for t in list_present_toggles() if find_status(t.id).state is state]
        for state in (ToggleState.FIXED, ToggleState.BUGGY)
    )
    modules = sorted({name for toggle in list_present_toggles() for name in modules_of(toggle)})
    imported = [name for name in modules if not is_cpp_path(name)]
    npu = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(installer.STANDINS_NPU)])
    environment = {
        "PYTHONPATH": npu,
        "SGLANG_DEBUG_REVERT_PR": ",".join(reverted),
        "SGLANG_DEBUG_ENABLE_PR": ",".join(enabled),
        "UNFIX_ATTESTATIONS": str(tmp_path),
    }
    outcomes, held = import_in_process(imported, environment, ([], []))
    assert outcomes == dict.fromkeys(imported, "ok")
    [left] = attestation.read_attestations(tmp_path)
    assert sorted(left.modules) == modules
    assert sorted(left.toggles) == sorted(t.id for t in list_present_toggles())
    _, held_live = import_in_process(imported, {"PYTHONPATH": npu}, (reverted, enabled))
    assert held.keys() == held_live.keys()
    differing = {
        name: (held[name], held_live[name])
        for name in held.keys() - CLOCKS
        if held[name] != held_live[name]
    }
    assert differing == {}


def test_a_function_that_imports_have_called_is_toggled_at_import_alone(tmp_path: Path) -> None:
    """A guard that compares the constant with a fresh call would be proven by half a change."""
    constant = "SGLANG_TEST_REQUEST_TIME_STATS"
    target = "sglang.srt.utils.common:get_bool_env_var"
    forms = 'truthy_values = ("true", "1")', 'truthy_values = ("true", "1", "0")'
    write_toggle(tmp_path, "zero-is-true", target, *forms, releases=">=0.5")
    with warnings.catch_warnings(action="ignore"):
        stats = require_module(
            "sglang.srt.observability.req_time_stats", "sglang.srt.metrics.collector"
        ).__name__
    refusal = pytest.raises(PatchError, match="what an import computed with get_bool_env_var")
    with refusal, toggles.reverted("zero-is-true", folders=(tmp_path,)):
        pass
    at_import = {"SGLANG_DEBUG_REVERT_PR": "zero-is-true", "UNFIX_TOGGLES": str(tmp_path)}
    for environment, value in ((at_import, "True"), ({}, "False")):
        _, held = import_in_process([stats], {constant: "0", **environment}, ([], []))
        assert held[f"{stats}:{constant}"] == value
