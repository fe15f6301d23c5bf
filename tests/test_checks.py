"""`unfix exec --check` but for the GPU: the request, the process, and the output."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import forked
import pytest
from fixture_types import Output, Patch

from harness.cli import kernel_checks
from harness.core.missing_package import describe_missing_torch
from harness.patching.child_environment import STARTUP_FOLDER
from harness.sanitizer.gpu.kernel_summaries import KernelSummaries
from harness.sanitizer.violations.facts import shorten_path
from harness.sanitizer.watch.gpu_libraries import LoadedGpuLibraries, has_gpu_code
from harness.sanitizer.watch.report_files import (
    CHECKS_VARIABLE,
    FOLDER_VARIABLE,
    KernelReport,
    ReportWriter,
    read_reports,
)

REPORT = KernelReport(
    "OutOfBounds",
    "fill",
    "ops/fill.py",
    12,
    "tl.store(out + at, 1)",
    (3, 0, 0),
    "fill wrote 4 bytes past the end of out",
    ("launched with out int32 [8]",),
    7,
    0.5,
)


def call_unfix(*words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return forked.call_unfix("exec", *words, PATH=f"{path}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def gpu(tmp_path: Path) -> str:
    """A machine that claims to have a GPU."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho A GPU, 1\n")
    program.chmod(0o755)
    return str(program.parent)


def test_without_a_gpu_nothing_is_started() -> None:
    done = call_unfix("--check", "--", sys.executable, "-c", "print('started')")
    if done.returncode == 0:
        pytest.skip("n/a: this machine has a GPU")
    assert (done.returncode, done.stdout) == (3, "")
    assert "--check needs an NVIDIA GPU" in done.stderr


def test_a_check_that_nobody_knows_is_a_wrong_call(gpu: str) -> None:
    done = call_unfix("--check", "bounds,leaks", "--", "true", path=gpu)
    assert done.returncode == 2
    assert "races, uninitialized, all, cuda, graphs, streams, stop, and not leaks" in done.stderr


def test_a_command_that_launches_no_kernel_says_nothing(gpu: str) -> None:
    done = call_unfix("--check", "--", sys.executable, "-c", "print('ran')", path=gpu)
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert "no process launched a Triton kernel" in done.stderr


def test_what_an_earlier_run_left_in_the_folder_is_not_told_again(gpu: str, tmp_path: Path) -> None:
    ReportWriter(tmp_path / "check").write_report(REPORT)
    words = ("--check", "--attestations", str(tmp_path), "--", sys.executable, "-c", "")
    done = call_unfix(*words, path=gpu)
    assert done.returncode == 3
    assert REPORT.headline not in done.stderr


def make_summaries(name: str, count: int = 1, place: str = "a.py:1") -> KernelSummaries:
    summaries = KernelSummaries()
    summaries.get_summary(name, place).count_launches(count)
    return summaries


def print_summary(folder: Path, code: int = 0) -> int:
    return kernel_checks.print_summary(read_reports(folder), code, as_json=False)


def test_any_report_gives_exit_code_1(tmp_path: Path, capsys: Output, monkeypatch: Patch) -> None:
    refused = make_summaries("kernel2")
    next(iter(refused)).count_refusal("it uses tt.descriptor_load", captured=False)
    for pid, kernel in ((1, make_summaries("kernel1", 9)), (2, refused)):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        writer = ReportWriter(tmp_path)
        writer.write_kernels(kernel)
        writer.write_report(replace(REPORT, pid=pid, seconds=float(-pid)))
    checked = read_reports(tmp_path)
    assert [report.pid for report in checked.reports] == [2, 1]
    assert (checked.launches, checked.checked_share, checked.processes) == (10, 0.9, 2)
    assert print_summary(tmp_path) == 1
    messages = capsys.readouterr().err
    assert "checked 9 of 10 launches (90.0%), 1 of 2 kernels" in messages
    assert "not checked: kernel2, it uses tt.descriptor_load" in messages
    assert "OutOfBounds: fill wrote 4 bytes past the end of out  (ops/fill.py:12)" in messages


