"""`unfix kernels --build`: what is built, what is not and why, beside all loaders of a release."""

from __future__ import annotations

import ast
import enum
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from harness.cli.main import main
from harness.core import paths
from harness.core.errors import UnfixError
from harness.releases import cuda_toolkit, managed_releases, provisioning
from harness.releases.source_trees import FolderSourceTree
from harness.runs.kernels import cuda_builds
from harness.runs.kernels.values import BuildResult, BuildsRequest, BuildSurvey
from harness.sanitizer.device.cards import CARD_VARIABLE
from harness.sanitizer.plugins.for_sglang import build_limits
from harness.sanitizer.plugins.for_sglang.recorded_builds import (
    FILE_VARIABLE,
    FURTHER_BUILDS,
    RECORDED_BUILDS,
    RecordedBuild,
    call_loader,
    merge_recorded_builds,
    read_recorded_builds,
    record_build,
    record_launches,
    takes_arguments,
)

NORM = "sglang.kernels.ops.elementwise.norm"
LINES = [
    {"module": NORM, "function": "_jit_norm", "arguments": {"size": 64}, "kernels": ["norm"]},
    {"module": NORM, "function": "_jit_norm", "arguments": {"size": 65}},
    {"module": "sglang.kernels.ops.moe.gemm", "function": "_jit_gemm", "arguments": {}},
]
PROBLEMS = {"size=65": "error: static assertion failed", "gemm": "fatal error: cutlass/a.h"}


def build_nothing(
    release: Any, builds: Sequence[RecordedBuild], jobs: int, limit: float | None = None
) -> Iterator[BuildResult]:
    for build in builds:
        reason = next((why for part, why in PROBLEMS.items() if part in build.name), "")
        loader = f"{build.module}.{build.function}"
        yield BuildResult(build.name, 1.0, reason, loader, build.kernels)


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
    assert "kernels of 1 were launched" in out
    assert "written for AMD's GPUs" in out


def test_a_failed_build_fails_the_call_though_its_loader_has_another(
    recorded_builds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["kernels", "--build", "--builds", str(recorded_builds), "--release", "0.5.23"]
    assert main([*words, "_jit_norm"]) == 1
    assert "1 of 2 modules built" in capsys.readouterr().out


def test_a_loader_is_built_if_one_of_its_modules_is_and_else_has_a_reason() -> None:
    results = [BuildResult("a(1)", 1.0, "no", "m.a"), BuildResult("a(2)", 1.0, "", "m.a", ["k"])]
    results += [BuildResult("b()", 1.0, "why", "m.b"), BuildResult("c()", 1.0, "", "m.c")]
    survey = BuildSurvey("0.5.23", results, ["m.a", "m.b", "m.c", "m.d"], {"m.d": "for AMD"})
    assert (survey.built_loaders, survey.launched_loaders) == ({"m.a", "m.c"}, {"m.a"})
    assert survey.failure_by_loader == {"m.b": "why"}
    assert survey.unrecorded_loaders == ["m.d"]
    reasons = {"m.b": "why", "m.c": "no recorded run launches it", "m.d": "for AMD"}
    assert survey.reason_by_loader == reasons


def test_an_obstacle_is_one_of_a_loader_that_nothing_has_launched() -> None:
    loaders = cuda_builds.list_loaders(managed_releases.get_release("0.5.23").open_sources())
    obstacles = cuda_builds.read_obstacles()
    assert set(obstacles) <= set(loaders)
    builds = [*read_recorded_builds(RECORDED_BUILDS), *read_recorded_builds(FURTHER_BUILDS)]
    launched = {f"{build.module}.{build.function}" for build in builds if build.kernels}
    assert launched
    assert not launched & set(obstacles)


def read_loaders_of_the_suite() -> set[str]:
    """Return the loaders that `suites/cuda_loaders` names; a name may have an f-string's parts."""
    loaders: set[str] = set()
    for file in (paths.project_folder() / "suites" / "cuda_loaders").glob("test_*.py"):
        names: dict[str, Any] = {}
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(
                node.value, ast.Constant | ast.JoinedStr
            ):
                exec(ast.unparse(node), names)
            for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.loader":
                    loaders.add(f"sglang.kernels.{eval(ast.unparse(mark.args[0]), names)}")
    return loaders


def test_the_suite_of_loaders_names_loaders_of_the_release() -> None:
    loaders = read_loaders_of_the_suite()
    release = managed_releases.get_release("0.5.23").open_sources()
    assert len(loaders) > 100
    assert loaders <= set(cuda_builds.list_loaders(release))


def test_lines_of_one_build_are_merged_with_all_of_its_kernels(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    lines = [{**LINES[0], "kernels": kernels} for kernels in ([], ["b"], ["a", "b"])]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    merged = json.loads(merge_recorded_builds([file]))
    assert merged == {**LINES[0], "kernels": ["a", "b"]}


class PageLayout(enum.Enum):
    DENSE = 1


class Pages:
    class PageOrder(enum.Enum):
        FIRST = 1


def test_a_loader_is_called_with_what_it_was_recorded_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.jsonl"
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    module = ModuleType("sglang.loaders_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    calls: list[Any] = []
    vars(module).update(record_build=record_build, calls=calls)
    exec(
        "def load(size, *, layout, order):\n  calls.append((size, layout, order))\n"
        "  return record_build()",
        vars(module),
    )
    build = vars(module)["load"](64, layout=PageLayout.DENSE, order=Pages.PageOrder.FIRST)
    record_launches(build, {"k"})
    first, second = read_recorded_builds(file)
    assert (first.kernels, second.kernels) == ([], ["k"])
    call_loader(second)
    assert calls == 2 * [(64, PageLayout.DENSE, Pages.PageOrder.FIRST)]
    assert takes_arguments(second)
    assert not takes_arguments(
        msgspec.structs.replace(second, arguments={**second.arguments, "threads": 32})
    )
    assert not takes_arguments(msgspec.structs.replace(second, function="load_pages"))


def test_a_build_is_of_the_card_that_was_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.jsonl"
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    module = ModuleType("sglang.loaders_of_a_test")
    vars(module).update(record_build=record_build)
    exec("def load():\n  return record_build()", vars(module))
    for card in ("H100", "B200"):
        monkeypatch.setenv(CARD_VARIABLE, card)
        vars(module)["load"]()
    default, other = read_recorded_builds(file)
    assert (default.card, other.card) == ("", "B200")
    assert other.name == "loaders_of_a_test.load() for B200"
    assert len(merge_recorded_builds([file]).splitlines()) == 2

    cards: list[str] = []

    def answer(python: Any, worker: str, request: bytes, environment: Any) -> Iterator[bytes]:
        cards.append(environment[CARD_VARIABLE])
        for build in msgspec.json.decode(request, type=BuildsRequest).builds:
            yield msgspec.json.encode(BuildResult(build.name, 1.0))

    monkeypatch.setattr(cuda_builds, "iterate_answers", answer)
    release = managed_releases.get_release("0.5.23")
    found = [one.name for one in cuda_builds.build_modules(release, [other, default], 1)]
    assert (cards, found) == (["B200", "H100"], [other.name, default.name])


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
    with pytest.raises(UnfixError, match=r"not built within 1 s"):
        run_build(script, 1.0, tmp_path, monkeypatch)
    assert (tmp_path / "ended").exists()


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
