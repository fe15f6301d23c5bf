"""Toggles in CUDA sources reach the modules that include them; launches count for their lines."""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_loader import HEADER, OTHER, SOURCE, FakeLoader, install_sources

from harness.core.errors import PatchError
from harness.fixes.patch_plan import Direction, ToggleChoice
from harness.fixes.registry.toggle_reader import read_toggle
from harness.patching import cuda_modules
from harness.patching.cuda_modules import REACH, PatchableModule
from harness.patching.cuda_sources import (
    PATCHES,
    PatchedCudaSource,
    make_patched_source,
)
from harness.patching.live_engine import ToggleEngine
from harness.releases import source_trees
from harness.releases.source_trees import FolderSourceTree
from harness.sanitizer.cuda.fatbin import read_ptx
from harness.sanitizer.cuda.kernel_lines import KernelLines, remove_places
from harness.sanitizer.device.refusals import UnansweredName
from harness.sanitizer.hooks import HOOKS
from harness.sanitizer.triton import recorded_reach


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A release with two sources, one of which includes a header."""
    sources = {
        HEADER: "int scale() { return 2; }\n",
        SOURCE: "#include <sgl_kernel/math.cuh>\n",
        OTHER: "// #include nothing\n",
    }
    return install_sources(tmp_path, monkeypatch, sources)


@contextlib.contextmanager
def use_patch(path: str, source: PatchedCudaSource) -> Iterator[None]:
    PATCHES.set(path, source)
    try:
        yield
    finally:
        PATCHES.set(path, None)


def test_a_loaded_module_is_swapped_and_swapped_back(site_packages: Path) -> None:
    loader, counts = FakeLoader(site_packages), Counter[int]()
    scale, other = loader.load_module(), loader.load_module("other")
    run, run_other = scale.run, other.run  # SGLang keeps the functions, too
    assert "return 2" in run().header
    patched = make_patched_source(
        HEADER, "", "int scale() { return 3; }\n", [(7, 1, 1)], lambda slot: counts.update([slot])
    )
    with use_patch(HEADER, patched):
        patched_code = run()
        assert "return 3" in patched_code.header
        assert "cuda-builds/sources" in patched_code.file
        assert run_other().file == str(site_packages / OTHER)  # it does not include the header
        assert counts == {7: 1}
    assert (run().file, run().header) == (
        str(site_packages / SOURCE),
        "int scale() { return 2; }\n",
    )
    assert counts == {7: 1}


def test_the_side_that_a_release_has_runs_its_own_module(site_packages: Path) -> None:
    """Nothing is built for it, and its launches count."""
    scale, counts = FakeLoader(site_packages).load_module(), Counter[int]()
    text = (site_packages / HEADER).read_text()
    same = make_patched_source(HEADER, "", text, [(7, 1, 1)], lambda slot: counts.update([slot]))
    with use_patch(HEADER, same):
        assert (scale.run().file, scale.run().header) == (str(site_packages / SOURCE), text)
    assert counts == {7: 2}


def test_a_source_that_the_release_lacks_is_another_text(site_packages: Path) -> None:
    scale = FakeLoader(site_packages).load_module()
    added = HEADER.replace("sgl_kernel", "added")
    run = scale.run
    scale._included = frozenset({added})
    with use_patch(added, make_patched_source(added, "", "// µ\n", [], print)):
        file = run().file
    assert "cuda-builds/sources" in file
    assert (Path(file.partition("sglang/")[0]) / added).read_text(encoding="utf-8") == "// µ\n"


TOGGLE = """
id: {name}
title: A number of a test
family: cuda_kernels
symptom: crash
devices: [cpu, cuda]
why: It is a number.
variants:
  - releases: ">=0.5.9"
    target: sglang/kernels/jit/csrc/numbers.cuh:{name}
    edits:
      - fixed: 'return {fixed};'
        buggy: 'return {buggy};'
