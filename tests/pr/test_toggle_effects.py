"""What a change does to a fix is found from the sources of both ends, and is the headline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkouts import SglangCheckout
from fixture_types import Output
from made_up_toggle import FIXED_FORM
from reviewed_files import ROWS

from harness.cli.main import main


def review_change(checkout: SglangCheckout, toggles: Path, capsys: Output, ends: str) -> Any:
    capsys.readouterr()
    words = ["pr", str(checkout.folder), ends, "--only", "toggles", "--json"]
    code = main([*words, "--toggles", str(toggles)])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if found["green"] else 1)
    return found


@pytest.mark.parametrize(
    ("code", "effect", "is_green"),
    [
        (FIXED_FORM.replace(" + 1", ""), "taken back", False),
        (FIXED_FORM.replace("size", "number"), "mended", True),
        ("make_table((size * 3, WIDTH, 4))", "stale", False),
        ("make_table(  (size + 1,  WIDTH))", None, True),
    ],
)
def test_each_change_of_a_fix_has_its_name(
    checkout: SglangCheckout,
    toggles: Path,
    capsys: Output,
    code: str,
    effect: str | None,
    is_green: bool,
) -> None:
    text = ROWS.replace(FIXED_FORM, code)
    if effect == "mended":
        text = text.replace("count_rows(size)", "count_rows(number)")
    checkout.commit({"srt/rows.py": text})
    found = review_change(checkout, toggles, capsys, "v0.5.23..HEAD")
    changes = {one["id"]: one for one in found["toggles"]}
    assert found["green"] is is_green
    assert (changes["made-up"]["effect"] if effect else None) == effect
    if effect:
        assert changes["made-up"]["path"] == "python/sglang/srt/rows.py"
    else:
        assert changes == {}


def test_a_fix_that_is_taken_back_is_the_headline_at_its_line(
    checkout: SglangCheckout, toggles: Path, capsys: Output
) -> None:
    checkout.commit({"srt/rows.py": ROWS.replace(FIXED_FORM, FIXED_FORM.replace(" + 1", ""))})
    found = review_change(checkout, toggles, capsys, "v0.5.23..HEAD")
    assert found["headline"] == "takes back 1 fix: made-up (a row is one short)"
    (change,) = found["toggles"]
    assert (change["before"], change["after"], change["line"]) == ("fixed", "buggy", 10)
    # The other way round it brings the fix in, and code that goes is gone.
    checkout.commit({"srt/rows.py": ROWS})
    found = review_change(checkout, toggles, capsys, "HEAD~1..HEAD")
    assert found["headline"] == "brings in 1 fix: made-up"
    assert found["green"]


def test_the_files_as_they_are_can_be_reviewed(
    checkout: SglangCheckout, toggles: Path, capsys: Output
) -> None:
    file = checkout.folder / "python" / "sglang" / "srt" / "rows.py"
    file.write_text(ROWS.replace(FIXED_FORM, FIXED_FORM.replace(" + 1", "")))
    (checkout.folder / "notes.txt").write_text("not of the package")
    found = review_change(checkout, toggles, capsys, "HEAD..")
    assert found["toggles"][0]["effect"] == "taken back"
    assert found["head"].endswith("+dirty")
    assert [one["path"] for one in found["files"]] == ["python/sglang/srt/rows.py"]
    assert found["others"] == ["notes.txt"]


def test_three_dots_are_what_a_branch_changed_since_it_left(
    checkout: SglangCheckout, toggles: Path, capsys: Output
) -> None:
    checkout.git("branch", "feature")
    checkout.commit({"srt/rows.py": ROWS.replace(FIXED_FORM, FIXED_FORM.replace(" + 1", ""))})
    checkout.git("checkout", "-q", "feature")
    checkout.commit({"srt/user.py": "VALUE = 1\n"})
    assert review_change(checkout, toggles, capsys, "main...feature")["toggles"] == []
    # Two dots compare the ends: main has lost the fix that feature still has.
    assert review_change(checkout, toggles, capsys, "main..feature")["toggles"][0]["effect"] == (
        "brought in"
    )


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["main"], "'main' is no range: say BASE..HEAD"),
        (["v0.5.23..HEAD"], "is one commit"),
        (["nowhere..HEAD"], "has no commit 'nowhere'"),
        (["main..HEAD", "--only", "lint"], "--only lint is no part: there are toggles, suites"),
        ([], "it needs a checkout and a range"),
    ],
)
def test_a_call_that_is_wrong_says_what_would_be_right(
    checkout: SglangCheckout, capsys: Output, words: list[str], hint: str
) -> None:
    capsys.readouterr()
    assert main(["pr", str(checkout.folder), *words]) == 2
    assert hint in capsys.readouterr().err


def test_the_parts_of_two_machines_are_joined(
    checkout: SglangCheckout, toggles: Path, tmp_path: Path, capsys: Output
) -> None:
    checkout.commit({"srt/rows.py": ROWS.replace(FIXED_FORM, FIXED_FORM.replace(" + 1", ""))})
    record = tmp_path / "first.json"
    words = ["pr", str(checkout.folder), "v0.5.23..HEAD", "--toggles", str(toggles)]
    assert main([*words, "--only", "toggles", "--record", str(record)]) == 1
    other = json.loads(record.read_text())
    other |= {"toggles": [], "parts": ["zoo"], "planned": ["zoo"]}
    other["architectures"] = [{"name": "llama", "why": "launches a kernel"}]
    (tmp_path / "second.json").write_text(json.dumps(other))
    capsys.readouterr()
    join = ["pr", "--join", str(record), str(tmp_path / "second.json"), "--json"]
    assert main([*join, "--only", "toggles,zoo"]) == 1
    whole = json.loads(capsys.readouterr().out)
    assert whole["parts"] == ["toggles", "zoo"]
    assert whole["toggles"][0]["effect"] == "taken back"
    assert [one["name"] for one in whole["architectures"]] == ["llama"]
    assert not [problem for problem in whole["problems"] if "incomplete" in problem]
    # A machine whose part is missing is named: all parts are expected unless the call says which.
    assert main(join) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert "incomplete: not run to the end: suites, kernels, rehearse, audit, faults" in problems
    other["head"] = "another"
    (tmp_path / "second.json").write_text(json.dumps(other))
    assert main(["pr", "--join", str(record), str(tmp_path / "second.json")]) == 2
    assert "these are reviews of several changes" in capsys.readouterr().err
