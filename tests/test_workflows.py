"""The night's workflow: each of its commands exists in this checkout, with those options."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli import main
from harness.core import paths
from harness.core.errors import CommandLineError
from harness.store.pr.values import PrPart
from reports.pr import markdown

FOLDER = paths.project_folder() / ".github" / "workflows"
VALUES = {"SHARD": "1", "OF": "4", "SHARDS": "4", "RELEASE": "0.5.18", "FEATURES": ""}


def list_scripts() -> list[tuple[str, str]]:
    found = []
    for file in sorted(FOLDER.glob("*.yml")):
        for name, job in yaml.safe_load(file.read_text())["jobs"].items():
            found += [(name, step["run"]) for step in job["steps"] if "run" in step]
    return found


def list_commands(script: str) -> list[list[str]]:
    """Return the calls of unfix in a step, with the workflow's values filled in."""
    # Words that are left out if a variable is empty.
    script = re.sub(
        r"\$\{([A-Z]+):\+([^}]*)\}", lambda f: f[2] if VALUES.get(f[1], f[1]) else "", script
    )
    filled = re.sub(r"\$([A-Z]+)\b", lambda found: VALUES.get(found[1], found[0]), script)
    joined = filled.replace("\\\n", " ")
    inner = [found[1] for found in re.finditer(r"\$\((\./unfix [^)]*)\)", joined)]
    lines = [line for line in joined.splitlines() if line.strip().startswith(("./unfix", "unfix"))]
    return [shlex.split(line)[1:] for line in [*lines, *inner]]


EVERY = [words for _, script in list_scripts() for words in list_commands(script)]


def parse_words(words: list[str]) -> Any:
    if words[0] == "test":  # the rest is pytest's
        pairs = pairwise(words)  # an option, and the value of one, are no files
        files = [word for before, word in pairs if word[0] != "-" != before[0]]
        assert all((paths.project_folder() / file).exists() for file in files)
        words = words[:1]
    if "--" in words:  # the rest is another program's
        words = words[: words.index("--")]
    return main.build_parser(words[0]).parse_args(words)


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_each_command_of_the_night_is_there(words: list[str]) -> None:
    assert parse_words(words).command == words[0]


def test_an_unknown_option_would_be_noticed() -> None:
    with pytest.raises(CommandLineError):
        parse_words(["drift", "--no-such-option"])
    assert list_commands("x=$(./unfix list --json)") == [["list", "--json"]]
    script = './unfix prove \\\n  --shard "$SHARD/4"'
    assert list_commands(script) == [["prove", "--shard", "1/4"]]


def test_artifacts_are_kept_of_red_nights_too() -> None:
    jobs = yaml.safe_load((FOLDER / "nightly.yml").read_text())["jobs"].values()
    steps = [step for job in jobs for step in job["steps"] if "uses" in step]
    keeping = [one for one in steps if re.search(r"/(upload-artifact|cache/save)@", one["uses"])]
    assert len(keeping) > 8
    assert all(step.get("if") == "always()" for step in keeping)
    # Its own saving is skipped when an earlier step fails.
    assert not [step for step in steps if step["uses"].startswith("actions/cache@")]


def test_the_report_takes_every_store_in() -> None:
    text = (FOLDER / "nightly.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    stores = {
        step["with"]["name"].partition("${{")[0].rstrip("-")
        for job in jobs.values()
        for step in job["steps"]
        if step.get("with", {}).get("path") == ".unfix/runs.sqlite"
    }
    kinds = ("fuzz", "eval", "mutate", "cuda-kernels", "zoo", "features", "gpu")
    assert stores == {"prove", "matrix", *(f"store-{kind}" for kind in kinds)}
    writers = {
        name
        for name, job in jobs.items()
        if any(step.get("with", {}).get("path") == ".unfix/runs.sqlite" for step in job["steps"])
    }
    assert writers - set(jobs["report"]["needs"]) == {"gpu"}  # which may wait long for a machine
    (history,) = [words for words in EVERY if "--since" in words]
    assert history[history.index("--merge") + 1] == "nights/*/runs.sqlite"


def test_each_nightly_test_is_run_by_a_job() -> None:
    tests = paths.project_folder() / "tests"
    nightly = {
        file.relative_to(tests.parent)
        for file in tests.rglob("test_*.py")
        if re.search(r'^\W*pytest\.mark\.skipif\("UNFIX_NIGHTLY"', file.read_text(), re.MULTILINE)
    }
    assert len(nightly) >= 3
    steps = [
        step
        for job in yaml.safe_load((FOLDER / "nightly.yml").read_text())["jobs"].values()
        for step in job["steps"]
    ]
    run = {
        Path(word)
        for step in steps
        if step.get("env", {}).get("UNFIX_NIGHTLY") == "1"
        for words in list_commands(step["run"])
        for word in words[1:]
    }
    assert {file for file in nightly if not {file, *file.parents} & run} == set()


