"""What a record of lines hangs on."""

from __future__ import annotations

from pathlib import Path

from harness.runs.mutate import line_coverage
from harness.runs.mutate.line_coverage import CoverageRecord, GuardCoverage
from harness.store.prove.values import SideOutcome


def test_a_change_in_one_suite_costs_the_record_of_that_suite_alone(tmp_path: Path) -> None:
    guards = {}
    for suite in ("one", "other"):
        (tmp_path / suite).mkdir()
        (tmp_path / suite / "test_it.py").write_text("")
        name = f"{suite}/test_it.py::test_it"
        digest = line_coverage.digest_suite(name, tmp_path)
        guards[name] = GuardCoverage(name, SideOutcome.PASSED, 1.0, suite=digest)
    failed = "one/test_it.py::test_ill"
    ill = GuardCoverage(
        failed, SideOutcome.OUT_OF_MEMORY, 1.0, suite=guards["one/test_it.py::test_it"].suite
    )
    file = tmp_path / "record.json"
    line_coverage.save_coverage(file, CoverageRecord("key", {**guards, failed: ill}))
    assert line_coverage.load_coverage(file, "key", tmp_path).guards == guards
    assert line_coverage.load_coverage(file, "another", tmp_path).guards == {}

    (tmp_path / "other" / "cases.yaml").write_text("- 1\n")
    line_coverage._digest_folder.cache_clear()
    assert list(line_coverage.load_coverage(file, "key", tmp_path).guards) == [
        "one/test_it.py::test_it"
    ]