"""


def read_patch(path: str) -> str:
    found = PATCHES.get(path)
    assert found is not None
    return found.text


def test_two_toggles_of_one_source_stack(
    site_packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one begins at the release's text, and not at that of the first."""
    path = "sglang/kernels/jit/csrc/numbers.cuh"
    (site_packages / path).write_text("int one() { return 1; }\nint two() { return 2; }\n")
    (site_packages / "sglang/version.py").write_text('__version__ = "0.5.23"\n')
    tree = FolderSourceTree(site_packages, "current")
    monkeypatch.setattr(source_trees, "find_installed_tree", lambda: tree)
    choices = []
    for name, fixed, buggy in (("one", 1, 10), ("two", 2, 20)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(TOGGLE.format(name=name, fixed=fixed, buggy=buggy))
        choices.append(ToggleChoice(read_toggle(file), Direction.REVERT))
    engine = ToggleEngine()
    engine.enter(choices[:1])
    try:
        assert read_patch(path) == "int one() { return 10; }\nint two() { return 2; }\n"
        engine.enter(choices[1:])
        assert read_patch(path) == "int one() { return 10; }\nint two() { return 20; }\n"
        engine.leave(choices[:1])
        assert read_patch(path) == "int one() { return 1; }\nint two() { return 20; }\n"
    finally:
        engine.leave([*engine._active_changes])
    assert PATCHES.get(path) is None


class RefusingLoader(FakeLoader):
    """A loader whose compiler refuses `return nothing`."""

    def load_jit(self, *args: str, **options: Any) -> Any:
        module = super().load_jit(*args, **options)
        if "nothing" in module.run().header:
            raise RuntimeError('ninja failed\nk.cuh(3): error: identifier "nothing"\n1 error')
        return module


def test_a_patched_source_that_does_not_compile_is_named_with_the_compiler_s_error(
    site_packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[str] = []
    monkeypatch.setattr(cuda_modules, "BUILD_FAILURES", failures)
    run = RefusingLoader(site_packages).load_module().run
    patch = make_patched_source(HEADER, "", "return nothing;\n", [], print)
    with use_patch(HEADER, patch), pytest.raises(RuntimeError, match="ninja failed"):
        run()
    assert failures == ['k.cuh(3): error: identifier "nothing"']
    assert "return 2" in run().header


@pytest.mark.parametrize(
    ("message", "is_code"),
    [
        ('k.cuh(3): error: identifier "nothing"', True),
        ("ptxas error   : Entry function 'k' uses too much shared data", True),
        ("k.so: undefined symbol: _Z1kv", True),
        ("/bin/sh: 1: nvcc: not found", False),
        ("ninja: error: mkdir(build): No space left on device", False),
        ("k.cuh:3: fatal error: error writing to /tmp/x.s: No space left on device", False),
        ("c++: fatal error: Killed signal terminated program cc1plus", False),
        ("the build took more than 60 s", False),
    ],
)
def test_only_what_the_compiler_says_of_the_code_is_a_failure_of_the_code(
    site_packages: Path, monkeypatch: pytest.MonkeyPatch, message: str, is_code: bool
) -> None:
    failures: list[str] = []
    machine: list[str] = []
    monkeypatch.setattr(cuda_modules, "BUILD_FAILURES", failures)
    monkeypatch.setattr(cuda_modules, "MACHINE_FAILURES", machine)

    def fail(*args: str, **options: Any) -> Any:
        raise RuntimeError(message)

    loader = FakeLoader(site_packages)
    patch = make_patched_source(HEADER, "", "return 3;\n", [], print)
    with use_patch(HEADER, patch), pytest.raises(RuntimeError):
        PatchableModule(loader, fail, ("scale",), {"cuda_files": ["scale.cuh"]})
    assert (failures, machine) == (([message], []) if is_code else ([], [message]))


PTX = """
.file 1 "/builds/sglang/kernels/jit/csrc/scale.cuh"
.file 2 "/usr/include/math.h"
.visible .entry first(
)
{
.loc 1 12 3
.loc 2 40 1
}
.visible .entry second(
)
{
.loc 1 30 5
}
"""


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        (".loc\t1 12 3", ".loc\t1 13 3", True),
        ("scale.cuh", "patched/scale.cuh", True),
        (")\n{", ")\n\n{ // begin inline asm", True),
        ("\tadd.s32 \t", "add.s32 ", True),
        ("add.s32", "sub.s32", False),
    ],
)
def test_places_are_no_part_of_a_kernels_code(old: str, new: str, is_same: bool) -> None:
    text = """.visible .entry first(
)
{
\t.loc\t1 12 3
\tadd.s32 \t%r1, %r2, %r3;
}
\t.file\t1 "/builds/scale.cuh"
"""
    assert old in text
    assert (remove_places(text) == remove_places(text.replace(old, new))) is is_same


