"""`unfix report --since`: the window, the content, the exit code, and the issues."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import simulated
from fixture_types import Output, Patch
from simulated import SimulatedNights

from harness.cli.main import main
from harness.cli.report import failure_search
from harness.core.errors import UnfixError
from harness.core.outcomes import Verdict
from harness.runs.history import time_window
from harness.runs.history.resource_prices import ResourcePrices, parse_prices
from reports.history import charts
from reports.history import page as history_page
from reports.history.view import HistoryView

HOSTILE = "<script>document.title='owned'</script> | `x` @all"


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: Patch) -> SimulatedNights:
    """Store four nights, of which the newest is last night."""
    now = datetime.datetime.now(datetime.UTC)
    night = time_window.find_night_start(time_window.night_from_moment(now))
    first = night + datetime.timedelta(days=-4, minutes=1)
    monkeypatch.setattr(simulated, "FIRST", first)
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return SimulatedNights(tmp_path / "runs.sqlite")


def report_nights(nights: SimulatedNights, *words: str, since: str = "30d") -> int:
    return main(["report", "--since", since, "--store", str(nights.file), *words])


def read_data(capsys: Output) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_exit_codes(nights: SimulatedNights, capsys: Output) -> None:
    assert report_nights(nights) == 3
    assert "holds no run since" in capsys.readouterr().err
    nights.prove(0, {"27460": "o"})
    assert report_nights(nights) == 0
    nights.prove(1, {"27460": "x"})
    assert report_nights(nights) == 1  # new
    nights.prove(2, {"27460": "x"})
    assert report_nights(nights) == 1  # known
    nights.prove(3, {"27460": "o"})
    assert report_nights(nights) == 0  # mended
    assert re.search(r"passes since \d{4}-\d\d-\d\d", capsys.readouterr().out)


@pytest.mark.parametrize("words", ["soon", "30", "0d", "-3d", "3y", "9" * 12 + "w", "2026-13-1"])
def test_a_time_that_is_none(nights: SimulatedNights, words: str, capsys: Output) -> None:
    assert main(["report", f"--since={words}", "--store", str(nights.file)]) == 2
    assert "say 30d, 12h, 2w or a date as 2026-11-01" in capsys.readouterr().err


def test_a_window_begins_with_a_whole_night() -> None:
    now = datetime.datetime(2026, 11, 22, 8, 0, tzinfo=datetime.UTC)
    for words in ("12h", "2026-11-21"):
        assert time_window.parse_since(words, now).isoformat() == "2026-11-21T12:00:00+00:00"
    assert time_window.parse_since("1w", now).isoformat() == "2026-11-14T12:00:00+00:00"
    with pytest.raises(UnfixError, match="in the future"):
        time_window.parse_since("2026-12-01", now)


def test_runs_before_the_window_are_not_read(nights: SimulatedNights, capsys: Output) -> None:
    nights.prove(0, {"27460": "x"})
    nights.prove(4, {"27460": "x"})
    report_nights(nights, "--json")
    assert read_data(capsys)["counts"]["known"] == 1
    report_nights(nights, "--json", since="1h")
    assert read_data(capsys)["counts"]["new"] == 1


def test_a_clock_that_is_wrong_is_told_and_left_out(
    nights: SimulatedNights, capsys: Output
) -> None:
    nights.prove(3, {"27460": "o"})
    ahead = nights.prove(3, {"27460": "x"}, started="2199-01-01T00:00:00+00:00")
    none = nights.prove(3, {"27460": "x"}, started="yesterday")
    assert report_nights(nights) == 0
    output = capsys.readouterr().out
    assert f"{ahead} began in the future (2199-01-01 00:00+00:00): a clock is wrong" in output
    assert f"the start of {none} is 'yesterday', which is no time" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--price", "cpu=1"], "needs --since TIME"),
        (["--issues", "x"], "needs --since TIME"),
        (["--since", "3d", "--list"], "leave out run ids, --list and --proofs"),
        (["--since", "3d", "--junit", "x"], "--junit does not go"),
        (["--since", "3d", "--bisect", "3m"], "--bisect needs --issues DIR"),
        (["--since", "3d", "--issues", "x", "--bisect", "soon"], "--bisect 'soon' is no budget"),
        (["--since", "3d", "--price", "cpu"], "--price cpu is no price"),
        (["--since", "3d", "--price", "cpu=nan"], "is no price"),
        (["--since", "3d", "--price", "cpu=1", "--price", "cpu=2"], "says twice"),
        (["--index", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_calls_that_are_wrong(
    nights: SimulatedNights, words: list[str], message: str, capsys: Output
) -> None:
    assert main(["report", *words]) == 2
    assert message in capsys.readouterr().err


def test_stores_of_machines_are_merged(
    nights: SimulatedNights, tmp_path: Path, capsys: Output
) -> None:
    other = SimulatedNights(tmp_path / "other.sqlite")
    other.number = 100
    nights.prove(2, {"27460": "o"})
    other.matrix(3, {"a": "x"})
    other.fuzz(3, ("0.5.18-padding-AssertionError-1",))
    other.evaluation(3, Verdict.SAME)
    into = tmp_path / "history" / "runs.sqlite"  # absent from the first of all nights
    words = ["report", "--since", "9d", "--json", "--store", str(into), "--merge"]
    for _ in range(2):  # a run that is merged twice counts once
        assert main([*words, str(nights.file), str(other.file)]) == 1
        found = read_data(capsys)
        assert found["counts"]["new"] == 2
        assert [len(night["runs"]) for night in found["nights"]] == [1, 3]


def test_money(nights: SimulatedNights, capsys: Output) -> None:
    for night in range(4):
        nights.matrix(night, {"cpu-cell": "o"}, seconds=1800)
        nights.matrix(night, {"gpu-cell": "x"}, seconds=10, device_seconds=3600)
    report_nights(nights, "--json", "--price", "cpu=0.5", "--price", "h200=3.5")
    (gpu,) = read_data(capsys)["things"]
    assert gpu["used"] == {"what": "h200", "seconds": 4 * 3600, "cost": 14.0}
    report_nights(nights, "--price", "cpu=0.5")
    output = capsys.readouterr().out
    assert "no --price for h200" in output
    assert "1.00 (2 h 0 min)" in output
    known = parse_prices(["cpu=1", "h200=2", "NVIDIA H200=3"])  # the longest name counts
    assert known.compute_cost("NVIDIA H200 NVL", 3600) == 3
    assert known.compute_cost("AMD EPYC", 3600) is None
    assert ResourcePrices().compute_cost("cpu", 3600) is None


def test_a_slower_item_is_reported(nights: SimulatedNights, capsys: Output) -> None:
    for night in range(5):
        nights.matrix(night, {"a": "o", "b": "o"}, seconds=10.0 if night < 4 else 16.0)
    report_nights(nights, "--json")
    assert [thing["times_slower"] for thing in read_data(capsys)["things"]] == [1.6, 1.6]


def test_a_jobs_summary_is_appended_to(
    nights: SimulatedNights, tmp_path: Path, monkeypatch: Patch
) -> None:
    nights.matrix(3, {HOSTILE: "x"})
    file = tmp_path / "summary.md"
    file.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    report_nights(nights, "--markdown", str(file))
    text = file.read_text()
    assert text.startswith("before\n## ✗ The nights since ")
    assert "✕ **new**" in text
    assert "<script" not in text
    history = nights.history("40d", datetime.datetime.now(datetime.UTC))
    page = history_page.render_page(history, ResourcePrices(), "abc")
    assert page.count("<script") == 1  # of every page
    assert "unfix <code>abc</code></div>" in page
    assert "1 new failure in the night of" in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_a_row_leads_to_the_page_of_the_run_that_failed(
    nights: SimulatedNights, tmp_path: Path
) -> None:
    for night, state in enumerate("xo"):
        nights.prove(night, {"27460": state})
    history = nights.history("40d", datetime.datetime.now(datetime.UTC))
    line = next(line for line in history.timelines if line.first_failed is not None)
    failed, passed = (point.main_observation.run_id for point in line.points)
    (tmp_path / f"{passed}.html").touch()
    link = f'<a href="{failed}.html">{line.item.title}'
    assert link not in history_page.render_page(history, ResourcePrices(), "abc", tmp_path)
    (tmp_path / f"{failed}.html").touch()
    assert link in history_page.render_page(history, ResourcePrices(), "abc", tmp_path)


def write_issues(nights: SimulatedNights, *words: str) -> dict[str, str]:
    folder = nights.file.parent / "issues"
    shutil.rmtree(folder, ignore_errors=True)
    report_nights(nights, "--issues", str(folder), *words)
    return {file.name: file.read_text() for file in sorted(folder.glob("*"))}


def test_an_issue_says_what_since_when_and_how_to_run_it_again(nights: SimulatedNights) -> None:
    nights.prove(1, {"27460": "o"}, commit="then", release="0.5.18")
    nights.prove(2, {"27460": "x"}, commit="now", release="0.5.18")
    nights.prove(2, {"27460": "o"}, commit="now", release="0.5.16")
    (name,) = found = write_issues(nights)
    text = found[name]
    assert name.startswith("prove-27460-rows-27460-on-0.5.18-cpu-")
    assert text.startswith("# prove: 27460: rows_27460 on 0.5.18, cpu fails\n")
    for words in (
        "**broken: assert 3 &gt;= 6**",
        "batch=Batch(lengths=(1,))",
        "AssertionError: 3 >= 6",
        "torch 2.13.0",
        "Changed between: unfix then → now.",
        "./unfix replay 27460",
        "with the same versions",
        "./unfix bisect releases --good 0.5.16 --bad 0.5.18 --device cpu -- suites/",
    ):
        assert words in text, words


def test_each_failure_has_one_issue(nights: SimulatedNights, capsys: Output) -> None:
    nights.prove(1, {"27460": "x"})
    assert len(write_issues(nights)) == 1
    nights.prove(2, {"27460": "x"})
    assert write_issues(nights) == {}
    assert "nothing new failed: no issue is written" in capsys.readouterr().err
    nights.matrix(2, {"a b": "x", "a-b": "x"})  # with the same slug
    assert len(write_issues(nights)) == 2


def test_a_failure_of_fuzzing_brings_its_file(nights: SimulatedNights) -> None:
    nights.fuzz(2, ("0.5.18-padding-AssertionError-1",))
    found = write_issues(nights)
    assert json.loads(found["0.5.18-padding-AssertionError-1.json"])["blob"] == "AAAA"
    (text,) = [text for name, text in found.items() if name.endswith(".md")]
    assert "./unfix fuzz --replay" in text
    assert "n=1" in text
    assert "bisect toggles --enable --release 0.5.18 -- python -m pytest suites/" in text


def test_a_fault_that_survives_brings_its_diff_and_who_passed_it(nights: SimulatedNights) -> None:
    nights.mutate(1, {"aaaa": Verdict.KILLED})
    nights.mutate(2, {"aaaa": Verdict.SURVIVED})
    (text,) = write_issues(nights).values()
    assert "-a + 1" in text
    assert "passed by suites/pool_sizing/test_pool_sizing.py::test_rows" in text
    target = "sglang.srt.mem_cache.memory_pool:ReqToTokenPool.alloc"
    assert f"./unfix mutate {target} --release 0.5.23 --fault aaaa" in text
    assert "No search fits: a fault that survives is about the suites" in text


def test_a_failure_that_no_search_fits_says_why(nights: SimulatedNights) -> None:
    nights.prove(2, {"27460": "t"})
    (text,) = write_issues(nights).values()
    assert "No search fits: a guard that is toothless shows no failure" in text
    nights.evaluation(2, Verdict.DIFFERS)
    (text,) = [text for text in write_issues(nights).values() if "eval" in text]
    assert "No search fits: an evaluation serves two configurations" in text
    assert "unfix eval cpu --only triton" in text


def test_a_stored_search_is_quoted(nights: SimulatedNights, monkeypatch: Patch) -> None:
    from harness.cli.report.failure_search import FailureSearches

    def fail_if_made(*_: object) -> None:
        raise AssertionError("it was made again")

    monkeypatch.setattr(FailureSearches, "_run_search", fail_if_made)
    nights.prove(2, {"27460": "x"})
    guard = f"{simulated.GUARD}_27460"
    summary = "27338: put in, it makes it pass."
    nights.search("found-it", guard, "0.5.18", "found", summary)
    (text,) = write_issues(nights, "--bisect", "10m").values()
    assert "27338: put in, it makes it pass. (search <code>found-it</code>)" in text


def test_a_search_about_something_else_is_not_quoted(nights: SimulatedNights) -> None:
    nights.prove(2, {"27460": "x"})
    for toggle, release in (("27338", "0.5.18"), ("27460", "0.5.9")):
        guard = f"{simulated.GUARD}_{toggle}"
        nights.search(f"of-{release}", guard, release, "", "another one")
    (text,) = write_issues(nights).values()
    assert "another one" not in text
    assert "It was not searched for yet" in text


def test_a_stopped_report_ends_a_search(
    nights: SimulatedNights, tmp_path: Path, monkeypatch: Patch
) -> None:
    file = tmp_path / "pid"
    script = f"echo $$ > {file}; kill -TERM $PPID; exec sleep 60"
    monkeypatch.setattr(failure_search, "UNFIX_COMMAND", ("sh", "-c", script))
    monkeypatch.setattr(failure_search, "MIN_SEARCH_SECONDS", 0.1)
    nights.matrix(2, {"a": "x"}, command="false")
    page = tmp_path / "history.html"
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        words = ("--issues", str(tmp_path / "issues"), "--bisect", "3s", "--html", str(page))
        assert report_nights(nights, *words) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not Path("/proc", file.read_text().strip()).exists()
    assert page.is_file()  # findings from before the search are shown


def test_an_index_leads_to_all_pages(nights: SimulatedNights, tmp_path: Path) -> None:
    nights.matrix(2, {HOSTILE: "x"})
    folder = tmp_path / "pages"
    report_nights(
        nights, "--html", str(folder / "history.html"), "--issues", str(folder / "issues")
    )
    assert main(["report", "--index", str(folder)]) == 0
    page = (folder / "index.html").read_text()
    assert 'href="history.html"' in page
    assert 'href="issues/matrix-' in page
    assert page.count("<script") == 1  # of every page


@pytest.mark.parametrize("prices", [[], ["cpu=0.0003"]], ids=["hours", "money"])
def test_the_labels_of_a_chart_begin_inside_of_it(
    nights: SimulatedNights, prices: list[str]
) -> None:
    nights.matrix(0, {"a": "o"}, seconds=317.0)
    view = HistoryView(
        nights.history(now=datetime.datetime.now(datetime.UTC)), parse_prices(prices)
    )
    chart = charts.make_cost_chart(view)
    assert chart is not None
    for _, label in chart.ticks:
        end = chart.left - 6
        assert end - charts.LETTER_WIDTH * len(label) >= 0, label
    assert max(len(label) for _, label in chart.ticks) >= 5
