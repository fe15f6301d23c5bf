"""`unfix kernels --build`: what is built, what is not and why, beside all loaders of a release."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from calling import is_alive, wait_until

from harness.cli.main import main
from harness.core.errors import UnfixError
from harness.kernels.cuda import build_limits
from harness.kernels.cuda.recorded_builds import RecordedBuild
from harness.releases import cuda_toolkit, managed_releases, provisioning
from harness.releases.source_trees import FolderSourceTree
from harness.runs.kernels import cuda_builds
from harness.runs.kernels.values import BuildResult, BuildSurvey

NORM = "sglang.kernels.ops.elementwise.norm"
LINES = [
    {"module": NORM, "function": "_jit_norm", "arguments": {"size": 64}},
    {"module": NORM, "function": "_jit_norm", "arguments": {"size": 65}},
    {"module": "sglang.kernels.ops.moe.gemm", "function": "_jit_gemm", "arguments": {}},
]
PROBLEMS = {"size=65": "error: static assertion failed", "gemm": "fatal error: cutlass/a.h"}


def build_nothing(
    release: Any, builds: Sequence[RecordedBuild], jobs: int, limit: float | None = None
) -> Iterator[BuildResult]:
    for build in builds:
        reason = next((why for part, why in PROBLEMS.items() if part in build.name), "")
        yield BuildResult(build.name, 1.0, reason, f"{build.module}.{build.function}")


@pytest.fixture
def recorded_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cuda_builds, "build_modules", build_nothing)
    monkeypatch.setattr(cuda_toolkit, "ensure_toolkit", lambda report: None)
    monkeypatch.setattr(provisioning, "ensure_installed", lambda releases, report: None)
    file = tmp_path / "builds.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return file


def test_a_record_has_each_loader_with_what_became_of_it(
    recorded_builds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.json"
    words = ["kernels", "--build", "--builds", str(recorded_builds), "--release", "0.5.23"]
    assert main([*words, "--record", str(record)]) == 1
    out = capsys.readouterr().out
    assert "gemm._jit_gemm()  fatal error: cutlass/a.h" in out
    survey = json.loads(record.read_text())
    count = len(survey["loaders"])
    assert f"1 of 3 modules built; of {count} loaders 1 build, 1 do not, and {count} have" in out


def test_a_failed_build_fails_the_call_though_its_loader_has_another(
    recorded_builds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["kernels", "--build", "--builds", str(recorded_builds), "--release", "0.5.23"]
    assert main([*words, "_jit_norm"]) == 1
    assert "1 of 2 modules built" in capsys.readouterr().out


def test_a_loader_is_built_if_one_of_its_modules_is() -> None:
    results = [BuildResult("a(1)", 1.0, "no", "m.a"), BuildResult("a(2)", 1.0, "", "m.a")]
    results.append(BuildResult("b()", 1.0, "why", "m.b"))
    survey = BuildSurvey("0.5.23", results, ["m.a", "m.b", "m.c"])
    assert survey.built_loaders == {"m.a"}
    assert survey.failure_by_loader == {"m.b": "why"}
    assert survey.unrecorded_loaders == ["m.c"]


def test_the_loaders_of_a_release_are_functions_that_call_load_jit() -> None:
    loaders = cuda_builds.list_loaders(managed_releases.get_release("0.5.23").open_sources())
    assert "sglang.kernels.ops.moe.dsv4._jit_hash_topk_module" in loaders
    assert len(loaders) > 200
    assert not any(name.endswith(".load_jit") for name in loaders)


def run_build(
    script: str, limit: float, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> subprocess.CompletedProcess[str]:
    """Run a script in place of ninja, as SGLang runs it, under a limit."""
    hooks: dict[str, Any] = {}
    monkeypatch.setattr(build_limits, "call_after_import", hooks.update)
    build_limits.limit_builds(limit)
    [change] = hooks.values()
    ninja = SimpleNamespace()
    change(ninja)
    command = ["sh", "-c", script]
    options = {"cwd": str(folder), "capture_output": True, "text": True, "timeout": 9}
    done: subprocess.CompletedProcess[str] = ninja.subprocess.run(command, check=False, **options)
    return done


def test_a_build_that_takes_too_long_is_asked_to_end_its_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "trap 'touch ended; exit 1' TERM; touch began; while :; do sleep 0.01; done"
    with pytest.raises(UnfixError, match=r"not built within 3 s"):
        run_build(script, 3.0, tmp_path, monkeypatch)
    assert (tmp_path / "ended").exists()


def test_a_build_that_does_not_end_is_killed_with_its_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_limits, "END_SECONDS", 0.1, raising=False)
    # The compiler has a process group of its own, as ninja's have.
    script = "trap '' TERM; setsid sh -c 'echo $$ >began; sleep 8; touch built'; touch ended"
    with pytest.raises(UnfixError, match=r"not built within 3 s"):
        run_build(script, 3.0, tmp_path, monkeypatch)
    compiler = int((tmp_path / "began").read_text())
    assert wait_until(lambda: not is_alive(compiler))
    assert not (tmp_path / "built").exists()
    assert not (tmp_path / "ended").exists()


def test_a_release_whose_builds_cannot_have_a_limit_is_named(tmp_path: Path) -> None:
    tree = FolderSourceTree(tmp_path, "0.1")
    release: Any = SimpleNamespace(name="0.1", python="", open_sources=lambda: tree)
    with pytest.raises(UnfixError, match=r"0\.1 has no .*compile\.ninja: its builds cannot"):
        list(cuda_builds.build_modules(release, [], 1, 3.0))


def test_a_build_within_its_limit_ends_as_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_build("echo out; echo err >&2; exit 3", 600.0, tmp_path, monkeypatch)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
