"""What a mutant costs: `unfix prove` beside cosmic-ray and mutmut, on the same mutants and tests.

    python -m venv TOOLS && TOOLS/bin/pip install cosmic-ray mutmut
    python -m bench.mutants --tools TOOLS [--record FILE]      (in unfix's own environment)

bench/small holds a package, its tests, and the settings of the two tools. First both run all of
their own mutants. Those that both make as the same changed line become toggles, the original line
as the fixed form and the changed one as the buggy form. Then all three run these alone, by turns,
and each time the first of them by itself, which tells what a start costs.

A guard of a toggle is a test that calls its function, as mutmut found. Killed means that a guard
proves it, survived that all its guards are toothless: one verdict that differs fails the run.

What each does for a mutant, which is not the same:

- cosmic-ray changes the file and runs pytest anew, all tests until one fails. Its local
  distributor has one process, and the files of one folder allow no second.
- mutmut imports all once and forks for a mutant, --jobs at a time; there pytest runs the tests
  that call the mutated function, until one fails. Before that it runs the tests three times: to
  see which calls what, unchanged, and forced to fail.
- `unfix prove` imports all once and forks for a test, --jobs at a time: every guard of a mutant,
  failed ones or not, and each twice, with the original and with the mutant, in a process of its own
  with another that looks after it; a store keeps what came of it.

Every time is that of whole commands, their start included. For the common mutants mutmut is given
their names and cosmic-ray its session of before without their results.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from bench.recording import make_parser, record_result
from harness.core import paths

SMALL = Path(__file__).parent / "small"
MODULE = "sglang/sizes.py"
KILLED, SURVIVED = "killed", "survived"
VERSIONS = """
import importlib.metadata, json, platform, sys
found = {name: importlib.metadata.version(name) for name in sys.argv[1:]}
print(json.dumps({"python": platform.python_version(), **found}))
"""
TOGGLE = """\
id: {id}
title: a mutant of {function}
family: mutants
symptom: silent-corruption
devices: [cpu]
variants:
  - releases: ">=1.0"
    target: sglang.sizes:{function}
    edits:
      - fixed: {fixed}
        buggy: {buggy}
"""
MARKS = """\
import pytest

GUARDS = {guards!r}


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(name, obj):
    if name in GUARDS:
        pytest.mark.guards(*GUARDS[name])(obj)
