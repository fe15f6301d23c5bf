"""`unfix fuzz` over the toy release, with suites written in the test and its own state folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
from calling import TOY, Caller
from forked import UNFIX

from harness.runs.fuzz import failure_files
from harness.store.fuzz.values import FailureRecord, FoundFailure

HEAD = """
import os, signal, sys, time
import pytest
from hypothesis import assume, given, strategies as st
from sglang import forms
from harness.runs.fuzz.search_targets import maximize_target
from harness.guards import skip_not_applicable

guards = pytest.mark.guards
"""
CONFTEST = """
from harness.runs.fuzz.regressions import RegressionPlugin

def pytest_configure(config):
    config.pluginmanager.register(RegressionPlugin())
"""


class Nights(Caller):
    """`unfix fuzz` over suites in a folder of its own."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.budget = 0.0  # seconds of the last run
        self.suite = root / "suite"
        self.suite.mkdir()
        (self.suite / "conftest.py").write_text(CONFTEST)

    def write(self, text: str, name: str = "test_toy.py") -> None:
        (self.suite / name).write_text(HEAD + text)

    def words(self, *words: str) -> list[str]:
        again = "--replay" in words or "--keep" in words
        where = [] if again else [str(self.suite), "--release", "current"]
        folders = ["--toggles", str(TOY / "toggles")]
        return [*UNFIX, "fuzz", *where, *folders, *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.call(self.words(*words))

    def start(self, *words: str) -> subprocess.Popen[str]:
        return self.begin(self.words(*words))

    def run_until(
        self,
        is_enough: Callable[[subprocess.CompletedProcess[str]], bool],
        *words: str,
        seconds: float = 2,
    ) -> subprocess.CompletedProcess[str]:
        """Run until a run is enough, each time with four times the time; forget those before it.

        A run uses up its time on all its cores, and a busy machine runs few examples in it.
        """
        for self.budget in (seconds, 4 * seconds, 16 * seconds, min(64 * seconds, 240)):
            done = self.run("--for", f"{self.budget}s", "-j", "2", *words)
            if is_enough(done):
                break
            shutil.rmtree(self.root / ".unfix")
        return done

    def night(
        self,
        *words: str,
        seconds: float = 2,
        code: int = 1,
        is_enough: Callable[[dict[str, Any]], bool] | None = None,
    ) -> dict[str, Any]:
        """Return the result, as JSON, of a run that is enough and ends with a code.

        If it has to end with 1, one that found nothing is not enough.
        """

        def judge(done: subprocess.CompletedProcess[str]) -> bool:
            assert done.stdout, done.stderr
            found = json.loads(done.stdout)
            if is_enough is not None:
                return is_enough(found)
            return code == 0 or bool(found["failures"] or found["problems"])

        done = self.run_until(judge, "--json", *words, seconds=seconds)
        assert done.returncode == code, done.stderr + done.stdout
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def pytest(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the suite by plain pytest."""
        toggles = {"UNFIX_TOGGLES": str(TOY / "toggles")}
        plugin = ["-p", "harness.guards.plugin", "-p", "no:cacheprovider", f"--rootdir={self.root}"]
        command = [sys.executable, "-m", "pytest", *plugin, str(self.suite), *words]
        return forked.run_unfix(command, self.root, {**self.environment, **toggles})


def make_record(found: FoundFailure, test: str) -> FailureRecord:
    return failure_files.make_failure_record(
        found, test=test, release="1.0", under=[], versions={}, seed=0, detail=""
    )


def read_failures(night: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the failures by the name of their test."""
    found: dict[str, list[dict[str, Any]]] = {}
    for kept in night["failures"]:
        found.setdefault(kept["repro"]["test"].partition("::test_")[2], []).append(kept["repro"])
    return found


def by_test(night: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {test["test"].partition("::test_")[2]: test for test in night["tests"]}
