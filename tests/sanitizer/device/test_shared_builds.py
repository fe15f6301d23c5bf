"""No build and no message of one depends on where a checkout keeps its builds."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fixtures.cuda_kernels import fail_on_refusal
from harness.core import paths
from harness.sanitizer.device.cards import CARD_VARIABLE
from harness.sanitizer.plugins.for_sglang import cached_answers, device_hooks, jit_loader
from harness.sanitizer.plugins.for_sglang.recorded_builds import FILE_VARIABLE


def normalize_build(text: str, roots: tuple[tuple[str, Path], ...]) -> str:
    """Replace the roots in a build file, as SGLang does."""
    for token, root in roots:
        text = text.replace(str(root), f"<{token}>")
    return text


def test_a_link_to_the_releases_is_no_part_of_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit = tmp_path / "main" / ".releases" / "cuda-toolkit"
    toolkit.mkdir(parents=True)
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / ".releases").symlink_to(tmp_path / "main" / ".releases")
    roots = [("toolkit", toolkit), ("sys", Path("/usr"))]
    texts = []
    for name in ("main", "clone"):
        monkeypatch.setattr(
            paths, "releases_folder", lambda name=name: tmp_path / name / ".releases"
        )
        nvcc = tmp_path / name / ".releases" / "cuda-toolkit" / "bin" / "nvcc"
        texts.append(
            normalize_build(f"command = {nvcc} -I/usr/include", jit_loader.add_linked_roots(roots))
        )
    assert texts == ["command = <toolkit>/bin/nvcc -I<sys>/include"] * 2


def test_a_refusal_by_the_host_code_names_its_source_from_the_package_on() -> None:
    def refuse() -> None:
        raise RuntimeError("Failed at /a/cuda-builds/sources/0a1b/sglang/b/c.cuh:499 in plan; /d/e")

    with pytest.raises(AssertionError) as refusal:
        fail_on_refusal(refuse)()
    words = "the host code refuses the call: Failed at sglang/b/c.cuh:499 in plan; /d/e"
    assert str(refusal.value) == words
    assert "0a1b" not in "".join(traceback.format_exception(refusal.value))


def test_host_code_is_built_without_optimization_and_with_names_of_its_own() -> None:
    text = "cxxflags = -std=c++20 -O3\ncudaflags = -DN=1 -O3 --use_fast_math -O2 -I/a-O3\n"
    ninja: Any = ModuleType("toy_ninja")
    ninja.generate = lambda spec: text + spec
    ninja.toolchain = SimpleNamespace(compilers=lambda: ("c++", "true"))  # takes any flag
    jit_loader._choose_host_flags(ninja)
    flags = "-DN=1 --use_fast_math -I/a-O3 -Xcompiler -fno-gnu-unique"
    assert ninja.generate("ldflags") == f"cxxflags = -std=c++20 -O3\ncudaflags = {flags}\nldflags"


@pytest.fixture(name="loads")
def record_loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Wrap a made-up loader, `toy_loader`, and return what it is asked to load."""
    loader: Any = ModuleType("toy_loader")
    loads: list[str] = []

    def load_jit(*args: str, **_: Any) -> object:
        loads.append(args[0])
        return object()

    loader.load_jit, loader.resolve_sources = load_jit, tuple
    monkeypatch.setitem(sys.modules, "toy_loader", loader)
    architecture: Any = ModuleType(jit_loader._ARCHITECTURE)
    toolchain: Any = ModuleType(jit_loader._TOOLCHAIN)
    architecture.get_default_target_flags = lambda: ["-DSGL_CUDA_ARCH=900"]
    toolchain.target_flags = lambda: ["-gencode=arch=compute_90a"]
    for module in (architecture, toolchain):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    monkeypatch.delenv(CARD_VARIABLE, raising=False)
    monkeypatch.setattr(cached_answers, "_registered", [])
    jit_loader._wrap_loaded_modules(loader)
    with device_hooks.load_own_modules():  # and not stand-ins
        yield loads


def load_module(*args: Any, **options: Any) -> Any:
    return sys.modules["toy_loader"].load_jit(*args, **{"cuda_files": ["rows.cuh"], **options})


def test_a_module_that_is_asked_for_again_is_the_one_that_is_loaded(
    loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_module("rows")
    assert load_module("rows") is first
    assert load_module("rows", cuda_files=["other.cuh"]) is not first
    assert loads == ["rows", "rows"]
    monkeypatch.setenv(FILE_VARIABLE, os.devnull)
    assert load_module("rows") is not first, "each load is recorded"


def test_a_module_is_loaded_for_one_architecture_and_one_card(
    loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_module("rows")
    for name, function in (
        (jit_loader._ARCHITECTURE, "get_default_target_flags"),
        (jit_loader._TOOLCHAIN, "target_flags"),
    ):
        with monkeypatch.context() as other:
            other.setattr(sys.modules[name], function, lambda: ["-DSGL_CUDA_ARCH=1000"])
            assert load_module("rows") is not first
    monkeypatch.setenv(CARD_VARIABLE, "B200")
    assert load_module("rows") is not first
    monkeypatch.delenv(CARD_VARIABLE)
    assert load_module("rows") is first
    assert len(loads) == 4


class UnnamedValue:
    """A value of which all have the same words."""

    def __repr__(self) -> str:
        return "it"


def test_a_module_of_values_without_a_plain_form_is_loaded_each_time(loads: list[str]) -> None:
    first = load_module("rows", extra_cuda_cflags=[UnnamedValue()])
    assert load_module("rows", extra_cuda_cflags=[UnnamedValue()]) is not first


def test_a_module_is_loaded_anew_when_code_of_the_kernels_changes(loads: list[str]) -> None:
    first = load_module("rows")
    cached_answers.forget_dependent_answers(ModuleType("sglang.kernels.jit.toy"))
    assert load_module("rows") is not first
