"""What a fault costs: `unfix mutate` beside cosmic-ray, with the same faults and the same guards.

    python -m venv TOOLS && TOOLS/bin/pip install cosmic-ray ./bench/given
    python bench/mutation.py --tools TOOLS [--faults N] [--record FILE]    (unfix's own environment)

`unfix mutate` looks at every fault of a family. A sample of N by a seed goes to cosmic-ray, which
bench/given tells of them as operators of its own, one a fault, on a copy of the release's source.
The guards are the family's suite, whole: `python -m pytest -x SUITE` in the release's environment
for cosmic-ray, `--suite SUITE` for unfix. Killed there must be killed here: one verdict that
differs fails the run. A fault that no guard reaches, that only an import can put in, and that
survives is all one to cosmic-ray: it survived. Faults that are said to be equal are dropped.

What each does for a fault, which is not the same:

- cosmic-ray changes the file and runs pytest anew: SGLang is imported, the suite is collected, and
  all its tests run until one fails. Its local distributor has one process.
- `unfix mutate` imports SGLang once, records once which guard runs which lines, and forks for a
  fault; there the guards that run its lines run, until one fails. There is no second look with
  more examples (`--examples 1`), which cosmic-ray does not have either, and one fork at a time.

Times are those of whole commands. What is paid once (for unfix the import and the record of lines,
for cosmic-ray `init` and `baseline`) is shared by all faults of the family:

- `a_fault_s`: all that, over the faults; of cosmic-ray its share of what is paid once, and the mean
  of the sample;
- `each_further_s`: the same without what is paid once;
- `same_faults_s`: the mean over the faults of the sample alone, in both.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.recording import record
from harness.core import paths
from harness.releases import managed_releases

CONFIG = """\
[cosmic-ray]
module-path = {modules}
timeout = {timeout}
excluded-modules = []
test-command = {command}

[cosmic-ray.distributor]
name = "local"

