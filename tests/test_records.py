"""Records say when they were measured, and are not left behind by two releases of this project."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.core import paths
from harness.store.record_files import read_record_text

FOLDER = paths.project_folder() / "bench" / "recorded"
RELEASED = re.compile(r"^## (\d[\w.]*) \((\d{4}-\d\d-\d\d)\)$", re.MULTILINE)
# Of before records said it: whoever records one anew takes it out.
UNDATED = {
    "audit-0.5.23.json.xz",
    "audit-since-0.5.9.json.xz",
    "cuda-builds-0.5.23.json.xz",
    "kernels-0.5.23.json.xz",
}


def iterate_dates(value: Any, depth: int = 2) -> Iterator[str]:
    """Iterate the days that a record names for a run or a machine."""
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        if key in ("date", "started") and re.match(r"\d{4}-\d\d-\d\d", str(inner)):
            yield str(inner)[:10]
        elif depth:
            yield from iterate_dates(inner, depth - 1)


def list_record_dates() -> dict[str, str]:
    """List the newest day of each record; '' for one that names none."""
    return {
        str(file.relative_to(FOLDER)): max(
            iterate_dates(json.loads(read_record_text(file))), default=""
        )
        for file in sorted(FOLDER.rglob("*.json*"))
    }


def list_left_behind(changelog: str, dates: dict[str, str]) -> list[str]:
    """List the records that are older than the release before the newest one."""
    released = sorted(day for _, day in RELEASED.findall(changelog))
    limit = released[-2] if len(released) > 1 else ""
    return [name for name, day in dates.items() if day and day < limit]


def test_each_record_names_its_day() -> None:
    assert {name for name, day in list_record_dates().items() if not day} == UNDATED


def test_no_record_is_left_behind_by_two_releases() -> None:
    changelog = (Path(paths.project_folder()) / "CHANGELOG.md").read_text()
    assert list_left_behind(changelog, list_record_dates()) == []


def test_a_record_from_before_the_last_release_but_one_is_named() -> None:
    changelog = "## 0.3.0 (unreleased)\n\n## 0.2.0 (2027-02-01)\n\n## 0.1.0 (2027-01-01)\n"
    dates = {"old": "2026-12-31", "kept": "2027-01-01", "new": "2027-02-02"}
    assert list_left_behind(changelog, dates) == ["old"]
