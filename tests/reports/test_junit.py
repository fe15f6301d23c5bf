"""The XML for CI systems: every cell that is not proven is a failure there."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import sample

from harness.store.prove.values import ProveRun
from reports.prove import junit


def write_and_parse(run: ProveRun, folder: Path) -> ElementTree.Element:
    file = folder / "new" / "junit.xml"
    junit.write_junit(run, file)
    return ElementTree.parse(file).getroot()


def test_a_green_run_has_a_suite_for_each_release_and_a_case_for_each_cell(tmp_path: Path) -> None:
    run = sample.make_run()
    root = write_and_parse(run, tmp_path)
    assert [suite.get("name") for suite in root] == [f"SGLang {r} on cpu" for r in sample.RELEASES]
    counts = [root.get(name) for name in ("tests", "failures", "skipped")]
    assert counts == [str(len(run.cells)), "0", "6"]
    case = (root.findall("testcase") + root.findall("testsuite/testcase"))[0]
    assert case.get("classname") == "suites.kv_indices.test_kv_indices"
    assert case.get("name") == "test_padding_changes_nothing_for_the_requests[27460]"
    assert case.get("time") == "0.840"
    messages = {skipped.get("message") for skipped in root.iter("skipped")}
    assert messages == {"n/a: the code is not in this release"}
    properties = {one.get("name"): one.get("value") for one in root.iter("property")}
    assert properties["version.torch"] == "2.13.0"
    assert properties["machine.cores"] == "2"
    assert properties["command"] == "./unfix prove --all-releases"


def test_every_cell_that_is_not_good_is_a_failure_with_all_that_was_seen(tmp_path: Path) -> None:
    run = sample.make_run_of_every_verdict()
    root = write_and_parse(run, tmp_path)
    bad = [cell for cell in run.cells if not (cell.verdict and cell.verdict.is_good)]
    failures = [one for case in root.iter("testcase") if (one := case.find("failure")) is not None]
    kinds = sorted(failure.get("type", "") for failure in failures)
    wanted = [cell.verdict.value if cell.verdict else "missing" for cell in bad]
    assert kinds == sorted([*wanted, "collection", "unguarded"])
    assert root.get("failures") == str(len(wanted) + 2)
    toothless = next(f for f in failures if f.get("type") == "toothless")
    assert "passed with the fix reverted, its code ran 16 times" in str(toothless.text)
    assert "replay: ./unfix prove" in str(toothless.text)
    text = "".join(str(failure.text) for failure in failures if failure.get("type") == "broken")
    assert "</script><script>window.broken = 1</script><b>bold</b> [bold red]" in text
    assert "日本語 🧪" in text
    assert not set("\x00\x07\x0b\x1b\ud800") & set(text)


def test_a_run_that_found_nothing_fails(tmp_path: Path) -> None:
    root = write_and_parse(sample.make_empty_run(), tmp_path)
    assert root.get("failures") == "2"
    run = msgspec.structs.replace(sample.make_run(), cells=[])
    assert int(write_and_parse(run, tmp_path).get("failures", "0")) > 0
