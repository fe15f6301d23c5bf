"""What guards need is brought: a device of their own, the CUDA toolkit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixture_types import Output, Patch
from packaging.version import Version

from harness.cli.prove import guard_needs
from harness.core import paths
from harness.core.errors import NotReadyError
from harness.fixes.matching.toggle_status import ToggleState
from harness.fixes.registry import toggle_catalogue
from harness.releases import cuda_toolkit
from harness.runs.prove.plan import ProveRequest, ReleasePlan
from harness.workers.messages import GuardsCollected, GuardTask
from harness.workers.release_target import ReleaseTarget

REGISTRY = list(toggle_catalogue.load_catalogue())
KERNEL = "moe-align-fill-tail"
TREE: Any = SimpleNamespace(version=Version("0.5.23"))
TARGET = ReleaseTarget("0.5.23", Path("python"), TREE)


def select_toggles(name: str) -> list[Any]:
    return [toggle for toggle in REGISTRY if toggle.id == name]


@pytest.mark.parametrize(
    ("toggle", "file"),
    [
        ("36738", "launch_order/test_launch_order.py"),
        ("33665", "deployments/test_full_size.py"),
        ("write-keeps-its-lock", "lifecycles/test_caches.py"),  # one mark of several
    ],
)
def test_a_plain_call_runs_guards_of_the_virtual_gpu_there(toggle: str, file: str) -> None:
    files = guard_needs.find_guard_files([], select_toggles(toggle))
    suite = paths.project_folder() / "suites" / file
    assert guard_needs.group_by_device(files)["virtual"] == [suite]
    files = guard_needs.find_guard_files([], select_toggles("27460"))
    assert guard_needs.group_by_device(files) == {}


def test_each_guard_runs_on_one_device_of_a_run() -> None:
    elsewhere = paths.project_folder() / "suites" / "launch_order" / "test_launch_order.py"
    request = ProveRequest("prove", [TARGET], [], False, files_by_device={"virtual": [elsewhere]})
    here, there = (ReleasePlan(part, TARGET) for part in request.split_by_device())
    guards = ["suites/launch_order/test_launch_order.py::test_a", "suites/other/test_b.py::test_b"]
    tasks = [GuardTask(n, guard, "x", "fixed", "fixed") for n, guard in enumerate(guards)]
    here.plan_tasks(GuardsCollected(tasks, 0.0, "cpu", True))
    there.plan_tasks(GuardsCollected(tasks[:1], 0.0, "virtual", True))
    assert [cell.guard for cell in here.cells.values()] == guards[1:]
    assert there.request.pytest_arguments == [str(elsewhere)]
    assert [cell.key for cell in there.cells.values()] == [("0.5.23", "virtual", "x", guards[0])]


@pytest.fixture
def toolkit_calls(monkeypatch: Patch) -> list[str]:
    """Count the installations of the toolkit, which is not here; the release has each toggle."""
    calls: list[str] = []
    status = SimpleNamespace(state=ToggleState.FIXED)
    monkeypatch.setattr(cuda_toolkit, "find_toolkit", lambda: None)
    monkeypatch.setattr(guard_needs, "find_toggle_status", lambda *_: status)
    monkeypatch.setattr(cuda_toolkit, "ensure_toolkit", lambda report: calls.append("toolkit"))
    return calls


def test_a_run_with_guards_of_cuda_kernels_brings_the_toolkit(toolkit_calls: list[str]) -> None:
    for name, expected in ((KERNEL, ["toolkit"]), ("27460", [])):
        toolkit_calls.clear()
        toggles = select_toggles(name)
        files = guard_needs.find_guard_files([], toggles)
        guard_needs.bring_toolkit(files, toggles, [TARGET])
        assert toolkit_calls == expected


def test_a_run_goes_on_without_a_toolkit_that_cannot_be_fetched(
    toolkit_calls: list[str], monkeypatch: Patch, capsys: Output
) -> None:
    def fail(report: object) -> None:
        raise NotReadyError("the index cannot be reached")

    monkeypatch.setattr(cuda_toolkit, "ensure_toolkit", fail)
    toggles = select_toggles(KERNEL)
    files = guard_needs.find_guard_files([], toggles)
    guard_needs.bring_toolkit(files, toggles, [TARGET])
    assert toolkit_calls == []
    assert "CUDA kernels are n/a" in capsys.readouterr().err


def test_a_path_keeps_the_tests_that_it_names_on_their_device() -> None:
    suites = paths.project_folder() / "suites"
    order, full = suites / "launch_order/test_launch_order.py", suites / "deployments"
    named = [str(suites / "kv_indices"), f"{order}::test_a", "-q", str(full)]
    files = {"virtual": [order, full / "test_full_size.py"]}
    request = ProveRequest("prove", [TARGET], [], False, "cpu", pytest_arguments=named)
    _, there = replace(request, files_by_device=files).split_by_device()
    assert there.pytest_arguments == [f"{order}::test_a", "-q", str(full / "test_full_size.py")]
