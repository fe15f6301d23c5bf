"""No cache is stale: each key changes with any code that can change a value, and with versions."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import test_layers
from cache_keys import (
    CACHES,
    CACHING_NAMES,
    CacheCase,
    ChangedCode,
    list_callers,
    measure_imports,
    pair_with_folders,
)
from fixture_types import Patch
from memory import write_toggle

from harness.cli import guard_runs
from harness.core import cache, code_digest, paths
from harness.fixes.matching import status_cache
from harness.fixes.matching.status_cache import StatusCache
from harness.fixes.registry import toggle_catalogue
from harness.patching import bootstrap, planner
from harness.releases.source_trees import FolderSourceTree
from harness.runs.audit import release_audit
from harness.runs.audit.release_audit import AuditRequest
from harness.runs.kernels import inventory
from harness.runs.mutate import line_coverage
from harness.runs.mutate.request import MutationPlan
from harness.runs.pr import changed_kernels
from harness.store.prove import recorded_proofs
from harness.workers.release_target import ReleaseTarget

GUARDS = tuple(
    name for name in test_layers.find_modules() if name.partition(".")[0] in ("suites", "fixtures")
)
# Modules that write below `.unfix` and cache nothing: each has a file of its own for each run.
NO_CACHES = {
    "harness.cli.bisect.execution": "the folder of a search",
    "harness.cli.exec": "attestations",
    "harness.cli.upstream": "pull requests, written anew by each call",
    "harness.cli.guard_runs": "the mended toggles of a run, written anew by each",
    "harness.patching.live_engine": "attestations",
    "harness.runs.adopt.detection": "a temporary folder",
    "harness.workers.answering_process": "a log",
    "harness.runs.eval.evaluation_request": "the folder of a run",
    "harness.runs.eval.model_folders": "links to a model's files, read through the link",
    "harness.runs.fuzz.example_corpus": "examples: what runs them decides, whatever is stored",
    "harness.runs.fuzz.failure_files": "reports of failures",
    "harness.runs.fuzz.failure_replay": "replays",
    "harness.runs.fuzz.runner": "the folder of a run",
    "harness.runs.matrix.matrix_run": "the folder of a run",
    "harness.runs.mutate.coverage_recorder": "the folder of a run",
    "harness.runs.mutate.runner": "the folder of a run",
    "harness.runs.pr.launch_recording": "the folder of a run",
    "harness.runs.prove.runner": "the folder of a run",
    "harness.cli.lane_execution": "the folder of a run",
    "harness.store.database": "the store of runs",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, home_of_keys: Path, monkeypatch: Patch) -> Iterator[Path]:
    """An empty home, at one place for all tests: a key may depend on the place."""
    monkeypatch.setenv("UNFIX_HOME", str(home_of_keys))
    monkeypatch.setattr(cache, "_LOADED_VALUES", {})
    paths.state_folder().mkdir(parents=True)
    yield tmp_path
    shutil.rmtree(home_of_keys)


@pytest.fixture(scope="module")
def home_of_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "home"


@pytest.fixture
def changed_code(monkeypatch: Patch) -> Iterator[ChangedCode]:
    yield ChangedCode(monkeypatch)
    code_digest.digest_code.cache_clear()


def read_cache_name(name: str) -> str:
    """Return the name of the file that a cache has written, and begin without it."""
    cache._LOADED_VALUES.clear()
    (file,) = (paths.state_folder() / "cache").glob(f"{name}-*")
    file.unlink()
    return file.name


def load_registry() -> str:
    toggle_catalogue.load_catalogue()
    return read_cache_name("registry")


def load_proofs() -> str:
    recorded_proofs.load_proofs([], folder=paths.state_folder())
    return read_cache_name("proofs")


def make_plan_key() -> str:
    request = {"root": "/", "revert": ["1"], "enable": [], "folders": []}
    return bootstrap._compute_plan_key(request)


def make_audit_key() -> str:
    return release_audit.compute_key(AuditRequest(Path("/a"), "0.5.9"), ["0"])


def make_inventory_key() -> str:
    return inventory.compute_inventory_key(Path("/a"), "0.5.9", Path(__file__), "0")


def make_coverage_key() -> str:
    tree = FolderSourceTree(paths.state_folder(), "current")
    target = ReleaseTarget("current", Path(sys.executable), tree)
    return line_coverage.compute_coverage_key(target, "default")


def make_capture_key() -> str:
    tree = FolderSourceTree(paths.state_folder(), "current")
    target = ReleaseTarget("current", Path(sys.executable), tree)
    root = paths.project_folder()
    plan = MutationPlan(target, (), {}, {}, False, [], root, 1, 0, "default")
    return changed_kernels.compute_capture_key(plan, ["a:k"], ["b::t"])


CASES = (
    CacheCase("registry", ("harness.fixes.registry.toggle_reader",), load_registry),
    CacheCase(
        "states",
        ("harness.fixes.matching.toggle_status",),
        lambda: StatusCache("states", lambda *_: None)._cache._path.name,  # type: ignore[arg-type]
    ),
    CacheCase(
        "reverts",
        ("harness.releases.upstream_reverts",),
        lambda: status_cache._open_reverts_cache()._path.name,
    ),
    CacheCase(
        "drift",
        ("harness.fixes.drift",),
        lambda: StatusCache("drift", lambda *_: None)._cache._path.name,  # type: ignore[arg-type]
    ),
    CacheCase("proofs", ("harness.store.prove.recorded_proofs",), load_proofs),
    CacheCase("plans", ("harness.patching.planner",), make_plan_key),
    CacheCase(
        "audited releases",
        ("harness.runs.audit.release_audit", "harness.runs.audit.analysis_worker"),
        make_audit_key,
    ),
    CacheCase(
        "inventories",
        ("harness.runs.kernels.inventory", "harness.runs.kernels.inventory_worker"),
        make_inventory_key,
    ),
    CacheCase(
        "lines that guards run",
        ("harness.runs.mutate.worker", "harness.workers.line_tracer", *GUARDS),
        make_coverage_key,
    ),
    CacheCase(
        "captured launches",
        ("harness.runs.mutate.worker", "harness.sanitizer.check.launch_capture", *GUARDS),
        make_capture_key,
    ),
    CacheCase(
        "runs to resume",
        ("harness.workers.guard_worker", "harness.runs.prove.runner", "harness.runs.mutate.runner"),
        lambda: guard_runs.digest_guards_and_toggles([], []),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_code_gives_a_value_the_same_key(
    case: CacheCase, changed_code: ChangedCode
) -> None:
    """Else each test below would see another key whatever it changes."""
    assert changed_code.compute_key(case) == changed_code.get_unchanged_key(case)


@pytest.mark.parametrize(("case", "file"), pair_with_folders(CASES))
def test_a_byte_in_any_folder_that_a_value_stands_on_is_a_miss(
    case: CacheCase, file: Path, changed_code: ChangedCode
) -> None:
    assert changed_code.compute_key(case, changed=file) != changed_code.get_unchanged_key(case)


@pytest.mark.parametrize("name", ["findings", "suites", "fixtures", "toggles", "conftest.py"])
def test_a_byte_in_the_projects_own_guards_is_a_miss(name: str, changed_code: ChangedCode) -> None:
    """Else a run goes on with the results of guards that have changed since."""
    [case] = (case for case in CASES if case.name == "runs to resume")
    file = list(code_digest.iterate_files(paths.project_folder() / name))[-1]
    assert changed_code.compute_key(case, changed=file) != changed_code.get_unchanged_key(case)


def test_code_that_no_value_stands_on_is_no_miss(changed_code: ChangedCode) -> None:
    """Else each command's change would cost each cache."""
    file = paths.HARNESS_FOLDER / "cli" / "show.py"
    for case in CASES[:-1]:
        assert "harness.cli.show" not in measure_imports(case.computed_by)
        assert changed_code.compute_key(case, changed=file) == changed_code.compute_key(case)


