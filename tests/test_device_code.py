"""A patch of code for the card alone: PTX in place of a module's own, and no build of host code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_loader import SOURCE, FakeLoader, install_sources, patch_source

from harness.patching.cuda_modules import REACH
from harness.patching.cuda_sources import PATCHES, make_patched_source
from harness.patching.device_code import (
    build_device_code,
    has_host_code,
    have_same_host_code,
)
from harness.sanitizer.hooks import HOOKS

TEXT = """
constexpr int kThreads = 128;
SGL_DEVICE int get_row(int row) { return row + 1; }
SGL_DEVICE_HOST int get_column(int column) { return column + 2; }
HOST_DEVICE int get_page(int page) { return page + 7; }
__device__ constexpr int get_width() { return 3; }
template <typename T>
__global__ void scale(T* out, int n) { if (threadIdx.x < n) out[get_row(n)] = 4; }
struct Kernel {
  static __device__ void store(int* out) { *out = 5; }
  static void run(int n) { scale<<<6, kThreads>>>(out, n); }
};
"""


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("row + 1", "row", True),
        ("threadIdx.x < n", "threadIdx.x <= n", True),
        ("*out = 5", "*out = 6", True),
        ("column + 2", "column", False),
        ("page + 7", "page", False),
        ("return 3", "return 4", False),
        ("kThreads = 128", "kThreads = 64", False),
        ("<<<6", "<<<7", False),
        ("T* out, int n", "T* out, long n", False),
    ],
)
def test_bodies_for_the_card_alone_are_no_host_code(old: str, new: str, is_same: bool) -> None:
    assert old in TEXT
    assert have_same_host_code(TEXT, TEXT.replace(old, new)) is is_same


LINES = """__global__ void scale(int* out) {
  out[0] = 4;
}
void run(int rows) {
  check(rows);
}
"""


def test_lines_of_host_code_are_told_from_bodies_for_the_card() -> None:
    answers = [has_host_code(LINES, line, line) for line in range(1, 7)]
    assert answers == [False, False, False, True, True, True]


@pytest.mark.parametrize(
    ("line", "error", "counted"),
    [
        (5, RuntimeError("rows must be > 0"), 1),
        (2, RuntimeError("rows must be > 0"), 0),
        (1, RuntimeError("rows must be > 0"), 0),
        (5, None, 0),
        (5, TypeError("Mismatched number of arguments"), 0),
        (5, NotImplementedError("the virtual GPU does not answer cudaMemAdvise"), 0),
    ],
    ids=[
        "a check of SGLang",
        "a body for the card",
        "a header of the card's function",
        "a call that returns early",
        "arguments of another type",
        "an error of the virtual GPU",
    ],
)
def test_a_call_that_launches_nothing_counts_for_host_code_if_its_check_refuses(
    line: int, error: Exception | None, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HOOKS, "sees_cuda_launches", True)
    slots: list[int] = []
    source = make_patched_source(SOURCE, "", LINES, [(1, line, line)], slots.append)
    with contextlib.suppress(Exception), REACH.call((source,)):
        if error is not None:
            raise error
    assert slots == [1] * counted


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLoader]:
    root = install_sources(tmp_path, monkeypatch, {SOURCE: TEXT})
    monkeypatch.setattr(HOOKS, "sees_cuda_launches", True)
    yield FakeLoader(root)
    PATCHES.set(SOURCE, None)


def replace_text(old: str, new: str) -> None:
    patch_source(SOURCE, TEXT.replace(old, new))


def test_a_patch_for_the_card_alone_runs_its_ptx_with_the_modules_own_host_code(
    loader: FakeLoader,
) -> None:
    module = loader.load_module()
    own = module.run()
    assert own.device_code == ""
    replace_text("*out = 5", "*out = 7")
    patched = module.run()
    assert patched.file == own.file
    assert patched.device_code.startswith("device-code.ptx of ")
    assert "*out = 7" in patched.device_code
    PATCHES.set(SOURCE, None)
    assert module.run() == own
    assert loader.built == ["scale.so", "device-code.ptx"]


@pytest.mark.parametrize("sees_launches", [True, False])
def test_a_patch_of_host_code_or_for_a_card_builds_the_module(
    loader: FakeLoader, monkeypatch: pytest.MonkeyPatch, sees_launches: bool
) -> None:
    monkeypatch.setattr(HOOKS, "sees_cuda_launches", sees_launches)
    module = loader.load_module()
    replace_text(
        *(("kThreads = 128", "kThreads = 64") if sees_launches else ("*out = 5", "*out = 7"))
    )
    assert "cuda-builds/sources" in module.run().file
    assert module.run().device_code == ""
    assert loader.built == ["scale.so", "scale.so"]


def test_a_module_of_several_cuda_sources_is_built_as_a_whole(loader: FakeLoader) -> None:
    loader.build_file += "build other_1.o: compile_cuda other.cuh\n"
    module = loader.load_module()
    replace_text("*out = 5", "*out = 7")
    assert "cuda-builds/sources" in module.run().file
    assert module.run().device_code == ""


def test_a_module_that_another_thread_loads_meanwhile_is_built(loader: FakeLoader) -> None:
    options = {"cuda_files": ["scale.cuh"]}

    def load_with_another(*args: Any, **options: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(loader.load_jit, *args, **options).result()
        assert other.run().device_code == ""
        return loader.load_jit(*args, **options)

    assert isinstance(build_device_code(loader, load_with_another, ("scale",), options), str)
    assert loader.built == ["scale.so", "device-code.ptx"]


def test_a_text_that_was_built_once_is_read(loader: FakeLoader) -> None:
    options = {"cuda_files": ["scale.cuh"]}
    texts = [build_device_code(loader, loader.load_jit, ("scale",), options) for _ in range(2)]
    assert texts[0] == texts[1]
    assert loader.built == ["device-code.ptx"]
    assert loader.ninja.build == loader.build  # the loader has its own ninja again
