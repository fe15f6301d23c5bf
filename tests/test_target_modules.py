"""The kernels that suites launch are where the toggles' targets say, on every release."""

from __future__ import annotations

import re
from functools import cache

import pytest

from fixtures.release_modules import list_target_modules
from harness.core import paths
from harness.core.source_scopes import ReleaseSources
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.guards.cells import load_registry
from harness.releases import managed_releases

LAUNCH = re.compile(r"""(?:launch_kernel\(\s*check,\s*|get_real_kernel\()"([^"]+)\"""")
RELEASES = [release.name for release in managed_releases.list_releases()]


@cache
def open_sources(release: str) -> ReleaseSources:
    return managed_releases.get_release(release).open_sources()


def list_launched_kernels() -> list[str]:
    folders = (paths.project_folder() / name for name in ("suites", "fixtures"))
    texts = (file.read_text() for folder in folders for file in folder.rglob("*.py"))
    return sorted({name for text in texts for name in LAUNCH.findall(text)})


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_that_has_a_toggle_has_its_kernel_in_one_module(release: str) -> None:
    sources = open_sources(release)
    found = {}
    for name in list_launched_kernels():
        kernel, _, of = name.partition(" of ")
        toggles = [
            toggle
            for toggle in load_registry().select_or_all([of] if of else [])
            if any(target.qualname == kernel for v in toggle.variants for target in v.targets)
        ]
        assert toggles, f"{name} is no toggle's target"
        states = {find_toggle_status(toggle, sources).state for toggle in toggles}
        if states - {ToggleState.ABSENT}:
            found[name] = list_target_modules(kernel, of, sources)
    assert found
    assert {name: modules for name, modules in found.items() if len(modules) != 1} == {}


def test_a_module_without_the_kernel_is_not_its_home() -> None:
    """0.5.10 has the later home of this kernel, without the kernel."""
    (home,) = list_target_modules("track_mamba_state_if_needed_kernel", "", open_sources("0.5.10"))
    assert home == "sglang.srt.layers.attention.hybrid_linear_attn_backend"
