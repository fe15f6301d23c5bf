"""Recorded launches: written by a checked session, read by an audit."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.cli.audit import execution
from harness.cli.main import main
from harness.core import paths
from harness.kernels.triton.recorded_launches import merge_records, read_launch_modes
from harness.kernels.triton.recorded_reach import KernelReach, read_reach, render_reach
from harness.releases.managed_releases import CPU_BASE
from harness.runs.audit.release_audit import DEFAULT_LAUNCHES

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

x, out = torch.zeros(1, dtype={of}), torch.zeros(64)
with checking.checked():
    for stride in (8, 1, 9):
        by_kind[(4,)](x, out, stride, tl.bfloat16, {twice})
"""


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
    """The launches of one run, for tests that ask what is read of them; none may change it."""
    return record_launches(release, release.parent / "launches")


@pytest.fixture(scope="module")
def guessed_reasons(release: Path) -> list[str]:
    """Why an audit that knows no launch cannot tell."""
    guessed = audit_kernel(release)
    assert guessed["verdict"] == "cannot tell"
    return list(guessed["reasons"])


def record_launches(
    release: Path, file: Path, twice: bool = False, of: str = "torch.float32"
) -> Path:
    """Run a script that launches the kernel under check; return the file of its launches."""
    subprocess.run(
        [CPU_BASE.python, "-c", SCRIPT.format(twice=twice, of=of)],
        env={
            **os.environ,
            "UNFIX_LAUNCHES": str(file),
            "PYTHONPATH": f"{release}{os.pathsep}{paths.project_folder()}",
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
    release: Path, launches: Path, tmp_path: Path
) -> None:
    file = Path(shutil.copy(launches, tmp_path))
    [first] = list_modes(record_launches(release, file))
    assert first["kernel"] == "sglang.srt.modes:by_kind"
    assert first["kinds"] == {
        "x_ptr": "*fp32", "out_ptr": "*fp32", "stride": "i32", "AS": "constexpr",
        "TWICE": "constexpr",
    }  # fmt: skip
    assert first["constants"] == {"AS": {"dtype": "bf16"}, "TWICE": False}
    modes = list_modes(record_launches(release, file, twice=True))
    assert [one["constants"]["TWICE"] for one in modes] == [False, True]


def test_a_launch_is_recorded_with_its_launcher_and_the_lines_that_ran(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test that runs names itself; another name is taken from the environment."""
    lines = MODULE.splitlines()
    in_branch = lines.index("        tl.store(out_ptr + at, 1)") + 1
    file = tmp_path / "launches"
    [first] = read_reach(record_launches(release, file))
    assert first.kernel == "sglang.srt.modes:by_kind"
    assert first.by == {
        "suite tests/audit/test_launched.py::"
        "test_a_launch_is_recorded_with_its_launcher_and_the_lines_that_ran"
    }
    assert {lines[line - 1].strip() for line in first.lines["sglang/srt/modes.py"]} >= {
        "tl.store(out_ptr + at, tl.load(x_ptr).to(AS).to(tl.float32))"
    }
    assert in_branch not in first.lines["sglang/srt/modes.py"]
    monkeypatch.setenv("UNFIX_LAUNCHED_BY", "zoo llama")
    [second] = read_reach(record_launches(release, file, twice=True))
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


@pytest.mark.parametrize("of", ["torch.float32", "torch.bool"])
def test_a_kernel_is_read_as_it_was_launched(
    release: Path, launches: Path, guessed_reasons: list[str], tmp_path: Path, of: str
) -> None:
    assert guessed_reasons[0].startswith("Triton does not take the arguments that are guessed")
    if of != "torch.float32":
        launches = record_launches(release, tmp_path / "launches", of=of)
    result = audit_kernel(release, "--launches", str(launches))
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
