"""A suite under check: which tests fail, what is said of each, and what at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.core import paths
from harness.core.missing_package import CHECKED_PROCESS_PACKAGES

SUITE = Path(__file__).parent / "suite_to_check.py"
# What unfix itself requires and a Python whose suite is checked need not have.
NEEDLESS_PACKAGES = ("ast_grep_py", "hypothesis", "jinja2", "rich", "execnet")


class PreloadedPytest:
    """Runs pytest with the plugin in forks of one process (`preloaded_pytest`)."""

    def __init__(self) -> None:
        without = {"PYTHONPATH", "UNFIX_DEVICE", "PYTEST_ADDOPTS"}
        environment = {name: value for name, value in os.environ.items() if name not in without}
        folders = (paths.HARNESS_FOLDER / "startup", SUITE.parent)
        environment["PYTHONPATH"] = os.pathsep.join(map(str, folders))
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # our own environment's need more
        self.process = subprocess.Popen(
            [sys.executable, SUITE.with_name("preloaded_pytest.py")],
            cwd=SUITE.parent,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(
        self, *arguments: str, missing: tuple[str, ...] = NEEDLESS_PACKAGES
    ) -> subprocess.CompletedProcess[str]:
        """Run the suite in a Python without some packages."""
        plugins = ["-p", "without_packages", "-p", "unfix_check", "-p", "no:cacheprovider"]
        plugins.append(f"--confcutdir={SUITE.parent}")  # not our own conftest
        words = [*plugins, "-v", "-c", os.devnull, str(SUITE), *arguments]
        request = {"arguments": words, "environment": {"WITHOUT_PACKAGES": ",".join(missing)}}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return subprocess.CompletedProcess(words, *json.loads(self.process.stdout.readline()))


@pytest.fixture(scope="module")
def suite_runner() -> Iterator[PreloadedPytest]:
    runner = PreloadedPytest()
    yield runner
    with runner.process:
        runner.process.kill()


Whole = tuple[int, str, dict[str, Any]]


@pytest.fixture(scope="module")
def whole(suite_runner: PreloadedPytest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The exit code, the output and the record of the whole suite."""
    record = tmp_path_factory.mktemp("record") / "record.json"
    done = suite_runner.run(f"--sanitize-record={record}")
    return done.returncode, done.stdout, json.loads(record.read_text())


def get_outcomes(record: dict[str, Any]) -> dict[str, str]:
    return {
        name.rpartition("::")[2].removeprefix("test_"): test["outcome"]
        for name, test in record["tests"].items()
    }


def test_a_report_fails_the_test_that_made_it(whole: Whole) -> None:
    code, output, record = whole
    assert code == 1
    assert get_outcomes(record) == {
        "that_passes": "passed",
        "that_overruns": "reported",
        "that_overruns_and_fails": "reported",
        "that_is_refused": "refused",
        "with_an_assertion_that_a_card_skips": "passed",
        "that_reaches_its_storage_on_purpose": "passed",
        "that_allows_another_kernel_its_storage": "reported",
        "that_is_no_launch_for_a_card": "reported",
        "that_expects_what_a_card_refuses": "passed",
        "that_launches_nothing": "passed",
        "of_a_backward_pass": "passed",
        "of_a_fixture": "passed",
        "of_the_fixture_again": "passed",
        "of_a_tuned_kernel": "passed",
        "of_an_approximation": "passed",
        "that_needs_an_operator": "refused",
        "that_catches_a_refusal_and_fails": "failed",
    }
    assert "suite_kernels.py:10  tl.store(y + at, tl.load(x + at), mask=at < count)" in output
    assert "copy_block read 4 bytes past the end of x (its index 12" in output
    assert "program (1, 0, 0)" in output
    assert "the test itself ended in KeyError: 'its own error'" in output
    assert "copy_block: Pointer argument (at 0) cannot be accessed from Triton: x is" in output
    assert "launched at" in output


def test_a_refusal_that_a_test_caught_is_a_note_of_its_failure(whole: Whole) -> None:
    _, output, record = whole
    (name,) = [name for name in record["tests"] if "catches_a_refusal" in name]
    assert not record["tests"][name]["refusals"]
    assert "test_that_catches_a_refusal_and_fails FAILED" in output
    assert "caught before, from the virtual GPU: aten::_thnn_fused_gru_cell" in output


def test_a_test_that_launched_nothing_says_so(whole: Whole) -> None:
    _, output, _ = whole
    assert "test_that_launches_nothing PASSED, no kernel launched" in output
    assert "1 test passed without a launch: suite_to_check.py::test_that_launches_nothing" in output


def test_the_end_says_what_was_checked_and_how(whole: Whole) -> None:
    _, output, _ = whole
    assert "checked 13 launches of 5 kernels in 13 tests" in output
    assert "(bounds, overflow, races, uninitialized): 4 reports" in output
    assert "warning: assert_small: its own assertion fails: too large (" in output
    assert "refused in 1 test: the checker cannot follow it: inline assembly: activemask" in output
    operator = "aten::_thnn_fused_gru_cell has no kernel for the virtual device"
    assert f"refused in 1 test: {operator}\n" in output
    assert "only the first autotune configuration ran, of copy_tuned (2)" in output
    assert "within CUDA's bounds: inline assembly: ex2.approx.f32, in exponentials" in output
    assert "rounded one by one, where a GPU may fuse them" in output
    assert "1 operator of CUDA binaries had stand-ins, 2 calls: sgl_kernel.toy 2" in output


