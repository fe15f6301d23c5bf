"""A guard's run, which may write nowhere else, still records its launches."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.core import child_process, write_confinement
from harness.sanitizer.triton import recorded_reach
from harness.workers.run_folder import RunFolder


def write_elsewhere(file: Path) -> str:
    try:
        file.write_text("")
    except PermissionError:
        return "refused"
    return "written"


def test_a_confined_run_records_its_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not write_confinement.can_confine():
        pytest.skip("the kernel has no Landlock")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNFIX_LAUNCHES", "launches")
    monkeypatch.setenv("UNFIX_LAUNCHED_BY", "suite a")

    def record_one_launch() -> str:
        folder = RunFolder(tmp_path / "run", Path.cwd(), may_confine=True)
        folder.prepare()
        folder.enter()
        kernel = SimpleNamespace(fn=SimpleNamespace(__module__="sglang.a", __qualname__="k"))
        recorded_reach.record_reach(kernel, [("/x/sglang/a.py", 3)])
        return f"{os.getcwd() != str(tmp_path)} {write_elsewhere(tmp_path / 'other')}"

    assert child_process.call_in_fork(record_one_launch, cpu_seconds=20) == "True refused"
    [reach] = recorded_reach.read_reach(tmp_path / "launches")
    assert (reach.kernel, reach.by) == ("sglang.a:k", {"suite a"})
    assert reach.lines == {"sglang/a.py": {3}}
