"""Launches of all libraries, counted through CUPTI: here one that only looks like it."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from harness.cli import kernel_checks
from harness.core import paths
from harness.sanitizer.gpu.kernel_summaries import KernelSummaries
from harness.sanitizer.watch import report_files
from harness.sanitizer.watch.all_launches import AllLaunches
from harness.sanitizer.watch.report_files import ReportWriter

_SOURCE = paths.HARNESS_FOLDER / "sanitizer" / "cuda" / "launch_counts.c"
# Callback 307 is a launch, 1 is none; `launch` is what the driver would do.
_CUPTI = r"""
#include <stddef.h>
#include <stdint.h>
typedef struct { int site; const char *function; const void *given; void *result;
                 const char *symbol; } Data;
static void (*callback)(void *, int, uint32_t, const Data *);
static int enabled[1000];
int status;
int cuptiSubscribe(void **subscriber, void *given, void *own) { callback = given; return status; }
int cuptiGetCallbackName(int domain, uint32_t id, const char **name) {
  if (id != 1 && id != 307) return 1;
  *name = id == 1 ? "cuInit" : "cuLaunchKernel";
  return 0;
}
int cuptiEnableCallback(uint32_t on, void *subscriber, int domain, uint32_t id) {
  enabled[id] = on;
  return 0;
}
void launch(uint32_t id, const char *name) {
  Data data = {0, "", NULL, NULL, name};
  for (data.site = 0; enabled[id] && data.site < 2; ++data.site) callback(NULL, 1, id, &data);
}
"""


def compile_library(source: str, target: Path) -> Path:
    words = ["cc", "-w", "-shared", "-fPIC", "-x", "c", "-", "-o", str(target), "-ldl"]
    subprocess.run(words, input=source, text=True, check=True)
    return target


@pytest.fixture
def libraries(tmp_path: Path) -> tuple[Path, Path]:
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    counting = compile_library(_SOURCE.read_text(), tmp_path / "counts.so")
    return counting, compile_library(_CUPTI, tmp_path / "libcupti.so.13")


def test_each_launch_counts_once_by_its_name(libraries: tuple[Path, Path]) -> None:
    counting, cupti = libraries
    launches, driver = AllLaunches(counting, cupti), ctypes.CDLL(str(cupti))
    assert launches.failure == ""
    for number, name in ((307, b"gemm"), (307, b"gemm"), (1, b"no launch"), (307, b"_Z4fillPii")):
        driver.launch(number, name)
    driver.launch(307, b"begin_launch_kernel")  # of the checks
    assert launches.read() == {"gemm": 2, "_Z4fillPii": 1}
    many = Counter({f"kernel_{number:04}_{'x' * 60}": 1 for number in range(1500)})
    for kernel in many:
        driver.launch(307, kernel.encode())
    assert launches.read() == many + Counter({"gemm": 2, "_Z4fillPii": 1})


def test_another_subscriber_is_said(libraries: tuple[Path, Path], tmp_path: Path) -> None:
    counting, cupti = libraries
    ctypes.c_int.in_dll(ctypes.CDLL(str(cupti)), "status").value = 39
    assert "another subscriber" in AllLaunches(counting, cupti).failure
    assert "has none of its functions" in AllLaunches(counting, counting).failure


def test_the_summary_says_the_share_of_all_launches_and_what_was_compiled(tmp_path: Path) -> None:
    writer, summaries = ReportWriter(tmp_path), KernelSummaries()
    summaries.count_launch("fill<int>", "fill.cu:3").count_launches(5)
    writer.write_kernels(summaries)
    # Two launches of `fill` were not under check.
    counts = {"_Z4fillIiEvPT_i": 8, "ampere_gemm": 14, "_ZN2at6native3addIfEEvPT_": 2}
    writer.write_all_launches(counts, "")
    checked = report_files.read_reports(tmp_path)
    lines = kernel_checks.format_summary(checked)
    at = next(n for n, line in enumerate(lines) if "of all" in line)
    assert lines[at : at + 4] == [
        "that is 25.0% of all 24 launches of these processes; the others are",
        "  14 (58.3%): ampere_gemm",
        "  2 (8.3%): fill",
        "  2 (8.3%): at::native::add",
    ]
    by_kernel = kernel_checks.to_json(checked)["launches_by_kernel"]
    assert by_kernel == {"fill<int>": {"place": "fill.cu:3", "launches": 6}}
    shares = kernel_checks.to_json(checked)["all_launches"]
    assert shares["share"] == 0.25
    assert shares["not_checked"] == {"ampere_gemm": 14, "fill": 2, "at::native::add": 2}
    assert not any("compiled" in line for line in lines)
    for name, seconds in (("_matmul", 40.0), ("_matmul", 30.5), ("_topk", 1.0)):
        summaries.get_summary(name, "").count_compilations(1, seconds)
    writer.write_kernels(summaries)
    checked = report_files.read_reports(tmp_path)
    compiled = "Triton compiled with checks 3 times, in 71.5 s: _matmul 2 times, in 70.5 s"
    assert compiled in kernel_checks.format_summary(checked)
    assert kernel_checks.to_json(checked)["compilations"]["_matmul"] == {
        "count": 2,
        "seconds": 70.5,
    }
    writer.write_all_launches({}, "no CUPTI")
    checked = report_files.read_reports(tmp_path)
    lines = kernel_checks.format_summary(checked)
    assert not any("of all 0" in line for line in lines)
    by_kernel = kernel_checks.to_json(checked)["launches_by_kernel"]
    assert by_kernel == {"fill<int>": {"place": "fill.cu:3", "launches": 6}}
    shares = kernel_checks.to_json(checked)["all_launches"]
    assert (shares["launches"], shares["share"]) == (0, None)
    assert f"launches of all libraries were not counted in pid {os.getpid()}: no CUPTI" in lines
    assert json.loads((tmp_path / f"{os.getpid()}.all").read_text())["failure"] == "no CUPTI"


def test_no_share_is_said_if_one_process_did_not_count_its_launches(tmp_path: Path) -> None:
    """Its checked launches are in the sum of the checked ones, and not in that of all."""
    writer, summaries = ReportWriter(tmp_path), KernelSummaries()
    summaries.count_launch("fill<int>", "fill.cu:3").count_launches(5)
    writer.write_kernels(summaries)
    writer.write_all_launches({"ampere_gemm": 14}, "")
    other = {"counts": {}, "failure": "another subscriber"}
    (tmp_path / "1.all").write_text(json.dumps(other))
    checked = report_files.read_reports(tmp_path)
    assert kernel_checks.to_json(checked)["all_launches"]["share"] is None
    lines = kernel_checks.format_summary(checked)
    assert not any("of all 14 launches" in line for line in lines)
    assert "launches of all libraries were not counted in pid 1: another subscriber" in lines
