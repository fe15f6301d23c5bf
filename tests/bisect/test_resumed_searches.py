"""A stopped search resumes and a log replays, both only as the same search."""

from __future__ import annotations

import json

from bisecting import Bisect
from calling import run_program
from test_toggle_searches import STATIC, WIDTH, fails_if


def test_a_search_that_was_stopped_goes_on_where_it_was(bisect: Bisect) -> None:
    command = bisect.script(fails_if(WIDTH))
    bisect.stop_after(4, command)
    before = bisect.runs
    script = bisect.root / "check.py"
    text = script.read_text()
    script.write_text(text + "\n")
    changed = bisect.run("--resume")
    assert changed.returncode == 2
    assert "have changed since" in changed.stderr
    script.write_text(text)
    found = bisect.search("--resume")
    assert found["toggle_searches"][0]["minimal_sets"] == [["toy-class-body"]]
    # Only the run that was interrupted is run twice.
    assert bisect.runs <= len(found["trials"]) + 1
    assert before >= 4
    again = bisect.run("--resume")
    assert again.returncode == 2
    assert " is finished" in again.stderr


def test_a_search_goes_on_only_as_it_began(bisect: Bisect) -> None:
    command = bisect.script(fails_if(WIDTH))
    bisect.stop_after(3, command)
    # A wrong call in between is not resumed.
    assert bisect.run(command=bisect.script("sys.exit(1)", "other.py")).returncode == 2
    held = {**bisect.environment, "SGLANG_DEBUG_REVERT_PR": "toy-static"}
    for folder, environment, says in (
        (bisect.root, held, "no toggle"),
        (bisect.root / "guards", bisect.environment, "began in"),
    ):
        folder.mkdir(exist_ok=True)
        done = run_program(bisect.words("--resume", command=[]), cwd=folder, env=environment)
        assert done.returncode == 2
        assert says in done.stderr
    assert bisect.search("--resume")["toggle_searches"][0]["minimal_sets"] == [["toy-class-body"]]


def test_the_log_replays_and_runs_nothing(bisect: Bisect) -> None:
    command = bisect.script(fails_if(f"{WIDTH} and {STATIC}"))
    record = bisect.root / "record.json"
    found = bisect.search("--record", str(record), command=command)
    runs = bisect.runs
    for log in (found["id"], str(record)):
        again = bisect.search("--replay", log)
        parts = [one["toggle_searches"][0]["minimal_sets"] for one in (again, found)]
        assert parts[0] == parts[1]
        assert [t["toggles"] for t in again["trials"]] == [t["toggles"] for t in found["trials"]]
    assert bisect.runs == runs


def test_a_log_that_leads_elsewhere_is_refused(bisect: Bisect) -> None:
    record = bisect.root / "record.json"
    bisect.search("--record", str(record), command=bisect.script(fails_if(WIDTH)))
    log = json.loads(record.read_text())
    cut = {**log, "trials": log["trials"][:-3]}
    part = {**log["toggle_searches"][0], "minimal_sets": [["toy-plain"]]}
    wrong = {**log, "toggle_searches": [part]}
    for changed, says in ((cut, "holds no run"), (wrong, "its runs lead to")):
        record.write_text(json.dumps(changed))
        done = bisect.run("--replay", str(record))
        assert done.returncode == 2
        assert says in done.stderr