@pytest.mark.parametrize(
    ("line", "entry", "counted"),
    [(12, "first", True), (12, "second", False), (30, "second", True), (99, "second", True)],
    ids=["own line", "another kernel's line", "own line of the other", "host code"],
)
def test_a_launch_counts_for_the_lines_of_its_kernel(
    line: int, entry: str, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HOOKS, "sees_cuda_launches", True)
    slots: list[int] = []
    source = make_patched_source(SOURCE, "", "", [(1, line, line)], slots.append)
    with REACH.call((source,)):
        REACH.count_launch(KernelLines([PTX]).select(entry))
    assert slots == ([1] if counted else [])


INLINED_FIRST = """
.file 1 "/builds/sglang/kernels/jit/csrc/scale.cuh"
.file 2 "/builds/sglang/kernels/jit/include/sgl_kernel/warp.cuh"
.visible .entry first(
)
{
.loc 2 40 1, function_name $L_info_string0, inlined_at 1 12 3
.loc 1 12 3
.loc 2 7 1
}
"""


def test_a_kernel_stands_in_the_file_that_others_are_inlined_into() -> None:
    assert KernelLines([INLINED_FIRST]).files == {"first": f"/builds/{SOURCE}"}


def test_a_launch_of_a_cuda_kernel_is_recorded_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "launches"
    monkeypatch.setenv(recorded_reach.RECORD_VARIABLE, str(record))
    monkeypatch.setenv(recorded_reach.LAUNCHER_VARIABLE, "a test")
    monkeypatch.setattr(recorded_reach, "_seen_lines", {})
    for _ in range(2):
        recorded_reach.record_cuda_reach(f"/builds/{SOURCE}", "scale_kernel")
    recorded_reach.record_cuda_reach("/usr/include/math.h", "other")
    assert len(record.read_text().splitlines()) == 1
    (reach,) = recorded_reach.read_reach(record)
    assert (reach.kernel, reach.by) == (f"{SOURCE}:scale_kernel", {"a test"})


def test_modules_loaded_before_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_modules, "_modules_loaded_before", 2)
    with pytest.raises(PatchError, match=r"2 JIT modules .* import harness.toggles"):
        cuda_modules.refuse_loaded_modules(SOURCE)


def make_fatbin(kind: int, text: bytes, compressed: int = 0) -> Any:
    entry = struct.pack("<HHIQI", kind, 0, 64, len(text), compressed).ljust(64, b"\0") + text
    return ctypes.create_string_buffer(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry)


def test_ptx_is_read_from_a_fatbin() -> None:
    buffer = make_fatbin(1, b".version 9.0\n\0")
    assert read_ptx(ctypes.addressof(buffer)) == [".version 9.0\n"]


@pytest.mark.parametrize(
    ("buffer", "reason"),
    [(make_fatbin(2, b"\x7fELF"), "no PTX"), (make_fatbin(1, b"x", 1), "compressed")],
)
def test_a_module_without_readable_ptx_is_refused(buffer: Any, reason: str) -> None:
    with pytest.raises(UnansweredName, match=reason):
        read_ptx(ctypes.addressof(buffer))


def test_an_export_may_have_any_name(site_packages: Path) -> None:
    loader = FakeLoader(site_packages)
    exports = SimpleNamespace(prepare=lambda rows: f"{rows} rows prepared", load=lambda: "loaded")
    module = PatchableModule(loader, lambda *_, **__: exports, ("rows",), {"cuda_files": []})
    assert (module.prepare(3), module.load()) == ("3 rows prepared", "loaded")
    assert not [name for name in vars(PatchableModule) if not name.startswith("_")]