def test_a_baseline_accepts_known_reports_with_a_reason_and_fails_when_one_is_gone(
    suite_runner: PreloadedPytest, tmp_path: Path
) -> None:
    file = tmp_path / "baseline.json"
    chosen = (f"--sanitize-baseline={file}", "-k", "test_that_overruns and not fails")
    assert suite_runner.run(*chosen).returncode == 1
    entries = json.loads(file.read_text())
    assert [(entry["kind"], entry["kernel"]) for entry in entries] == [
        ("OutOfBounds", "copy_block")
    ]
    done = suite_runner.run(*chosen)
    assert done.returncode == 4
    assert "OutOfBounds of copy_block has no reason" in done.stderr
    entries[0]["reason"] = "padding"
    file.write_text(json.dumps(entries))
    done = suite_runner.run(*chosen)
    assert done.returncode == 0, done.stdout
    assert "accepted: copy_block read 4 bytes past the end of x" in done.stdout
    done = suite_runner.run(chosen[0], "-k", "test_that_passes")
    assert done.returncode == 1
    assert "gone, take it out of the baseline: OutOfBounds of copy_block" in done.stdout


def test_checks_are_chosen_by_words(suite_runner: PreloadedPytest) -> None:
    done = suite_runner.run("--sanitize=races,overflow", "-k", "test_that_overruns or passes")
    assert "(overflow, races): no reports" in done.stdout.replace(
        "races, overflow", "overflow, races"
    )
    done = suite_runner.run("--sanitize=leaks")
    assert done.returncode == 4
    assert "--sanitize: the checks are bounds, overflow, races, uninitialized" in done.stderr


def test_bits_and_all_configurations_are_options(suite_runner: PreloadedPytest) -> None:
    chosen = ("-k", "tuned or approximation")
    done = suite_runner.run("--sanitize-exact", "--sanitize-all-configurations", *chosen)
    assert "ex2.approx.f32, whose bits depend on the GPU" in done.stdout
    assert "checked 3 launches" in done.stdout
    assert "only the first" not in done.stdout


def test_a_conftest_finds_the_device(suite_runner: PreloadedPytest, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import torch, triton\n"
        "assert torch.cuda.is_available()\n"
        "assert triton.runtime.driver.active.get_current_target().backend == 'cuda'\n"
    )
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    file = str(tmp_path / "test_nothing.py")
    done = suite_runner.run(f"--rootdir={tmp_path}", file, "-k", "nothing")
    assert "test_nothing PASSED, no kernel launched" in done.stdout


def test_a_run_without_a_launch_is_not_green(suite_runner: PreloadedPytest) -> None:
    done = suite_runner.run("-k", "launches_nothing")
    assert done.returncode == 3
    assert "no launch was checked, so the checks say nothing" in done.stdout
    assert "checked 0" not in done.stdout


@pytest.mark.parametrize("package", ["llvmlite", "msgspec", "yaml"])
def test_a_package_that_the_python_lacks_is_named_with_what_installs_it(
    suite_runner: PreloadedPytest, package: str
) -> None:
    done = suite_runner.run(missing=(package,))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    name = CHECKED_PROCESS_PACKAGES[package]
    assert line.startswith(
        f"ERROR: unfix: {sys.executable} has no {name}: `{sys.executable} -m pip"
    )


def run_child_of_exec(folder: Path, missing: str) -> subprocess.CompletedProcess[str]:
    """Run a program as `unfix exec --device virtual` does, in a Python without one package."""
    error = f"ModuleNotFoundError('No module named {missing}', name='{missing}')"
    (folder / f"{missing}.py").write_text(f"raise {error}\n")
    paths_of_imports = (paths.HARNESS_FOLDER / "startup", folder)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths_of_imports)),
        "UNFIX_DEVICE": "virtual",
    }
    return subprocess.run(
        [sys.executable, "-c", "print('the program ran')"],
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )


def test_a_child_of_exec_that_lacks_a_package_says_so_and_ends_with_3(tmp_path: Path) -> None:
    done = run_child_of_exec(tmp_path, "yaml")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("unfix: checks or the virtual device cannot be applied: ")
    assert f"{sys.executable} has no PyYAML: " in done.stderr


def test_a_child_of_exec_needs_none_of_the_other_packages(tmp_path: Path) -> None:
    for package in NEEDLESS_PACKAGES:
        done = run_child_of_exec(tmp_path, package)
    assert (done.returncode, done.stdout) == (0, "the program ran\n"), done.stderr


def test_what_looks_for_loaders_at_the_start_of_a_process_imports_no_torch() -> None:
    """Each process with checks of CUDA modules does so, helpers of multiprocessing included."""
    code = (
        "import sys; from harness.sanitizer import plugins;"
        "hooks = [plugin.find_loader_hooks() for plugin in plugins.list_all()];"
        "assert any(hooks), hooks; print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(paths.HARNESS_FOLDER.parent)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "False\n", done.stderr