[cosmic-ray.filters.operators-filter]
exclude-operators = ["core/.*"]
"""


def called(command: list[str], wanted: Iterable[int] = (0,), **more: Any) -> tuple[float, str]:
    begun = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, **more)
    if done.returncode not in wanted:
        raise SystemExit(f"{shlex.join(command)} ended with {done.returncode}\n{done.stdout}")
    return time.perf_counter() - begun, done.stdout


def unfix(words: list[str], home: Path) -> tuple[float, dict[str, Any]]:
    """A whole command in an empty state, so that nothing is known of an earlier run."""
    command = [sys.executable, "-P", "-m", "harness", "mutate", *words, "-j", "1", "--json"]
    command += ["--html", str(home / "page.html")]
    (home / ".releases").symlink_to(paths.releases_folder())
    environment = {**os.environ, "UNFIX_HOME": str(home), "PYTHONPATH": str(paths.project_folder())}
    seconds, said = called(command, (0, 1), env=environment, cwd=home)
    run: dict[str, Any] = json.loads(said)
    return seconds, run


class Ray:
    """cosmic-ray on a copy of the release."""

    def __init__(self, tools: Path, python: Path, faults: list[dict[str, Any]], root: Path) -> None:
        self.tools = tools.resolve() / "bin"
        self.root = root
        self.copy = root / "copy"
        package = Path(faults[0]["path"])
        while package.name != "sglang":
            package = package.parent
        shutil.copytree(package, self.copy / "sglang")
        given = []
        for fault in faults:
            original = Path(fault["path"])
            text = original.read_text()
            mutant = root / f"{fault['id']}.py"
            mutant.write_text(text[: fault["start"]] + fault["after"] + text[fault["end"] :])
            files = {"original": str(original), "mutant": str(mutant)}
            given.append({"id": fault["id"], **files})
        (root / "given.json").write_text(json.dumps(given))
        names = {Path(fault["path"]).relative_to(package.parent) for fault in faults}
        self.modules = sorted(str(self.copy / name) for name in names)
        self.python = python

    def run(self, suite: str, profile: str, timeout: float) -> tuple[float, float, dict[str, str]]:
        """Seconds before the first fault, seconds for all of them, and what each came to."""
        words = [str(self.python), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", suite]
        command = shlex.join([*words, "--profile", profile])
        config = {"modules": json.dumps(self.modules), "timeout": timeout}
        text = CONFIG.format(**config, command=json.dumps(command))
        (self.root / "config.toml").write_text(text)
        before = self._ray("init", "config.toml", "session.sqlite")
        before += self._tool("cr-filter-operators", "session.sqlite", "config.toml")
        before += self._ray("baseline", "config.toml")
        seconds = self._ray("exec", "config.toml", "session.sqlite")
        dump = [str(self.tools / "cosmic-ray"), "dump", "session.sqlite"]
        _, said = called(dump, cwd=self.root)
        told = {}
        for item, result in map(json.loads, said.splitlines()):
            provider, _, name = item["mutations"][0]["operator_name"].partition("/")
            if provider == "given":
                told[name] = result["test_outcome"]
        return before, seconds, told

    def _ray(self, *words: str) -> float:
        return self._tool("cosmic-ray", *words)

    def _tool(self, *words: str) -> float:
        path = os.pathsep.join((str(self.tools), os.environ["PATH"]))
        found_by = os.pathsep.join((str(self.copy), str(paths.project_folder())))
        environment = {**os.environ, "PATH": path, "PYTHONPATH": found_by}
        environment |= {"OMP_NUM_THREADS": "1"}
        environment["GIVEN_FAULTS"] = str(self.root / "given.json")
        command = [str(self.tools / words[0]), *words[1:]]
        return called(command, cwd=self.root, env=environment)[0]


def compare(arguments: argparse.Namespace, root: Path) -> dict[str, Any]:
    release = managed_releases.get_release(arguments.release)
    words = [arguments.family, "--release", release.name, "--suite", arguments.suite]
    words += ["--profile", arguments.profile, "--examples", "1"]
    home = root / "home"
    home.mkdir()
    whole, run = unfix(words, home)
    fates = [fated for fated in run["fates"] if fated["fate"] != "equal"]
    many = len(fates)
    few = random.Random(arguments.seed).sample(fates, min(arguments.faults, many))
    ray = Ray(arguments.tools, release.python, [fated["fault"] for fated in few], root)
    suite = str(paths.project_folder() / "suites" / arguments.suite)
    before, seconds, told = ray.run(suite, arguments.profile, arguments.timeout)
    verdicts = [
        {
            "id": fated["fault"]["id"],
            "words": fated["fault"]["words"],
            "unfix": fated["fate"],
            "seconds": round(fated["seconds"], 2),
            "cosmic-ray": told.get(fated["fault"]["id"]),
        }
        for fated in few
    ]
    once = run["seconds_to_start"] + run["seconds_to_reach"]
    ours = {
        "a_fault_s": whole / many,
        "each_further_s": (whole - once) / many,
        "same_faults_s": sum(fated["seconds"] for fated in few) / len(few),
    }
    each = seconds / len(few)
    theirs = {"a_fault_s": before / many + each, "each_further_s": each, "same_faults_s": each}
    paid = {"import_s": run["seconds_to_start"], "lines_s": run["seconds_to_reach"]}
    figures = {
        "unfix": {"whole_s": whole, **paid, **ours},
        "cosmic-ray": {"sample_s": seconds, "before_s": before, **theirs},
        "times_faster": {name.removesuffix("_s"): theirs[name] / ours[name] for name in ours},
    }
    return {
        "release": release.name,
        "family": arguments.family,
        "suite": arguments.suite,
        "profile": arguments.profile,
        "faults": many,
        "fates": run["counts"],
        "sample": len(few),
        **{
            tool: {name: round(value, 3) for name, value in named.items()}
            for tool, named in figures.items()
        },
        "verdicts": verdicts,
        "verdicts_that_differ": [
            fault
            for fault in verdicts
            if fault["cosmic-ray"] is None  # it never ran
            or (fault["unfix"] == "killed") != (fault["cosmic-ray"] in ("killed", "incompetent"))
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", type=Path, required=True, metavar="DIR")
    parser.add_argument("--release", default=managed_releases.get_newest_release().name)
    parser.add_argument("--family", default="kv_indices")
    parser.add_argument("--suite", default="kv_indices")
    parser.add_argument("--profile", default="default")
    parser.add_argument("--faults", type=int, default=20, help="of the sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=1800.0, help="for cosmic-ray's command")
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        measured = compare(arguments, Path(root))
    sys.argv = ["TOOLS" if word == str(arguments.tools) else word for word in sys.argv]
    record(measured, arguments.record)
    return int(bool(measured["verdicts_that_differ"]))


if __name__ == "__main__":
    sys.exit(main())