def test_tests_that_need_the_cuda_toolkit_run_where_it_is_installed() -> None:
    tests = paths.project_folder() / "tests"
    needing = {
        file.relative_to(tests.parent)
        for file in tests.rglob("test_*.py")
        if re.search(
            r"pytest\.mark\.skipif\(\s*cuda_toolkit\.find_toolkit\(\) is None", file.read_text()
        )
    }
    assert len(needing) >= 2
    job = yaml.safe_load((FOLDER / "nightly.yml").read_text())["jobs"]["cuda-kernels"]
    calls = [words for step in job["steps"] for words in list_commands(step.get("run", ""))]
    assert ["releases", "add", "cuda-toolkit"] in calls
    run = {Path(word) for words in calls if words[0] == "test" for word in words[1:]}
    assert {file for file in needing if not {file, *file.parents} & run} == set()
    executed = [words for words in calls if words[0] == "exec"]
    assert any("pytest" in words and "suites/cuda_kernels" in words for words in executed)


def test_a_run_that_is_red_keeps_no_other_run_from_its_turn() -> None:
    """A step after one that failed is skipped unless it says otherwise."""
    setting_up = ("releases add", "matrix plan", "matrix shards", "kernels --build")
    for name, job in yaml.safe_load((FOLDER / "nightly.yml").read_text())["jobs"].items():
        runs = [
            step
            for step in job["steps"]
            if any(
                not " ".join(words).startswith(setting_up)
                for words in list_commands(step.get("run", ""))
            )
        ]
        for step in runs[1:]:
            assert re.search(r"always\(\)|cancelled\(\)", str(step.get("if", ""))), (name, step)


# The review of a pull request of SGLang: an action, a workflow that reads, one that writes

ROOT = paths.project_folder()
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
REVIEW = yaml.safe_load((FOLDER / "review.yml").read_text())
COMMENT = yaml.safe_load((FOLDER / "review-comment.yml").read_text())
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


def steps_of(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def all_steps() -> list[dict[str, Any]]:
    workflows = [yaml.safe_load(file.read_text()) for file in sorted(FOLDER.glob("*.yml"))]
    return [*(step for each in workflows for step in steps_of(each)), *ACTION["runs"]["steps"]]


def test_no_value_of_a_workflow_is_read_as_a_script() -> None:
    """Values come through the environment: a branch may be called `$(anything)`."""
    scripts = [step["run"] for step in all_steps() if "run" in step]
    assert len(scripts) > 20
    assert [found for script in scripts for found in EXPRESSION.findall(script)] == []


def test_the_code_of_others_is_pinned_to_a_commit() -> None:
    """A tag can be moved; each action has one commit everywhere, with its version beside it."""
    pins: dict[str, set[str]] = {}
    for file in [*FOLDER.glob("*.yml"), ROOT / "action.yml"]:
        for line in file.read_text().splitlines():
            if found := re.match(r"[\s-]*uses: (?!\./)(.*)", line):
                pin = re.fullmatch(
                    r"([\w-]+/[\w-]+)[\w/-]*(@[0-9a-f]{40} # v\d+\.\d+\.\d+)", found[1]
                )
                assert pin, f"{file.name}: {line}"
                pins.setdefault(pin[1], set()).add(pin[2])
    assert len(pins) >= 6
    assert all(len(versions) == 1 for versions in pins.values()), pins


def test_no_checkout_leaves_its_token_behind() -> None:
    checkouts = [one for one in all_steps() if one.get("uses", "").startswith("actions/checkout")]
    assert len(checkouts) > 15
    assert all(one.get("with", {}).get("persist-credentials") is False for one in checkouts)


def test_a_job_that_runs_a_pull_request_cannot_write_and_one_that_writes_runs_nothing_of_it() -> (
    None
):
    assert REVIEW["permissions"] == {"contents": "read"}
    assert not [job for job in REVIEW["jobs"].values() if "permissions" in job]
    used = [step.get("uses", "") for step in steps_of(COMMENT)]
    assert not [one for one in used if one.startswith(("actions/checkout", "./"))]
    assert not [words for step in steps_of(COMMENT) for words in list_commands(step.get("run", ""))]


def test_the_review_the_comment_and_the_action_name_inputs_and_steps_that_are_there() -> None:
    for name in ("review.yml", "review-comment.yml"):
        text = (FOLDER / name).read_text()
        workflow = yaml.safe_load(text)
        declared = workflow[True]["workflow_call"]["inputs"]  # YAML reads `on` as true
        assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(declared)
        for job in workflow["jobs"].values():
            used_steps = set(re.findall(r"steps\.([\w-]+)", yaml.safe_dump(job)))
            assert used_steps <= {step.get("id") for step in job["steps"]}
    for step in steps_of(REVIEW):
        if step.get("uses") == "./unfix":
            assert set(step["with"]) <= set(ACTION["inputs"])
    named = re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text())
    assert set(named) == set(ACTION["inputs"])
    assert all("shell" in step for step in ACTION["runs"]["steps"] if "run" in step)


