"""A patch of code for the card alone: PTX in place of a module's own, and no build of host code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.core import paths
from harness.patching.cuda_modules import REACH, PatchableModule
from harness.patching.cuda_sources import PATCHES, make_patched_source
from harness.patching.device_code import (
    build_device_code,
    get_device_code,
    has_host_code,
    have_same_host_code,
)
from harness.sanitizer.hooks import HOOKS

SOURCE = "sglang/kernels/jit/csrc/scale.cuh"
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


BUILD_FILE = """rule link
  command = $cxx $in $ldflags -o "$out"

build scale_0.o: compile_cuda scale.cuh
build scale.so: link scale_0.o
default scale.so
"""


class NinjaLoader:
    """A loader of SGLang that says what ninja is asked to build, and builds it."""

    def __init__(self, root: Path, build_file: str = BUILD_FILE) -> None:
        self.DEFAULT_INCLUDE = [str(root / "sglang/kernels/jit/include")]
        self.root = root
        self.build_file = build_file
        self.built: list[str] = []
        self.ninja: Any = SimpleNamespace(build=self.build, generate=lambda spec: self.build_file)

    def resolve_sources(self, files: list[str] | None) -> tuple[str, ...]:
        folder = self.root / "sglang/kernels/jit/csrc"
        return tuple(str(folder / file) for file in files or ())

    def build(self, *, spec: Any, build_dir: Path, build_file: str) -> Path:
        build_dir.mkdir(parents=True, exist_ok=True)
        [target] = [
            line.split()[1] for line in build_file.splitlines() if line.startswith("default")
        ]
        self.built.append(target)
        (build_dir / target).write_text(f"{target} of {Path(spec).read_text()}")
        return build_dir / target

    def load_jit(self, *args: str, **options: Any) -> Any:
        [source] = self.resolve_sources(options["cuda_files"])
        key = "own" if Path(source).is_relative_to(self.root) else "patched"
        folder = self.root / "builds" / key / ".staging"
        self.ninja.build(spec=source, build_dir=folder, build_file=self.ninja.generate(source))
        return SimpleNamespace(run=lambda: (key, get_device_code()))


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NinjaLoader]:
    root = tmp_path / "site-packages"
    (root / SOURCE).parent.mkdir(parents=True)
    (root / SOURCE).write_text(TEXT)
    monkeypatch.setattr(paths, "releases_folder", lambda: tmp_path / ".releases")
    monkeypatch.setattr(HOOKS, "sees_cuda_launches", True)
    package = ModuleType("sglang")
    package.__path__ = [str(root / "sglang")]
    monkeypatch.setitem(sys.modules, "sglang", package)
    yield NinjaLoader(root)
    PATCHES.set(SOURCE, None)


def patch_source(old: str, new: str) -> None:
    PATCHES.set(SOURCE, make_patched_source(SOURCE, "", TEXT.replace(old, new), [], print))


def test_a_patch_for_the_card_alone_runs_its_ptx_with_the_modules_own_host_code(
    loader: NinjaLoader,
) -> None:
    module = PatchableModule(loader, loader.load_jit, ("scale",), {"cuda_files": ["scale.cuh"]})
    assert module.run() == ("own", "")
    patch_source("*out = 5", "*out = 7")
    key, text = module.run()
    assert key == "own"
    assert text.startswith("device-code.ptx of ")
    assert "*out = 7" in text
    PATCHES.set(SOURCE, None)
    assert module.run() == ("own", "")
    assert loader.built == ["scale.so", "device-code.ptx"]


@pytest.mark.parametrize("sees_launches", [True, False])
def test_a_patch_of_host_code_or_for_a_card_builds_the_module(
    loader: NinjaLoader, monkeypatch: pytest.MonkeyPatch, sees_launches: bool
) -> None:
    monkeypatch.setattr(HOOKS, "sees_cuda_launches", sees_launches)
    module = PatchableModule(loader, loader.load_jit, ("scale",), {"cuda_files": ["scale.cuh"]})
    patch_source(
        *(("kThreads = 128", "kThreads = 64") if sees_launches else ("*out = 5", "*out = 7"))
    )
    assert module.run() == ("patched", "")
    assert loader.built == ["scale.so", "scale.so"]


def test_a_module_of_several_cuda_sources_is_built_as_a_whole(loader: NinjaLoader) -> None:
    loader.build_file += "build other_1.o: compile_cuda other.cuh\n"
    module = PatchableModule(loader, loader.load_jit, ("scale",), {"cuda_files": ["scale.cuh"]})
    patch_source("*out = 5", "*out = 7")
    assert module.run() == ("patched", "")


def test_a_module_that_another_thread_loads_meanwhile_is_built(loader: NinjaLoader) -> None:
    options = {"cuda_files": ["scale.cuh"]}

    def load_with_another(*args: Any, **options: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(loader.load_jit, *args, **options).result()
        assert other.run() == ("own", "")
        return loader.load_jit(*args, **options)

    assert isinstance(build_device_code(loader, load_with_another, ("scale",), options), str)
    assert loader.built == ["scale.so", "device-code.ptx"]


def test_a_text_that_was_built_once_is_read(loader: NinjaLoader) -> None:
    options = {"cuda_files": ["scale.cuh"]}
    texts = [build_device_code(loader, loader.load_jit, ("scale",), options) for _ in range(2)]
    assert texts[0] == texts[1]
    assert loader.built == ["device-code.ptx"]
    assert loader.ninja.build == loader.build  # the loader has its own ninja again
