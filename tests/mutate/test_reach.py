"""What a record of lines hangs on."""

from __future__ import annotations

from pathlib import Path

from harness.mutate import reach
from harness.mutate.reach import Reached, Reaches
from harness.store.prove.values import Outcome


def test_a_change_in_one_suite_costs_the_record_of_that_suite_alone(tmp_path: Path) -> None:
    guards = {}
    for suite in ("one", "other"):
        (tmp_path / suite).mkdir()
        (tmp_path / suite / "test_it.py").write_text("")
        name = f"{suite}/test_it.py::test_it"
        digest = reach.suite_of(name, tmp_path)
        guards[name] = Reached(name, Outcome.PASSED, 1.0, suite=digest)
    failed = "one/test_it.py::test_ill"
    ill = Reached(failed, Outcome.OUT_OF_MEMORY, 1.0, suite=guards["one/test_it.py::test_it"].suite)
    file = tmp_path / "record.json"
    reach.save(file, Reaches("key", {**guards, failed: ill}))
    assert reach.load(file, "key", tmp_path).guards == guards
    assert reach.load(file, "another", tmp_path).guards == {}

    (tmp_path / "other" / "cases.yaml").write_text("- 1\n")
    reach._of_folder.cache_clear()
    assert list(reach.load(file, "key", tmp_path).guards) == ["one/test_it.py::test_it"]
