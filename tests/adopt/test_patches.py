"""Reading diffs, and the messages for diffs that give no toggle."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Output

from harness.cli import progress_display
from harness.cli.main import main
from harness.core.errors import UnfixError
from harness.fixes.adopt import fix_diff
from harness.releases import provisioning
from harness.releases.managed_releases import Release
from harness.releases.source_trees import SourceTree

CODE = "python/sglang/srt/layers/thing.py"
HUNK = "@@ -1,3 +1,3 @@\n def f(n):\n-    return n\n+    return n + 1\n \n"


def make_diff(path: str = CODE, hunk: str = HUNK) -> str:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n{hunk}"


def test_a_formatted_patch_says_its_title_and_number() -> None:
    subject = "Subject: [PATCH 2/3] Fix the width of\n rows (#28788)\n\n---\n"
    head = f"From 0123 Mon Sep 17 00:00:00 2001\n{subject}"
    found = fix_diff.parse_diff(head + make_diff(), "x")
    assert (found.title, found.pull_requests) == ("Fix the width of rows", (28788,))
    assert [file.module for file in found.files] == ["sglang.srt.layers.thing"]


def test_a_shown_commit_says_its_title() -> None:
    head = "commit 0123456789\nAuthor: A\nDate: today\n\n    Fix rows (#7)\n\n    More.\n\n"
    found = fix_diff.parse_diff(head + make_diff(), "x")
    assert (found.title, found.pull_requests) == ("Fix rows", (7,))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (make_diff("test/registered/test_x.py"), "test"),
        (make_diff("README.md"), "no code of SGLang's runtime"),
        (f"diff --git a/{CODE} b/{CODE}\nnew file mode 1\n--- /dev/null\n+++ b/{CODE}\n"
         "@@ -0,0 +1 @@\n+x\n", "new file"),
        (f"diff --git a/{CODE} b/{CODE}\n--- a/{CODE}\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n",
         "deleted"),
        (f"diff --git a/{CODE} b/{CODE}\nBinary files a/x and b/x differ\n", "binary"),
        ("diff --git a/python/sglang/srt/a.py b/python/sglang/srt/b.py\nrename from "
         "python/sglang/srt/a.py\nrename to python/sglang/srt/b.py\n", "renamed"),
    ],
)  # fmt: skip
def test_what_is_no_part_of_a_toggle_says_why(text: str, why: str) -> None:
    (file,) = fix_diff.parse_diff(text, "x").files
    assert why in file.exclusion_reason


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("just words\n", "holds no diff"),
        ("a\0b", "binary file"),
        (make_diff(hunk="@@ -1,3 +1,9 @@\n def f(n):\n"), "truncated"),
    ],
)
def test_what_is_no_diff_is_refused_in_a_sentence(text: str, says: str) -> None:
    with pytest.raises(UnfixError, match=says):
        fix_diff.parse_diff(text, "fix.diff")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (make_diff(), "applies to none of 11 releases"),
        (make_diff("vllm/attention.py"), "changes nothing of SGLang's runtime"),
        (make_diff(hunk=HUNK.replace("def f(n):", "def no_such(n):")), "none has"),
    ],
)
def test_a_misfitting_diff_is_refused(text: str, says: str, tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "fix.diff"
    file.write_text(text)
    words = ["adopt", str(file), "--as", "1", "--title", "t", "--symptom", "crash", "--dry-run"]
    assert main(words) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no-such.diff"], "there is no file no-such.diff"),
        (["--repo", "/no/such", "abc"], "there is no folder"),
        (["--repo", str(Path(__file__).parents[2]), "no-such"], "has no commit 'no-such'"),
        (["--between", "0.5.1", "0.5.9", "x"], "'0.5.1' is no managed release"),
        (["--between", "0.5.10", "0.5.9", "no_such_function"], "between 0.5.9 and 0.5.10"),
        (["--ask"], "--ask needs toggles"),
        (["--guard", "25418"], "for one toggle at a time"),
        (["--guard", "37666"], "is a guard of 37666 already"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(words: list[str], says: str, capsys: Output) -> None:
    assert main(["adopt", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_comparison_reads_two_releases_and_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    fetched: list[str] = []
    ensure = provisioning.ensure_sources

    def note(releases: Sequence[Release], report: Any) -> list[SourceTree]:
        fetched.extend(release.name for release in releases)
        return ensure(releases, report)

    monkeypatch.setattr(provisioning, "ensure_sources", note)
    monkeypatch.setattr(progress_display, "FIRST_INTERVAL", 0.05)
    assert main(["adopt", "--between", "0.5.10", "0.5.9", "no_such_function"]) == 2
    assert fetched == ["0.5.9", "0.5.10"]
    assert re.search(r"comparing 0\.5\.9 with 0\.5\.10: \d+ of \d{4}", capsys.readouterr().err)


def test_the_first_commit_has_nothing_before_it(tmp_path: Path, capsys: Output) -> None:
    commit = "-c user.name=a -c user.email=a commit -q --allow-empty -m first".split()
    for words in (["init", "-q"], commit):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    assert main(["adopt", "--repo", str(tmp_path), "HEAD"]) == 2
    assert "it is the first commit there" in capsys.readouterr().err


def test_a_taken_id_is_refused_before_anything_is_followed(capsys: Output) -> None:
    words = ["--between", "0.5.15", "0.5.16", "decode_attention", "_fwd_kernel_stage1"]
    story = ["--hunks", "2", "--as", "28788", "--title", "t", "--symptom", "overflow"]
    assert main(["adopt", *words, *story]) == 2
    messages = capsys.readouterr().err
    assert "'28788' already stands for 28788-" in messages
    assert "following" not in messages
