"""The night's workflow: each of its commands exists in this checkout, with those options."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import yaml

from harness.cli import main
from harness.core import paths
from harness.core.errors import CommandLineError
from harness.releases import managed_releases

FOLDER = paths.project_folder() / ".github" / "workflows"
GIVEN = {"matrix.shard": "1", "matrix.of": "4", "matrix.release": "0.5.18"}
GIVEN["inputs.shards || '4'"] = "4"


def scripts() -> list[tuple[str, str]]:
    found = []
    for file in sorted(FOLDER.glob("*.yml")):
        for name, job in yaml.safe_load(file.read_text())["jobs"].items():
            found += [(name, step["run"]) for step in job["steps"] if "run" in step]
    return found


def commands(script: str) -> list[list[str]]:
    """Return the calls of unfix in a step, with the workflow's values filled in."""
    filled = re.sub(r"\$\{\{\s*(.*?)\s*\}\}", lambda found: GIVEN[found[1]], script)
    joined = filled.replace("\\\n", " ")
    inner = [found[1] for found in re.finditer(r"\$\((\./unfix [^)]*)\)", joined)]
    lines = [line for line in joined.splitlines() if line.strip().startswith(("./unfix", "unfix"))]
    return [shlex.split(line)[1:] for line in [*lines, *inner]]


EVERY = [words for _, script in scripts() for words in commands(script)]


def parse_words(words: list[str]) -> Any:
    if words[0] == "test":  # the rest is pytest's
        assert all((paths.project_folder() / word).exists() for word in words[1:])
        words = words[:1]
    return main.build_parser(words[0]).parse_args(words)


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_each_command_of_the_night_is_there(words: list[str]) -> None:
    assert parse_words(words).command == words[0]


def test_what_is_not_there_would_be_noticed() -> None:
    with pytest.raises(CommandLineError):
        parse_words(["drift", "--no-such-option"])
    assert commands("x=$(./unfix list --json)") == [["list", "--json"]]
    script = "./unfix prove \\\n  --shard ${{ matrix.shard }}/4"
    assert commands(script) == [["prove", "--shard", "1/4"]]


def test_the_releases_that_are_named_are_managed() -> None:
    known = {release.name for release in managed_releases.list_releases()}
    for file in FOLDER.glob("*.yml"):
        for job in yaml.safe_load(file.read_text())["jobs"].values():
            matrix = job.get("strategy", {}).get("matrix", {})
            named = matrix.get("release", []) if isinstance(matrix, dict) else []
            assert set(named) <= known


def test_what_is_kept_is_kept_of_red_nights_too() -> None:
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
    kinds = ("fuzz", "eval", "mutate", "zoo", "gpu")
    assert stores == {"prove", "matrix", *(f"store-{kind}" for kind in kinds)}
    (history,) = [words for words in EVERY if "--since" in words]
    assert history[history.index("--merge") + 1] == "nights/*/runs.sqlite"
