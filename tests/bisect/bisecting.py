"""`unfix bisect` over the toy release, with commands written in the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import forked
from calling import PATIENCE_SECONDS, TOY, copy_toy_release, wait_until

from harness.core import paths

Ended = subprocess.CompletedProcess[str]
Log = dict[str, Any]

NAMES = ("class-body", "constant", "overlap", "plain", "static")
SOME = tuple(f"toy-{name}" for name in NAMES)


class Bisect:
    """A workspace to search in, with a store of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = TOY
        self.ran = root / "ran"
        self.stop = root / "stop"  # the number of the run that waits until this file is gone
        self.names: tuple[str, ...] = SOME

    def buggy(self, *replaced: tuple[str, str]) -> None:
        """Return a copy of the toy release without some fixes."""
        self.package = self.root / "toy"
        copy_toy_release(self.package / "sglang")
        forms = self.package / "sglang" / "forms.py"
        text = forms.read_text()
        for fixed, bug in replaced:
            assert text.count(fixed) == 1
            text = text.replace(fixed, bug)
        forms.write_text(text)

    def script(self, text: str, name: str = "check.py") -> list[str]:
        """Return a command; each of its runs appends a line to a file."""
        file = self.root / name
        file.write_text(
            "import os, signal, subprocess, sys, time\nfrom sglang import forms\n"
            f"open({str(self.ran)!r}, 'a').write('ran\\n')\n"
            f"while os.path.exists({str(self.stop)!r}) and len(open({str(self.ran)!r}).readlines())"
            f" >= int(open({str(self.stop)!r}).read()):\n    time.sleep(0.05)\n{text}\n"
        )
        return ["python", str(file)]

    @property
    def runs(self) -> int:
        return len(self.ran.read_text().splitlines()) if self.ran.exists() else 0

    @property
    def environment(self) -> dict[str, str]:
        found_by = os.pathsep.join((str(paths.project_folder()), str(self.package)))
        ours = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        return {**ours, "UNFIX_HOME": str(self.root), "PYTHONPATH": found_by}

    def words(self, *options: str, kind: str = "toggles", command: list[str]) -> list[str]:
        where = [*self.names, "--release", "current"] if kind == "toggles" else []
        folders = ["--toggles", str(TOY / "toggles")]
        again = "--resume" in options or "--replay" in options
        first = folders if again else [*where, *folders]
        behind = ["--", *command] if command else []
        return [*forked.UNFIX, "bisect", kind, *first, *options, *behind]

    def run(self, *options: str, kind: str = "toggles", command: list[str] | None = None) -> Ended:
        words = self.words(*options, kind=kind, command=command or [])
        return forked.run_unfix(words, self.root, self.environment)

    def stop_after(self, runs: int, command: list[str]) -> None:
        """Begin a search, and stop it after this many runs."""
        self.stop.write_text(str(runs))
        going = subprocess.Popen(self.words(command=command), cwd=self.root, env=self.environment)
        wait_until(lambda: self.runs >= runs)
        going.send_signal(signal.SIGTERM)
        assert going.wait(timeout=PATIENCE_SECONDS) == 130
        self.stop.unlink()

    def report(self, *words: str) -> Ended:
        return forked.run_unfix([*forked.UNFIX, "report", *words], self.root, self.environment)

    def search(self, *options: str, kind: str = "toggles", command: list[str] | None = None) -> Log:
        done = self.run("--json", *options, kind=kind, command=command)
        assert done.stdout, done.stderr
        found: Log = json.loads(done.stdout)
        return found

    def sets(self, *options: str, command: list[str]) -> list[list[str]]:
        """Return the culprits of a search over toggles; assert that they are proven."""
        found = self.search(*options, command=command)
        assert found["verdict"] == "found", found["summary"]
        sets: list[list[str]] = found["toggle_searches"][0]["minimal_sets"]
        return sets
