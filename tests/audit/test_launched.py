"""Recorded launches: written by a checked session, read by an audit."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from harness.cli.audit import execution
from harness.cli.main import main
from harness.core import paths
from harness.releases.managed_releases import CPU_BASE
from harness.runs.audit.release_audit import DEFAULT_LAUNCHES
from harness.sanitizer.triton.recorded_launches import merge_records, read_launch_modes
from harness.sanitizer.triton.recorded_reach import KernelReach, read_reach, render_reach

MODULE = """
import torch
import triton
import triton.language as tl


@triton.jit
def by_kind(x_ptr, out_ptr, stride, AS: tl.constexpr, TWICE: tl.constexpr):
    at = tl.program_id(0) * stride
    tl.store(out_ptr + at, tl.load(x_ptr).to(AS).to(tl.float32))
    if TWICE:
        tl.store(out_ptr + at, 1)


def launch(x: torch.Tensor, kind):
    out = torch.empty((x.shape[0], 4096))
    by_kind[(x.shape[0],)](x, out, out.stride(0), kind, False)
"""
SCRIPT = """
import torch
import triton.language as tl
from harness import checking
from sglang.srt.modes import by_kind

out = torch.zeros(64)
with checking.checked():
    for dtype, twice in {modes}:
        for stride in (8, 1, 9):
            by_kind[(4,)](torch.zeros(1, dtype=dtype), out, stride, tl.bfloat16, twice)
"""
FLOATS, FLOATS_TWICE, FLAGS = ("torch.float32, False", "torch.float32, True", "torch.bool, False")
TEST = "suite tests/audit/test_launched.py"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not CPU_BASE.is_current():
        pytest.skip("the releases' base is not installed here")
    root = tmp_path_factory.mktemp("package") / "release"
    package = root / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "modes.py").write_text(MODULE)
    return root


@pytest.fixture(scope="module")
def launches(release: Path) -> Path:
    """The launches of one mode, in one process; no test may change the file."""
    return record_launches(release, release.parent / "launches", FLOATS)


@pytest.fixture(scope="module")
def more_launches(release: Path, launches: Path) -> Path:
    """The same mode again, and two others, in a process that has another name."""
    file = Path(shutil.copy(launches, release.parent / "more-launches"))
    name = {"UNFIX_LAUNCHED_BY": "zoo llama"}
    return record_launches(release, file, FLOATS, FLOATS_TWICE, FLAGS, variables=name)


@pytest.fixture(scope="module")
def guessed_reasons(release: Path) -> list[str]:
    """Why an audit that knows no launch cannot tell."""
    guessed = audit_kernel(release)
    assert guessed["verdict"] == "cannot tell"
    return list(guessed["reasons"])


def record_launches(
    release: Path, file: Path, *modes: str, variables: Mapping[str, str] = MappingProxyType({})
) -> Path:
    """Run a script that launches the kernel under check; return the file of its launches."""
    written = ", ".join(f"({mode})" for mode in modes)
    subprocess.run(
        [CPU_BASE.python, "-c", SCRIPT.format(modes=f"[{written}]")],
        env={
            **os.environ,
            "UNFIX_LAUNCHES": str(file),
            "PYTHONPATH": f"{release}{os.pathsep}{paths.project_folder()}",
            **variables,
        },
        check=True,
    )
    return file


def list_modes(file: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, file.read_text().splitlines())
    return [line for line in lines if "by" not in line]


def audit_kernel(release: Path, *words: str) -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        main(["audit", "--from", str(release), "-j", "1", "--json", *words])
    [kernel] = json.loads(output.getvalue())["kernels"]
    assert isinstance(kernel, dict)
    return kernel


def test_each_mode_is_written_once_and_a_one_is_a_number(
    launches: Path, more_launches: Path
) -> None:
    [first] = list_modes(launches)
    assert first["kernel"] == "sglang.srt.modes:by_kind"
    assert first["kinds"] == {
        "x_ptr": "*fp32", "out_ptr": "*fp32", "stride": "i32", "AS": "constexpr",
        "TWICE": "constexpr",
    }  # fmt: skip
    assert first["constants"] == {"AS": {"dtype": "bf16"}, "TWICE": False}
    assert first["grid"] == [4, 1, 1]
    assert first["sizes"]["x_ptr"] == [[1], [1], 4]
    modes = [
        (mode["kinds"]["x_ptr"], mode["constants"]["TWICE"]) for mode in list_modes(more_launches)
    ]
    assert modes == [("*fp32", False), ("*fp32", True), ("*u1", False)]


def test_a_launch_is_recorded_with_its_launcher_and_the_lines_that_ran(
    launches: Path, more_launches: Path
) -> None:
    """The test that runs names itself; another name is taken from the environment."""
    lines = MODULE.splitlines()
    in_branch = lines.index("        tl.store(out_ptr + at, 1)") + 1
    [first], [second] = read_reach(launches), read_reach(more_launches)
    assert first.kernel == "sglang.srt.modes:by_kind"
    [launcher] = first.by
    assert launcher.startswith(f"{TEST}::test_")
    assert {lines[line - 1].strip() for line in first.lines["sglang/srt/modes.py"]} >= {
        "tl.store(out_ptr + at, tl.load(x_ptr).to(AS).to(tl.float32))"
    }
    assert in_branch not in first.lines["sglang/srt/modes.py"]
    assert second.by - first.by == {"zoo llama"}
    assert in_branch in second.lines["sglang/srt/modes.py"]


def test_records_of_one_package_are_merged_with_each_mode_and_launcher_once(
    launches: Path, tmp_path: Path
) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    first.write_text(launches.read_text())
    text = first.read_text().replace("tests/audit", "suites/other")
    other.write_text(text + text.replace("sglang.srt.modes", "__main__"))
    first.write_text(merge_records([first, other, other], "sglang"))
    [mode] = list_modes(first)
    assert mode["constants"] == {"AS": {"dtype": "bf16"}, "TWICE": False}
    [reach] = read_reach(first)
    assert {by.split("/")[0] for by in reach.by} == {"suite tests", "suite suites"}


def test_a_merged_record_has_kernels_of_cuda_as_well(tmp_path: Path) -> None:
    """They are named by their file, and Triton's by their module."""
    names = ["sglang/kernels/jit/csrc/a.cuh:store", "sglang.a:load", "sglang_other.a:add"]
    reaches = [KernelReach(name, "1.0", {"suite a"}) for name in names]
    record = tmp_path / "record"
    record.write_text("".join(f"{render_reach(reach)}\n" for reach in reaches))
    merged = tmp_path / "merged"
    merged.write_text(merge_records([record], "sglang"))
    assert {reach.kernel for reach in read_reach(merged)} == set(names[:2])