def test_every_file_of_ours_is_in_a_wing(changed_code: ChangedCode) -> None:
    digest = CacheCase("all", (), lambda: code_digest.digest_code(code_digest.WINGS[-1]))
    before = changed_code.compute_key(digest)
    for file in code_digest.iterate_files(paths.HARNESS_FOLDER):
        if "carried" not in file.parts:
            code_digest.digest_code.cache_clear()
            assert any(
                file == each or each in file.parents
                for each in (paths.HARNESS_FOLDER / wing for wing in code_digest.WINGS)
            ), file
    changed = paths.HARNESS_FOLDER / "releases" / "locks" / "base.txt"
    assert changed_code.compute_key(digest, changed=changed) != before


def test_every_cache_has_its_key_tested() -> None:
    """The kernels' are tested where Triton is, by tests/sanitizer/checked."""
    users = set().union(*CACHES.values())
    assert list_callers(CACHING_NAMES) - {"harness.core.cache"} <= users
    writers = list_callers({"state_folder"}) - {"harness.core.cache", "harness.core.paths"}
    assert writers - users == set(NO_CACHES)
    kernels = Path(__file__).parent / "sanitizer" / "checked" / "test_kernel_cache_keys.py"
    names = {case.name for case in CASES} | set(
        re.findall(r'CacheCase\(\s*"([^"]+)"', kernels.read_text())
    )
    assert set(CACHES) <= names