def test_a_cache_is_looked_up_by_the_paths_that_it_was_saved_under() -> None:
    """The paths of a cache are part of its version as they are written."""
    steps = [*ACTION["runs"]["steps"], *steps_of(REVIEW)]
    caches = [step for step in steps if step.get("uses", "").startswith("actions/cache/")]
    assert len(caches) == 3
    assert len({step["with"]["path"] for step in caches}) == 1


def test_the_parts_of_all_machines_are_the_whole_review() -> None:
    rows = REVIEW["jobs"]["review"]["strategy"]["matrix"]["part"]
    assert [part for row in rows for part in row.split(",")] == list(PrPart)


def test_the_script_of_the_action_runs_here(tmp_path: Path) -> None:
    """With an `unfix` that writes its words down: what it writes, and how it ends."""
    (tmp_path / ".ci").mkdir()
    script = tmp_path / ".ci" / "review"
    script.write_bytes((ROOT / ".ci" / "review").read_bytes())
    fake = tmp_path / "unfix"
    fake.write_text(FAKE_UNFIX)
    fake.chmod(0o755)
    (tmp_path / "sglang").mkdir()
    environment = {
        **os.environ,
        "CHECKOUT": "sglang",
        "RANGE": "a...$(touch bad)",
        "ONLY": "zoo",
        "OUT": "out",
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }
    done = subprocess.run(["bash", script], cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode == 1, done.stderr
    words = (tmp_path / "words").read_text().splitlines()
    assert words[:5] == ["pr", str(tmp_path / "sglang"), "a...$(touch bad)", "--only", "zoo"]
    assert parse_words(words).command == "pr"
    assert (tmp_path / "output").read_text() == "code=1\n"
    assert (tmp_path / "summary").read_text() == "a review\n"
    assert not (tmp_path / "bad").exists()
    environment["ONLY"] = ""  # as the action passes it, if it has no `only`
    subprocess.run(["bash", script], cwd=tmp_path, env=environment, capture_output=True)
    assert "--only" not in (tmp_path / "words").read_text().splitlines()
    del environment["RANGE"]
    environment["BASE"] = "main"
    subprocess.run(["bash", script], cwd=tmp_path, env=environment, capture_output=True)
    words = (tmp_path / "words").read_text().splitlines()
    assert words == ["pr", str(tmp_path / "sglang"), "--base", "main"]
    assert parse_words(words).command == "pr"


FAKE_UNFIX = """#!/usr/bin/env bash
printf '%s\\n' "$@" > words
while [ $# -gt 0 ]; do
    if [ "$1" = --markdown ]; then echo "a review" > "$2"; fi
    shift
done
exit 1
"""
FAKE_GH = """#!/usr/bin/env bash
echo "$@" >> calls
if [ "$2" = --paginate ]; then echo {}; fi
"""


@pytest.mark.parametrize(
    ("listed", "call"),
    [("17", "PATCH repos/o/r/issues/comments/17"), ("", "POST repos/o/r/issues/5/comments")],
)
def test_a_comment_is_edited_if_it_is_there(tmp_path: Path, listed: str, call: str) -> None:
    (tmp_path / "gh").write_text(FAKE_GH.format(listed))
    (tmp_path / "gh").chmod(0o755)
    (script,) = [one["run"] for one in steps_of(COMMENT) if "gh api" in one.get("run", "")]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GH_REPO": "o/r", "NUMBER": "5"}
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    last = (tmp_path / "calls").read_text().splitlines()[-1]
    assert f"{call} " in last
    assert "body=@unfix-review/review.md" in last
    assert markdown.MARKER in script


def test_the_number_of_a_pull_request_is_a_number(tmp_path: Path) -> None:
    (script,) = [one["run"] for one in steps_of(COMMENT) if "[[" in one.get("run", "")]
    (tmp_path / "unfix-review").mkdir()
    for text, code in (("12\n", 0), ("1; rm -r /\n", 1)):
        (tmp_path / "unfix-review" / "number").write_text(text)
        environment = {"PATH": os.environ["PATH"], "GITHUB_OUTPUT": str(tmp_path / "output")}
        done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=environment)
        assert done.returncode == code


def test_each_hook_of_pre_commit_calls_a_command_that_is_there() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    for hook in hooks:
        program, *words = shlex.split(hook["entry"])
        assert program == "unfix"
        assert parse_words(words).command == words[0]
        assert re.search(hook["files"], "python/sglang/srt/models/llama.py")
        assert not re.search(hook["files"], "docs/index.md")
