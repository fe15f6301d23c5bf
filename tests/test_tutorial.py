"""The tutorial is true: every command on the page runs here, and prints the page's output."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harness.core import paths

ROOT = paths.project_folder()
PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(
    r'^```(?P<kind>\w+)(?: title="(?P<file>[^"]+)")?\n(?P<text>.*?)^```', re.M | re.S
)
ANYTHING = "…"


def read_blocks() -> Iterator[tuple[str, str, str]]:
    for match in BLOCK.finditer(PAGE.read_text()):
        yield match["kind"], match["file"] or "", match["text"]


def find_lines(shown: str, output: str) -> list[str]:
    """Return the lines of the page that the output lacks, in the page's order."""
    printed = iter([" ".join(line.split()) for line in output.splitlines()])
    missing = []
    for line in shown.splitlines():
        pieces = [re.escape(" ".join(piece.split())) for piece in line.split(ANYTHING)]
        pattern = re.compile(" ?.* ?".join(pieces))
        if line.strip() != ANYTHING and not any(pattern.fullmatch(one) for one in printed):
            missing.append(line)
    return missing


def test_every_command_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path) -> None:
    commands = 0
    for kind, file, text in read_blocks():
        if file:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_text(text)
        elif kind == "console":
            command, _, shown = text.removeprefix("$ ").partition("\n")
            done = subprocess.run(
                ["sh", "-c", command.replace("./unfix", str(ROOT / "unfix"))],
                cwd=tmp_path, capture_output=True, text=True, timeout=300,
            )  # fmt: skip
            output = f"{done.stderr}\n{done.stdout}\n{done.stderr}"
            assert find_lines(shown, output) == [], f"{command}\n{output}"
            commands += 1
    assert commands == 5


def test_a_line_that_is_not_printed_is_found() -> None:
    assert find_lines("a …\nb", "a 1 s\nc\nb") == []
    assert find_lines("a\nb", "b\na") == ["b"]
    assert find_lines("a 2 s", "a 1 s") == ["a 2 s"]