@pytest.mark.parametrize("package", ["Python", "triton", "llvmlite", "torch"])
def test_another_version_below_the_audit_is_a_miss(package: str, monkeypatch: Patch) -> None:
    found: dict[str, str] = dict.fromkeys(("triton", "llvmlite", "torch", "numpy"), "1.0")

    def list_distributions(name: str, **_: Any) -> Iterator[Any]:
        yield SimpleNamespace(version=found[name])

    monkeypatch.setattr(metadata, "distributions", list_distributions)
    before = make_audit_key()
    if package == "Python":
        monkeypatch.setattr(sys, "version", "4.0")
    else:
        found[package] = "1.1"
    assert make_audit_key() != before


@pytest.mark.parametrize("name", ["yaml", "msgspec", "packaging"])
def test_another_version_below_the_registry_is_a_miss(name: str, changed_code: ChangedCode) -> None:
    before = changed_code.compute_key(CASES[0])
    module = getattr(toggle_catalogue, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "__version__", "99")
        assert changed_code.compute_key(CASES[0]) != before
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toggle_catalogue, "AST_GREP_STAMP", "another build")
        assert changed_code.compute_key(CASES[0]) != before


@pytest.fixture
def cached_plan(home: Path, monkeypatch: Patch) -> tuple[dict[str, Any], list[int]]:
    """A request whose plan is cached, and a list that grows with each call of the planner."""
    toggles, package = home / "toggles", home / "sglang"
    write_toggle(toggles, "one", "sglang.toy:f", "a + 1", "a - 1", releases=">=0")
    monkeypatch.setattr(paths, "toggles_folder", lambda: toggles)
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "version.py").write_text('__version__ = "0.5.9"\n')
    (package / "toy.py").write_text("def f(a):\n    return a + 1\n")
    (home / "ast_grep.so").write_text("1")
    monkeypatch.setattr(planner, "_DEPENDENCIES", [str(home / "ast_grep.so")])
    return {"root": str(home), "revert": ["one"], "enable": [], "folders": []}, []


@pytest.mark.parametrize("changed", ["sglang/toy.py", "sglang/version.py", "ast_grep.so", ""])
def test_a_plan_stands_on_sources_and_on_the_planners_packages(
    changed: str, cached_plan: tuple[dict[str, Any], list[int]], home: Path
) -> None:
    request, planner_calls = cached_plan

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        planner_calls.append(1)
        return planner.answer_request(request)

    bootstrap.fetch_plan(request, answer)
    bootstrap.fetch_plan(request, answer)
    assert len(planner_calls) == 1
    if changed:
        file = home / changed
        text = file.read_text()
        file.write_text(text.replace("1", "1 ") if changed.endswith(".so") else f"{text}#\n")
    bootstrap.fetch_plan(request, answer)
    assert len(planner_calls) == 1 + bool(changed)
