"""The commands as a user calls them: output, exit codes, errors."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from calling import measure_processor_seconds, run_program
from forked import call_unfix

from harness.core import paths
from harness.releases import managed_releases

NEWEST = managed_releases.get_newest_release().name


def read_terminal(*words: str, **environment: str) -> str:
    """Return what a command prints on a terminal, without colours."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [paths.project_folder() / "unfix", *words], stdout=theirs, env={**os.environ, **environment}
    ):
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(ours, 1 << 16):
                text += part
    os.close(ours)
    return re.sub(r"\x1b\[[\d;]*m", "", text.decode()).replace("\r\n", "\n")


def test_list_shows_every_toggle_with_its_state() -> None:
    done = call_unfix("list", "--release", NEWEST)
    assert done.returncode == 0
    for path in (paths.project_folder() / "toggles").glob("*.yaml"):
        assert f"{path.stem} " in done.stdout
    assert f"toggles, on SGLang {NEWEST}" in done.stdout
    assert "of these 27338, 27460 no longer apply" in done.stdout
    assert call_unfix("list", "--release", NEWEST, COLUMNS="80").stdout == done.stdout
    narrow = read_terminal("list", "--release", NEWEST, COLUMNS="80").partition("\n\n")[0]
    assert max(map(len, narrow.splitlines())) <= 80
    data = json.loads(call_unfix("list", "--json", "--release", "0.5.9", "kv_indices").stdout)
    assert {row["id"]: row["state"] for row in data["toggles"]} == dict.fromkeys(
        ("27338", "27460", "kv-indices-size-check"), "buggy"
    )
    assert data["release"] == "0.5.9"


def test_list_is_instant() -> None:
    """Compare with its unavoidable imports, in seconds of a processor."""
    least = [sys.executable, "-c", "import argparse, json, msgspec, rich.console, rich.table"]
    listing = [sys.executable, "-m", "harness", "list"]
    best: dict[str, float] = {}
    for _ in range(3):
        for name, command in (("least", least), ("listing", listing)):
            run = partial(run_program, command, check=True, cwd=paths.project_folder())
            took = measure_processor_seconds(run)
            best[name] = min(took, best.get(name, took))
    assert best["listing"] < 8 * best["least"]


def test_show_prints_the_patch_that_would_run() -> None:
    done = call_unfix("show", "27460", "--release", "0.5.18")
    assert done.returncode == 0
    assert "on SGLang 0.5.18: fixed" in done.stdout
    assert "+        kv_indices_width = draft_kv_indices_buffer_width(max_bs, 1," in done.stdout


def test_show_of_a_release_that_has_the_bug_shows_the_fix_that_enable_puts_in() -> None:
    [data] = json.loads(call_unfix("show", "27460", "--release", "0.5.9", "--json").stdout)
    assert (data["state"], data["does"]) == ("buggy", "enable")
    assert "+            (self.speculative_num_steps, max_bs * self.topk" in data["diff"]
    shown = json.loads(call_unfix("show", "23268", "--release", "0.5.11", "--json").stdout)
    assert [data["id"] for data in shown] == ["23268-fused-qk-split", "23268-kv-prefix-lens"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("show", "27461"), 2, "no toggle is called '27461'; near it: 27460"),
        (("list", "--release", "0.5.99"), 2, "'0.5.99' is no managed release; there are 0.5.9"),
        (("list", "--release", "/nowhere/at/all"), 3, "is neither a wheel or a checkout of sglang"),
        (("list", "--release", "current"), 3, "no SGLang is installed in this interpreter"),
        (("list", "--toggles", "/nowhere"), 2, "there is no folder of toggles at /nowhere"),
        (("drift", "--from", "/nowhere.whl"), 2, "there is no file /nowhere.whl"),
        (("frobnicate",), 2, "invalid choice: 'frobnicate'"),
        (("exec", "--revert", "27460"), 2, "exec needs a command"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(words: tuple[str, ...], code: int, message: str) -> None:
    done = call_unfix(*words)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_toggle_file_ends_every_command_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("id: broken\ntitel: t\n")
    folder = ["--toggles", str(tmp_path)]
    exec_words = ["exec", "--revert", "broken", *folder, "--", "true"]
    for words in (["list", *folder], ["drift", *folder], exec_words):
        done = call_unfix(*words)
        assert done.returncode == 2
        assert "broken.yaml:2: unknown key `titel`" in done.stderr


def test_a_reader_that_goes_away_is_no_error() -> None:
    words = f"{sys.executable} -m harness list --json | head -1"
    done = run_program(["bash", "-o", "pipefail", "-c", words], cwd=paths.project_folder())
    assert (done.returncode, done.stderr) == (0, "")


def test_help_of_every_command() -> None:
    for command in ("list", "show", "drift", "exec", "releases", "doctor", "test"):
        done = call_unfix(command, "--help")
        assert done.returncode == 0
        assert "usage: unfix" in done.stdout


def test_a_narrow_terminal_still_tells_the_releases_apart() -> None:
    import io

    from rich.console import Console

    from harness.cli import drift as drift_command
    from harness.fixes.drift import survey_drift
    from harness.fixes.registry import toggle_catalogue

    trees = [release.open_sources() for release in managed_releases.list_releases()]
    drift = survey_drift(toggle_catalogue.load_catalogue().select("kv_indices"), trees)
    written = io.StringIO()
    drift_command.print_drift(drift, Console(file=written, width=80, force_terminal=False))
    header, first, *_ = written.getvalue().splitlines()
    names = [release.name.removeprefix("0.5") for release in managed_releases.list_releases()]
    assert header.split() == ["toggle", *names]
    assert first.split() == ["27338", *["BUG"] * 4, *["fix"] * 7]


def test_a_toggle_may_stand_behind_the_places_of_from() -> None:
    wheel = managed_releases.get_release("0.5.18").any_wheel
    done = call_unfix("drift", "--json", "--from", str(wheel), "27460")
    [column] = json.loads(done.stdout)["releases"]
    assert [row["id"] for row in column["toggles"]] == ["27460"]
    assert [row["id"] for row in column["upstream"]] == ["27338", "27460"]


def test_a_test_that_is_not_there_installs_nothing() -> None:
    done = call_unfix("test", "tests/no_such_test.py")
    assert done.returncode == 2
    assert "there is no tests/no_such_test.py" in done.stderr


def test_every_file_that_the_documents_name_is_there() -> None:
    import re

    root = paths.project_folder()
    documents = {*root.glob("*.md"), *root.glob("docs/**/*.md")}
    for document in documents - {root / "CHANGELOG.md"}:  # which tells of files that are gone
        for name in re.findall(
            r"[`(]((?:harness|tests|docs|bench|fixtures)/[\w./-]+)[`)]", document.read_text()
        ):
            written = name.replace("VERSION", "base").replace("FAMILY", "kv_indices")
            there = (root / written).exists()
            assert there, f"{document.name} names {name}"