def test_a_command_that_launched_nothing_gets_one_line(tmp_path: Path, capsys: Output) -> None:
    assert print_summary(tmp_path) == 3
    [line] = capsys.readouterr().err.splitlines()
    assert line == "unfix: no process launched a Triton kernel, so the check says nothing"


def test_a_python_without_torch_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n')
    bare.chmod(0o755)
    assert f"`{bare} -m pip install torch triton`" in describe_missing_torch(str(bare))
    assert describe_missing_torch("/bin/sh") == ""


def test_a_file_of_the_working_folder_has_one_spelling(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shorten_path(str(tmp_path / "a" / "kernels.py")) == "a/kernels.py"
    assert shorten_path(str(tmp_path / "lib/site-packages/p/q/k.py")) == "p/q/k.py"
    assert shorten_path("/elsewhere/of/a/k.py") == "of/a/k.py"


def test_launches_of_which_none_was_checked_end_with_3_and_say_why(
    tmp_path: Path, capsys: Output
) -> None:
    refused = make_summaries("fill", 3)
    for reason in ("it uses tt.descriptor_load", "it is a GluonJITFunction") * 2:
        if next(iter(refused)).checked_launches:
            next(iter(refused)).count_refusal(reason, captured=False)
    ReportWriter(tmp_path).write_kernels(refused)
    assert (print_summary(tmp_path), print_summary(tmp_path, 7)) == (3, 7)
    messages = capsys.readouterr().err
    assert "none of 3 launches was checked, so the check says nothing: " in messages
    assert (
        "it uses tt.descriptor_load (2 launches); it is a GluonJITFunction (1 launch)" in messages
    )


def test_two_kernels_of_one_name_are_counted_apart(tmp_path: Path, capsys: Output) -> None:
    """Else the launches of one would stand for those of the other, which ran unchecked."""
    both = make_summaries("fill", 5, "a.py:1")
    both.count_launch("fill", "b.py:2").count_refusal("it is a GluonJITFunction", captured=False)
    ReportWriter(tmp_path).write_kernels(both)
    assert set(read_reports(tmp_path).kernels) == {"fill (a.py:1)", "fill (b.py:2)"}
    assert print_summary(tmp_path) == 0
    assert "not checked: fill (b.py:2), it is a GluonJITFunction" in capsys.readouterr().err


def test_a_refused_launch_in_a_graph_is_listed_beside_checked_ones(
    tmp_path: Path, capsys: Output
) -> None:
    summaries = make_summaries("fill", 5)
    next(iter(summaries)).count_refusal("no room", captured=True)
    next(iter(summaries)).count_skipped_check("races: launch_pdl")
    ReportWriter(tmp_path).write_kernels(summaries)
    assert print_summary(tmp_path) == 0
    messages = capsys.readouterr().err
    assert "checked 4 of 5 launches (80.0%), 0 of 1 kernel" in messages
    assert (
        "not checked: fill, 1 of 5 launches (1 captured in a graph, which replays it unchecked): "
        "no room"
    ) in messages
    assert "checked except for: fill, 1 of 5 launches, races: launch_pdl" in messages


def test_reports_without_a_launch_to_show_fail_the_run(tmp_path: Path, capsys: Output) -> None:
    summaries = make_summaries("fill", 5)
    summaries.get_summary("fill", "a.py:1").dropped_reports = 2
    ReportWriter(tmp_path).write_kernels(summaries)
    assert print_summary(tmp_path) == 1
    assert "fill: 2 reports dropped, of launches no longer known" in capsys.readouterr().err
    assert read_reports(tmp_path).failure.startswith("fill has 2 reports")


def test_a_reporter_that_failed_fails_the_run(tmp_path: Path, capsys: Output) -> None:
    writer = ReportWriter(tmp_path)
    writer.write_kernels(make_summaries("fill", 5))
    assert print_summary(tmp_path) == 0
    assert writer.write_failure("reading reports: KeyError: 7")
    assert not writer.write_failure("reading reports: KeyError: 7")
    assert print_summary(tmp_path) == 3
    failure = f"the reporter of checks failed: pid {os.getpid()}: reading reports: KeyError: 7"
    assert failure in capsys.readouterr().err
    assert read_reports(tmp_path).failure == failure


def test_libraries_with_gpu_code_are_named(tmp_path: Path, capsys: Output) -> None:
    """Their kernels are unchecked, and a summary without them would claim too much."""
    code = "__attribute__((section(%s))) int code = 7;"
    libraries = {}
    for name, section in (("gpu", '".nv_fatbin"'), ("cpu", '".cpu"')):
        libraries[name] = tmp_path / f"{name}.so"
        words = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", str(libraries[name]), "-"]
        subprocess.run(words, input=code % section, text=True, check=True)
    assert has_gpu_code(libraries["gpu"])
    assert not has_gpu_code(libraries["cpu"])
    assert not has_gpu_code(tmp_path / "gone.so")
    libraries["cpu"].write_bytes(libraries["gpu"].read_bytes()[:100])  # truncated
    assert not has_gpu_code(libraries["cpu"])
    others = LoadedGpuLibraries()
    before = others.list_names()
    ctypes.CDLL(str(libraries["gpu"]))
    assert set(others.list_names()) - set(before) == {f"{tmp_path.name}/gpu.so"}
    writer = ReportWriter(tmp_path / "check")
    writer.write_kernels(make_summaries("fill", 3))
    writer.write_libraries(["a/one.so", *(f"b/{number:02}.so" for number in range(20))])
    assert print_summary(tmp_path / "check") == 0
    messages = capsys.readouterr().err
    assert "not checked, since they are binaries: the kernels of a/one.so, b/00.so" in messages
    assert "b/10.so, and 9 more" in messages


def test_a_command_that_fails_without_a_report_fails_as_it_did(tmp_path: Path) -> None:
    ReportWriter(tmp_path).write_kernels(make_summaries("fill", 3))
    assert (print_summary(tmp_path, 7), print_summary(tmp_path)) == (7, 0)


TOYS = {
    "triton/runtime/jit.py": "JITFunction",
    "torch/_inductor/runtime/triton_heuristics.py": "CachingAutotuner",
}


def test_a_process_waits_for_who_launches_and_loads_nothing_before(tmp_path: Path) -> None:
    """Inductor comes late, if at all."""
    for place, name in TOYS.items():
        file = tmp_path / place
        file.parent.mkdir(parents=True)
        for folder in file.relative_to(tmp_path).parents:
            (tmp_path / folder / "__init__.py").touch()
        file.write_text(f"class {name}:\n    def run(self):\n        return 'as it was'\n")
    code = (
        "import sys; before = [m for m in sys.modules if m.startswith('torch')];"
        "import triton.runtime.jit as jit; print(before, jit.JITFunction.run.__module__);"
        "import torch._inductor.runtime.triton_heuristics as late;"
        "print(late.CachingAutotuner.run.__module__)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{STARTUP_FOLDER}{os.pathsep}{tmp_path}"}
    requested = {CHECKS_VARIABLE: "bounds", FOLDER_VARIABLE: str(tmp_path / "reports")}

    def run_code(more: dict[str, str]) -> list[str]:
        words = [sys.executable, "-c", code]
        return subprocess.check_output(words, env={**environment, **more}, text=True).split("\n")

    ours = "harness.sanitizer.watch.activation"
    inductors = "torch._inductor.runtime.triton_heuristics"
    assert run_code(requested)[:2] == [f"[] {ours}", ours]
    assert run_code({})[:2] == ["[] triton.runtime.jit", inductors]
