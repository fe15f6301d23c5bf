"""No build and no message of one depends on where a checkout keeps its builds."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fixtures.cuda_kernels import fail_on_refusal
from harness.core import paths
from harness.kernels.cuda.jit_loader import _wrap_loaded_modules, add_linked_roots
from harness.kernels.cuda.recorded_builds import FILE_VARIABLE


def normalize(text: str, roots: tuple[tuple[str, Path], ...]) -> str:
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
        texts.append(normalize(f"command = {nvcc} -I/usr/include", add_linked_roots(roots)))
    assert texts == ["command = <toolkit>/bin/nvcc -I<sys>/include"] * 2


def test_a_refusal_by_the_host_code_names_its_source_from_the_package_on() -> None:
    def refuse() -> None:
        raise RuntimeError("Failed at /a/cuda-builds/sources/0a1b/sglang/b/c.cuh:499 in plan; /d/e")

    with pytest.raises(AssertionError) as refusal:
        fail_on_refusal(refuse)()
    words = "the host code refuses the call: Failed at sglang/b/c.cuh:499 in plan; /d/e"
    assert str(refusal.value) == words
    assert "0a1b" not in "".join(traceback.format_exception(refusal.value))


def test_a_module_that_is_asked_for_again_is_the_one_that_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader: Any = ModuleType("toy_loader")
    loads: list[str] = []

    def load_jit(*args: str, **_: Any) -> object:
        loads.append(args[0])
        return object()

    loader.load_jit, loader.resolve_sources = load_jit, tuple
    monkeypatch.setitem(sys.modules, "toy_loader", loader)
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    _wrap_loaded_modules(loader)
    first = loader.load_jit("rows", cuda_files=["rows.cuh"])
    assert loader.load_jit("rows", cuda_files=["rows.cuh"]) is first
    assert loader.load_jit("rows", cuda_files=["other.cuh"]) is not first
    assert loads == ["rows", "rows"]
    monkeypatch.setenv(FILE_VARIABLE, os.devnull)
    assert loader.load_jit("rows", cuda_files=["rows.cuh"]) is not first, "each load is recorded"