@pytest.mark.parametrize("pointer", ["*fp32", "*u1"])
def test_a_kernel_is_read_as_it_was_launched(
    release: Path, more_launches: Path, guessed_reasons: list[str], tmp_path: Path, pointer: str
) -> None:
    assert guessed_reasons[0].startswith("Triton does not take the arguments that are guessed")
    file = tmp_path / "launches"
    [mode] = [
        mode
        for mode in list_modes(more_launches)
        if mode["kinds"]["x_ptr"] == pointer and not mode["constants"]["TWICE"]
    ]
    file.write_text(json.dumps(mode))
    result = audit_kernel(release, "--launches", str(file))
    [finding] = result["findings"]
    assert (result["verdict"], finding["threshold"]) == ("overflow", 2**31 // 4096 + 1)
    assert finding["confirmed"] == "confirmed"
    assert "TWICE = False (a launch that was made)" in finding["constants"]


def test_the_suites_launches_are_taken_by_themselves(
    release: Path, launches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same file replaces the suites' own."""
    assert {one.split(":")[0].split(".")[0] for one in read_launch_modes(DEFAULT_LAUNCHES)} == {
        "sglang"
    }
    monkeypatch.setattr(execution, "DEFAULT_LAUNCHES", launches)
    assert audit_kernel(release)["verdict"] == "overflow"


def test_a_launch_of_another_kernel_of_that_name_says_nothing(
    release: Path, launches: Path, guessed_reasons: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "launches"
    file.write_text(launches.read_text().replace('"stride"', '"step"'))
    result = audit_kernel(release, "--launches", str(file))
    assert result["reasons"] == guessed_reasons


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "there is no file of launches"), ("[1]", "holds no launches"), ("{", "no launches")],
)
def test_what_holds_no_launches_is_said(
    release: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    words: str,
) -> None:
    file = tmp_path / "other"
    if content is not None:
        file.write_text(content)
    assert main(["audit", "--from", str(release), "--launches", str(file)]) == 2
    assert words in capsys.readouterr().err