"""


class Mutant(NamedTuple):
    """One changed line; equal for every tool that makes it."""

    function: str
    line: int
    was: str
    now: str


class ToolResult(NamedTuple):
    """The result of one tool: for each mutant, its name there and its outcome."""

    seconds: float
    all: int
    mutants: dict[Mutant, tuple[str, str]]


def run_command(command: list[str], folder: Path, wanted: Iterable[int] = (0,), **more: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **more}, capture_output=True, text=True, check=False
    )
    if done.returncode not in wanted:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def normalize_line(line: str) -> str:
    """Normalize a line: cosmic-ray leaves extra spaces."""
    line = line.strip()
    return ast.unparse(ast.parse(f"{line} pass" if line.endswith(":") else line)).split("\n")[0]


def find_functions(text: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


class Bench:
    def __init__(self, tools: Path, jobs: int, root: Path) -> None:
        self.tools = tools.resolve() / "bin"
        self.jobs = jobs
        self.root = root
        self.text = (SMALL / MODULE).read_text()
        self.made = 0
        self.session = root / "session.sqlite"  # the run over all of cosmic-ray's mutants
        self.tests: dict[str, list[str]] = {}  # by function, the tests that call it

    def copy(self) -> Path:
        """Make a fresh copy of the package and its tests, without bytecode."""
        self.made += 1
        folder = self.root / str(self.made)
        shutil.copytree(SMALL, folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        return folder

    def tool(self, folder: Path, *words: str) -> str:
        path = os.pathsep.join((str(self.tools), os.environ["PATH"]))
        return run_command([str(self.tools / words[0]), *words[1:]], folder, PATH=path)

    def versions(self, python: str, *packages: str) -> dict[str, str]:
        found: dict[str, str] = json.loads(
            run_command([python, "-c", VERSIONS, *packages], self.root)
        )
        return found

    # cosmic-ray

    def cosmic_ray(self, only: list[str] | None = None) -> ToolResult:
        """Run all mutants of cosmic-ray, or repeat named ones of an earlier session."""
        folder, config = self.copy(), "cosmic-ray.toml"
        begun = time.perf_counter()
        self.tool(folder, "cosmic-ray", "init", config, "session.sqlite")
        self.tool(folder, "cr-filter-operators", "session.sqlite", config)
        self.tool(folder, "cosmic-ray", "baseline", config)
        seconds = time.perf_counter() - begun
        if only is not None:
            shutil.copy(self.session, folder / "session.sqlite")
            with closing(sqlite3.connect(folder / "session.sqlite")) as session, session:
                session.executemany("delete from work_results where job_id = ?", zip(only))
        begun = time.perf_counter()
        self.tool(folder, "cosmic-ray", "exec", config, "session.sqlite")
        seconds += time.perf_counter() - begun
        if only is None:
            shutil.copy(folder / "session.sqlite", self.session)
        output = self.tool(folder, "cosmic-ray", "dump", "session.sqlite").splitlines()
        ran = [(item, result) for item, result in map(json.loads, output) if result["test_outcome"]]
        mutants = {}
        for item, result in ran:
            mutant = self.of_diff(result["diff"])
            if mutant is not None:
                mutants[mutant] = item["job_id"], result["test_outcome"]
        return ToolResult(seconds, len(ran), mutants)

    def of_diff(self, diff: str) -> Mutant | None:
        """Return a diff as a mutant; None if it is not one changed line in a function."""
        _, _, _, head, *rest = diff.split("\n")
        numbers = re.match(r"@@ -(\d+)", head)
        assert numbers is not None
        lines = [number for number, line in enumerate(rest) if line.startswith(("-", "+"))]
        if len(lines) != 2 or any(line.startswith("@@") for line in rest):
            return None
        was, now = (rest[number][1:] for number in lines)
        line = int(numbers[1]) + lines[0]
        return next(
            (
                Mutant(name, line - function.lineno, was.strip(), normalize_line(now))
                for name, function in find_functions(self.text).items()
                if function.lineno <= line <= (function.end_lineno or 0)
            ),
            None,
        )

    # mutmut

    def mutmut(self, only: list[str] | None = None) -> ToolResult:
        folder = self.copy()
        begun = time.perf_counter()
        self.tool(folder, "mutmut", "run", "--max-children", str(self.jobs), *(only or ()))
        seconds = time.perf_counter() - begun
        mutants_folder = folder / "mutants"
        stats = json.loads((mutants_folder / "mutmut-stats.json").read_text())
        self.tests = {
            name.rpartition(".x_")[2]: sorted(test.partition("::")[2] for test in tests)
            for name, tests in stats["tests_by_mangled_function_name"].items()
        }
        text = (mutants_folder / MODULE).read_text()
        bodies = {
            name: text.split("\n")[node.lineno : node.end_lineno]
            for name, node in find_functions(text).items()
        }
        codes = json.loads((mutants_folder / f"{MODULE}.meta").read_text())["exit_code_by_key"]
        ran = {name: code for name, code in codes.items() if code is not None}
        mutants = {}
        for name, code in ran.items():
            variant = name.rpartition(".")[2]
            function = variant.partition("__mutmut_")[0]
            was, now = bodies[f"{function}__mutmut_orig"], bodies[variant]
            pairs = list(zip(was, now, strict=False))
            changed = [n for n, (one, other) in enumerate(pairs) if one != other]
            if len(was) == len(now) and len(changed) == 1:
                (n,) = changed
                mutant = Mutant(function[2:], n + 1, was[n].strip(), normalize_line(now[n]))
                mutants[mutant] = name, {0: SURVIVED, 1: KILLED}.get(code, f"exit code {code}")
        return ToolResult(seconds, len(ran), mutants)

    # unfix

    def as_toggles(self, mutants: list[Mutant]) -> Path:
        """Write a folder with a toggle for each mutant, and the tests as their guards."""
        folder = self.root / "guarded"
        (folder / "toggles").mkdir(parents=True)
        shutil.copytree(SMALL / "tests", folder / "tests")
        guards: dict[str, list[str]] = {}
        for number, mutant in enumerate(mutants):
            forms = [
                f"{code}\n    $$$BODY" if code.endswith(":") else code
                for code in (mutant.was, mutant.now)
            ]
            fixed, buggy = map(json.dumps, forms)
            name = f"mutant-{number}"
            text = TOGGLE.format(id=name, function=mutant.function, fixed=fixed, buggy=buggy)
            (folder / "toggles" / f"{name}.yaml").write_text(text)
            for test in self.tests[mutant.function]:
                guards.setdefault(test, []).append(name)
        (folder / "tests" / "conftest.py").write_text(MARKS.format(guards=guards))
        return folder

    def prove(self, folder: Path, mutants: list[Mutant]) -> tuple[ToolResult, dict[str, Any]]:
        """Prove these mutants, which are the first toggles of the folder."""
        package = self.copy()
        names = [f"mutant-{number}" for number in range(len(mutants))]
        words = ["prove", *names, "--release", "current", "--toggles", str(folder / "toggles")]
        words += ["-j", str(self.jobs), "--json", "--", str(folder / "tests")]
        begun = time.perf_counter()
        output = run_command(
            [sys.executable, "-P", "-m", "harness", *words],
            package,
            wanted=(0, 1),
            PYTHONPATH=os.pathsep.join((str(paths.project_folder()), str(package))),
            UNFIX_HOME=str(package),
        )
        seconds = time.perf_counter() - begun
        run: dict[str, Any] = json.loads(output)
        problems = [problem for on in run["releases"] for problem in on["problems"]]
        if problems:
            raise SystemExit("\n".join(problems))
        found = {}
        for name, mutant in zip(names, mutants, strict=True):
            verdicts = {cell["verdict"] for cell in run["cells"] if cell["toggle"] == name}
            outcome = ", ".join(sorted(map(str, verdicts))) or "no guard"
            outcome = SURVIVED if outcome == "toothless" else outcome
            found[mutant] = name, KILLED if "proven" in verdicts else outcome
        return ToolResult(seconds, len(mutants), found), run


def compute_timing(seconds: list[float], mutants: int) -> dict[str, Any]:
    return {
        "mutants": mutants,
        "seconds": [round(each, 2) for each in seconds],
        "seconds_a_mutant": round(statistics.median(seconds) / mutants, 3),
    }


def measure_tools(bench: Bench, rounds: int) -> dict[str, Any]:
    own = {"cosmic-ray": bench.cosmic_ray(), "mutmut": bench.mutmut()}
    ray, mut = (found.mutants for found in own.values())
    common = [mutant for mutant in mut if mutant in ray]
    if len(common) < 2:
        raise SystemExit("the tools have no mutants in common")
    folder = bench.as_toggles(common)
    tools_verdicts: dict[Mutant, dict[str, set[str]]] = {
        mutant: {"cosmic-ray": {ray[mutant][1]}, "mutmut": {mut[mutant][1]}, "unfix": set()}
        for mutant in common
    }
    tools = ("cosmic-ray", "mutmut", "unfix")
    first: dict[str, list[float]] = {name: [] for name in tools}
    whole: dict[str, list[float]] = {name: [] for name in tools}
    for _ in range(rounds):
        for mutants, times in ((common[:1], first), (common, whole)):
            unfix, run = bench.prove(folder, mutants)
            runs = {
                "cosmic-ray": bench.cosmic_ray([ray[mutant][0] for mutant in mutants]),
                "mutmut": bench.mutmut([mut[mutant][0] for mutant in mutants]),
                "unfix": unfix,
            }
            for name, found in runs.items():
                times[name].append(found.seconds)
                for mutant in mutants:
                    tools_verdicts[mutant][name].add(found.mutants[mutant][1])

    figures: dict[str, dict[str, Any]] = {}
    for name in tools:
        start, end = statistics.median(first[name]), statistics.median(whole[name])
        figures[name] = {
            "workers": bench.jobs,
            "common": {
                **compute_timing(whole[name], len(common)),
                "first_s": round(start, 2),
                "each_further_s": round((end - start) / (len(common) - 1), 3),
            },
        }
        if name in own:
            figures[name]["its_own"] = compute_timing([own[name].seconds], own[name].all)
    settings = tomllib.loads((SMALL / "cosmic-ray.toml").read_text())["cosmic-ray"]
    figures["cosmic-ray"] |= {"distributor": settings["distributor"]["name"], "workers": 1}
    figures["unfix"] |= {
        "cells": len(run["cells"]),
        "sides_run": sum(len(cell["sides"]) for cell in run["cells"]),
        "cells_by_verdict": Counter(cell["verdict"] for cell in run["cells"]),
    }
    verdicts = [
        {
            "function": mutant.function,
            "was": mutant.was,
            "now": mutant.now,
            **{name: ", ".join(sorted(each)) for name, each in tools_verdicts[mutant].items()},
        }
        for mutant in common
    ]
    return {
        "rounds": rounds,
        "common_mutants": len(common),
        **figures,
        "verdicts": verdicts,
        "verdicts_that_differ": [
            verdict
            for mutant, verdict in zip(common, verdicts, strict=True)
            if len(set.union(*tools_verdicts[mutant].values())) > 1
        ],
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--tools", type=Path, required=True, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        bench = Bench(arguments.tools, arguments.jobs, Path(root))
        versions = {
            "unfix": bench.versions(sys.executable, "pytest"),
            "tools": bench.versions(str(bench.tools / "python"), "cosmic-ray", "mutmut", "pytest"),
        }
        measured = measure_tools(bench, arguments.rounds)
    sys.argv = ["TOOLS" if word == str(arguments.tools) else word for word in sys.argv]
    record_result({"versions": versions, **measured}, arguments.record)
    return int(bool(measured["verdicts_that_differ"]))


if __name__ == "__main__":
    sys.exit(main())
