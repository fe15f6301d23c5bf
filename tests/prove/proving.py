"""A small release with planted bugs, and guards of every kind over it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from calling import TOY, Caller, wait_until
from forked import UNFIX

from harness.store.database import Store
from harness.store.prove.table import ProveTable
from harness.store.prove.values import ProveRun

HEAD = """
import os, signal, subprocess, sys, threading, time
import pytest
from hypothesis import given, strategies as st
from sglang import forms
from harness.guards import skip_not_applicable

guards = pytest.mark.guards

def buggy():
    return forms.plain(1, 2) != 4

# A run may write nothing that outlives it, except to a file that its worker has open.
NAMES = ("each", "first", "home", "once", "orphans", "pids", "ran", "second", "seen", "third",
         "until", "where", "written")
OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT
FILES = {name: os.open(os.path.join(SHARED, name), OPEN) for name in NAMES}

def note(name, text="x"):
    os.write(FILES[name], text.encode())
    return os.fstat(FILES[name]).st_size

def notes(name):
    return open(os.path.join(SHARED, name)).read()

def here_it_hangs():
    while True:
        time.sleep(1)
"""


class Prove(Caller):
    """`unfix prove` over guards that are defined in the test, with a store of its own."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.guards = root / "guards"
        self.guards.mkdir()
        self.toggles = root / "toggles"
        self.toggles.mkdir()
        self.shared = root / "shared"  # what guards note for their test
        self.shared.mkdir()

    def write(self, text: str, name: str = "test_toy.py", head: str = HEAD) -> None:
        shared = f"SHARED = {str(self.shared)!r}\n"
        (self.guards / name).write_text((shared + head if head else "") + text)

    def command(self, *words: str, kind: str = "prove", names: tuple[str, ...] = ()) -> list[str]:
        folders = ["--toggles", str(TOY / "toggles"), "--toggles", str(self.toggles)]
        options = [*names, "--release", "current", *folders, *words]
        pytest_words = [] if "--" in words else ["--", str(self.guards)]
        return [*UNFIX, kind, *options, *pytest_words]

    def run(
        self, *words: str, kind: str = "prove", names: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        return self.call(self.command(*words, kind=kind, names=names))

    def start(self, *words: str) -> subprocess.Popen[str]:
        return self.begin(self.command(*words))

    def wait_for(self, verdicts: int) -> ProveRun:
        """Wait until the run has this many verdicts; return it."""
        found: list[ProveRun] = []

        def has_verdicts() -> bool:
            file = self.root / ".unfix" / "runs.sqlite"
            if file.exists() and file.stat().st_size:
                store = Store(file)
                runs = [ProveTable(store).get(run.id) for run in ProveTable(store).list_runs()]
                store.close()
                for run in runs:
                    if run.cells and sum(c.verdict is not None for c in run.cells) >= verdicts:
                        found.append(run)
            return bool(found)

        wait_until(has_verdicts)
        return found[0]

    def cells(self, *words: str, **options: Any) -> dict[str, dict[str, Any]]:
        """Return every cell of a run by its guard's own name."""
        done = self.run("--json", *words, **options)
        assert done.stdout, done.stderr
        return by_guard(json.loads(done.stdout))


def by_guard(run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {cell["guard"].partition("::test_")[2]: cell for cell in run["cells"]}
