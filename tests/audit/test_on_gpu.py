"""An audit is restored from its record, and its findings include a GPU's results."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.core import machine
from harness.core.outcomes import Verdict
from harness.runs.audit import audit_record, gpu_confirmation
from harness.runs.audit.findings import CONFIRMED, CONFIRMED_IN_PART, PASSED_AT_THRESHOLD
from harness.runs.audit.release_audit import ReleaseAudit

ON_H200 = f"{CONFIRMED} on an NVIDIA H200"


@pytest.fixture
def record(small: ReleaseAudit, release: Path, tmp_path: Path) -> Path:
    file = tmp_path / "record.json.xz"
    words = ["--from", str(release), "--no-rehearsal", "-j", "1", "--record", str(file), "--json"]
    main(["audit", *words])
    return file


@pytest.fixture
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(machine, "require_device", lambda device: None)
    monkeypatch.setattr(machine, "describe_gpus", lambda: "NVIDIA H200, 580.1; NVIDIA H200, 580.1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    return monkeypatch


def test_a_record_is_read_as_what_was_recorded(record: Path, small: ReleaseAudit) -> None:
    read = audit_record.read_record(record)
    assert any(one.trials and one.reaches for one in read.findings)
    assert read.kernels == small.kernels


@pytest.mark.parametrize("content", [b"{", b'{"kernels": [{}]}', b"[]"])
def test_another_file_is_no_record(tmp_path: Path, content: bytes) -> None:
    other = tmp_path / "other.json"
    other.write_bytes(content)
    assert main(["audit", "--again", str(other), "--device", "cuda"]) == 2


@pytest.mark.parametrize("more", [["moe"], ["--device", "cuda", "moe"], ["--diff", "a..b"]])
def test_a_record_says_which_findings_there_are(record: Path, more: list[str]) -> None:
    assert main(["audit", "--again", str(record), *more]) == 2


def test_a_record_is_ranked_anew_without_reading_its_release(
    record: Path,
    small: ReleaseAudit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))  # a store without any rehearsal
    file = tmp_path / "exceptions.yaml"
    file.write_text("- {kernel: carried, line: at += 3, because: nobody has as many}\n")
    capsys.readouterr()
    words = ["--again", str(record), "--exceptions", str(file), "--json"]
    assert main(["audit", *words]) == 1  # nothing was rehearsed
    shown = capsys.readouterr()
    data = json.loads(shown.out)
    assert len(data["findings"]) == len(small.findings)
    assert data["rehearsal"] is None
    assert "has expired" not in shown.err  # a record is without exempt findings


def test_what_a_gpu_showed_is_said(
    small: ReleaseAudit, release: Path, on_an_h200: pytest.MonkeyPatch
) -> None:
    first, second, third, fourth, *_ = small.findings

    def answers(asked: list[Any], *how: Any) -> Any:
        assert asked == small.findings
        return [(0, CONFIRMED), (2, "its tensors take 200 GiB"), (3, CONFIRMED_IN_PART)]

    on_an_h200.setattr(gpu_confirmation, "_iterate_results", answers)
    found = gpu_confirmation.confirm_on_gpu(small, release, 1, 1.0, lambda said: None)
    around = "NVIDIA H200: some programs of the grid alone"
    assert found.findings[:4] == [
        dataclasses.replace(first, confirmed=ON_H200, on_gpu="NVIDIA H200"),
        dataclasses.replace(second, on_gpu="NVIDIA H200: its launch was not kept"),
        dataclasses.replace(third, on_gpu="NVIDIA H200: its tensors take 200 GiB"),
        dataclasses.replace(fourth, confirmed=ON_H200, on_gpu=around),
    ]
    assert found.findings[0].is_confirmed
    assert found.gpu["gpu"]


def test_a_launch_that_passes_there_leaves_arithmetic_alone(
    small: ReleaseAudit, release: Path, on_an_h200: pytest.MonkeyPatch
) -> None:
    """A finding that no CPU run confirmed either leaves its kernel's verdict unknown."""
    confirmed, alone = (
        next(one for one in small.kernels if one.kernel == name)
        for name in ("row_in_32_bits", "carried")
    )
    slow = dataclasses.replace(alone.findings[0], confirmed="not run: too slow to run")
    unsure = dataclasses.replace(alone, findings=(slow,))
    found = dataclasses.replace(small, kernels=(confirmed, unsure))
    on_an_h200.setattr(
        gpu_confirmation,
        "_iterate_results",
        lambda *how: [(0, PASSED_AT_THRESHOLD), (1, PASSED_AT_THRESHOLD)],
    )
    first, second = gpu_confirmation.confirm_on_gpu(
        found, release, 1, 1.0, lambda said: None
    ).kernels
    [still] = first.findings
    assert (first.verdict, still.on_gpu) == (
        Verdict.OVERFLOWS,
        f"NVIDIA H200: {PASSED_AT_THRESHOLD}",
    )
    assert (second.verdict, second.findings) == (Verdict.CANNOT_TELL, ())
    by_arithmetic = "line 46 overflows by arithmetic (from tokens = 524,289 on)"
    assert second.reasons == (f"{by_arithmetic}; the launch passes on an NVIDIA H200",)


def test_a_report_to_upstream_says_where_it_was_run(small: ReleaseAudit) -> None:
    from reports.audit import upstream

    one = small.findings[0]
    assert "Not run on a GPU." in upstream.render_upstream_report(one, "small")
    refused = dataclasses.replace(one, on_gpu="NVIDIA H200: its grid has 9 programs")
    assert (
        "Not seen on a GPU (NVIDIA H200: its grid has 9 programs)."
        in upstream.render_upstream_report(refused, "small")
    )
    seen = dataclasses.replace(one, confirmed="confirmed on an NVIDIA H200", on_gpu="NVIDIA H200")
    assert (
        "whole launch was run on an NVIDIA H200, in real memory"
        in upstream.render_upstream_report(seen, "small")
    )
    part = dataclasses.replace(seen, on_gpu=CONFIRMED_IN_PART.replace(CONFIRMED, "NVIDIA H200"))
    assert (
        "Of the launch some programs of the grid alone were run on an NVIDIA H200, in real"
        in upstream.render_upstream_report(part, "small")
    )
