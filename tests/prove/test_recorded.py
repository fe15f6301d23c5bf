"""The registry states where each toggle was proven, and no more than the records contain."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from harness.store.prove import recorded_proofs
from harness.store.record_files import write_record

KNOWN = ["0.5.9", "0.5.10", "0.5.11", "0.5.12"]
GPU = {"gpu": "NVIDIA H200, 580.1"}


def keep_record(
    folder: Path, name: str, started: str, cells: Sequence[tuple[str, str, str, str | None]]
) -> None:
    """Write a record: its cells as release, device, toggle and verdict."""
    places = sorted({(release, device) for release, device, _, _ in cells})
    run = {
        "kind": "prove",
        "started": started,
        "releases": [
            {"release": release, "device": device, "machine": GPU if device == "cuda" else {}}
            for release, device in places
        ],
        "cells": [
            dict(zip(("release", "device", "toggle", "verdict"), cell, strict=True))
            for cell in cells
        ],
    }
    write_record(folder / f"{name}.json.xz", json.dumps(run))


def describe_proofs(folder: Path) -> dict[str, list[str]]:
    found = recorded_proofs.load_proofs(KNOWN, folder)
    return {toggle: [proof.describe(KNOWN) for proof in proofs] for toggle, proofs in found.items()}


def test_each_machine_is_named_with_its_releases_and_the_date(tmp_path: Path) -> None:
    cells = [(release, "cpu", "one", "proven") for release in ("0.5.12", "0.5.9", "0.5.10")]
    keep_record(tmp_path, "cpu", "2026-11-21T20:00:00", cells)
    keep_record(tmp_path, "gpu", "2026-11-22T20:00:00", [("0.5.10", "cuda", "one", "proven")])
    write_record(tmp_path / "other.json.xz", '{"cells": 3}')
    assert describe_proofs(tmp_path) == {
        "one": ["CPU 0.5.9 to 0.5.10, 0.5.12 (2026-11-21)", "H200 0.5.10 (2026-11-22)"]
    }


def test_a_toggle_is_proven_where_all_that_applies_is_and_something_does(tmp_path: Path) -> None:
    words = ("proven", "n/a", "toothless", "broken", None)
    for count in range(1, len(words) + 1):
        for verdicts in itertools.combinations(words, count):
            cells = [("0.5.9", "cpu", "one", verdict) for verdict in verdicts]
            keep_record(tmp_path, "cpu", "2026-11-21", cells)
            proven = "proven" in verdicts and {*verdicts} <= {"proven", "n/a"}
            assert bool(describe_proofs(tmp_path)) == proven, verdicts


def test_a_later_record_takes_back_what_an_earlier_one_says(tmp_path: Path) -> None:
    keep_record(
        tmp_path, "b", "2026-11-21", [(r, "cpu", "one", "proven") for r in ("0.5.9", "0.5.10")]
    )
    keep_record(tmp_path, "a", "2026-11-22", [("0.5.10", "cpu", "one", "toothless")])
    assert describe_proofs(tmp_path) == {"one": ["CPU 0.5.9 (2026-11-21)"]}


def test_a_later_run_that_could_not_tell_takes_nothing_back(tmp_path: Path) -> None:
    keep_record(tmp_path, "b", "2026-11-21", [("0.5.9", "cpu", "one", "proven")])
    for verdict in ("out-of-memory", "broken", "n/a", None):
        keep_record(tmp_path, "a", "2026-11-22", [("0.5.9", "cpu", "one", verdict)])
        assert describe_proofs(tmp_path) == {"one": ["CPU 0.5.9 (2026-11-21)"]}
