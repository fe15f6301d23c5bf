"""Two builds of one CUDA source have no names in common in a process: a card launches its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_loader import SOURCE, FakeLoader, install_sources, patch_source

from harness.patching.cuda_sources import PATCHES
from harness.releases import cuda_toolkit
from harness.sanitizer.hooks import HOOKS
from harness.sanitizer.plugins.for_sglang.separate_names import choose_name_flags, find_name_flags

FLAGS = ("-Xcompiler", "-fno-gnu-unique")
# As SGLang's modules have it: a static member of a template is the kernel that host code launches.
MODULE = """
template <int N> __global__ void scale(int* out) { *out = N; }
template <int N> struct Scale {
  static void (*kernel)(int*);
  static void run(int* out) { kernel<<<1, 1>>>(out); }
};
template <int N> void (*Scale<N>::kernel)(int*) = scale<N>;
void run(int* out) { Scale<2>::run(out); }
"""
needs_toolkit = pytest.mark.skipif(
    cuda_toolkit.find_toolkit() is None or shutil.which("nm") is None,
    reason="no CUDA toolkit, or no nm, is installed",
)


def list_unique_names(tmp_path: Path, compiler: str, flags: tuple[str, ...]) -> list[str]:
    """Build a module for a card, and return its names that are unique in a process."""
    source, built = tmp_path / "module.cu", tmp_path / "module.so"
    source.write_text(MODULE)
    command = [compiler, *flags, "-arch=sm_90", "-Xcompiler", "-fPIC", "-O3", "-shared"]
    subprocess.run([*command, str(source), "-o", str(built)], check=True, capture_output=True)
    names = subprocess.run(["nm", str(built)], check=True, capture_output=True, text=True).stdout
    return [words[-1] for line in names.splitlines() if (words := line.split())[-2] == "u"]


@needs_toolkit
def test_a_module_that_a_card_runs_has_no_names_that_are_unique_in_a_process(
    tmp_path: Path,
) -> None:
    toolkit = cuda_toolkit.find_toolkit()
    assert toolkit is not None
    compiler = str(toolkit.home / "bin" / "nvcc")
    flags = find_name_flags(compiler)
    assert any("kernel" in name for name in list_unique_names(tmp_path, compiler, ()))
    assert list_unique_names(tmp_path, compiler, flags) == []


@pytest.mark.parametrize(
    ("takes_flags", "sees_launches", "expected"),
    [(True, False, ["-O3", *FLAGS]), (False, False, ["-O3"]), (True, True, ["-O3"])],
    ids=["a card", "a compiler that refuses", "the virtual GPU, whose modules all have them"],
)
def test_a_patched_module_for_a_card_is_built_with_names_of_its_own(
    takes_flags: bool,
    sees_launches: bool,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = install_sources(tmp_path, monkeypatch, {SOURCE: "int scale() { return 2; }\n"})
    monkeypatch.setattr(HOOKS, "sees_cuda_launches", sees_launches)
    loader = FakeLoader(root, "true" if takes_flags else "false")
    module = loader.load_module(extra_cuda_cflags=["-O3"])
    assert module.run().flags == ["-O3"]  # SGLang's own build keeps its key
    patch_source(SOURCE, "int scale() { return 3; }\n")
    try:
        assert module.run().flags == expected
    finally:
        PATCHES.set(SOURCE, None)


def test_a_compiler_that_is_not_there_takes_no_flags() -> None:
    assert find_name_flags(os.path.join(os.sep, "no", "nvcc")) == ()
    assert choose_name_flags(SimpleNamespace()) == ()
