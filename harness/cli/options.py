"""Options and output that several commands share."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.command_parser import find_nearest_word
from harness.core.errors import CommandLineError, UnfixError, UnknownToggleError

if TYPE_CHECKING:
    from rich.console import Console

    from harness.fixes.registry.schema import Toggle
    from harness.fixes.registry.toggle_catalogue import ToggleCatalogue


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable output on stdout")


def add_release(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--release",
        metavar="R",
        help="a managed version, 'current', or the path of a wheel or a checkout "
        "(default: the SGLang of this interpreter, else the newest managed one here)",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="on cuda managed releases stand beside the torch of this machine",
    )


def add_directions(parser: argparse.ArgumentParser) -> None:
    for word, does in (("revert", "take these fixes out"), ("enable", "put these fixes in")):
        parser.add_argument(
            f"--{word}", action="append", default=[], metavar="IDS", help=f"{does} (a,b,…)"
        )


def add_toggle_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--toggles",
        metavar="DIR",
        action="append",
        default=[],
        type=Path,
        help="a further folder of toggle files (they run code: name only what you trust)",
    )


def load_catalogue(arguments: argparse.Namespace) -> ToggleCatalogue:
    from harness.fixes.registry import toggle_catalogue as module

    return module.load_catalogue(arguments.toggles)


def select_toggles_or_all(
    catalogue: ToggleCatalogue, names: Sequence[str], usage: str
) -> list[Toggle]:
    """Those that words name, where a word may as well be meant as a path."""
    try:
        return catalogue.select_or_all(names)
    except UnknownToggleError as error:
        raise CommandLineError(f"{error}; nor is it a file or folder", usage) from error


def split_names_and_paths(
    words: Sequence[str], usage: str, catalogue: ToggleCatalogue | None = None
) -> tuple[list[str], list[str]]:
    """Words apart: names, and paths of what is there, with a node if one is said.

    A bare word is a path only where names are known and it is none of them.
    """
    names, places = [], []
    for word in words:
        file = Path(word.partition("::")[0])
        if "/" in word or "::" in word or word.endswith(".py"):
            if not file.exists():
                beside = [entry.name for entry in file.parent.glob("*")]
                near = find_nearest_word(file.name, beside)
                hint = f"; near it: {file.with_name(near)}" if near else ""
                raise CommandLineError(f"there is no file or folder {file}{hint}", usage)
            places.append(word)
        elif catalogue is not None and file.exists() and not catalogue.has_match(word):
            places.append(word)
        else:
            names.append(word)
    return names, places


def make_console() -> Console:
    from rich.console import Console as RichConsole

    class Console(RichConsole):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # main() knows what to do; rich would end with 1

    # A pipe has no width of its own: a table in a log is never cut.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def print_diff(out: Console, diff: str) -> None:
    from harness.cli import run_kinds

    run_kinds.import_report("shared", "terminal").print_diff(out, diff)


def print_json(value: Any) -> None:
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


TIME_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


def parse_budget(text: str, name: str) -> float:
    """Seconds from words like 30m."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    parts = found.groups() if found else (None, None, None)
    seconds = sum(
        float(part or 0) * unit for part, unit in zip(parts, TIME_UNITS.values(), strict=True)
    )
    if not 0 < seconds < math.inf:
        raise UnfixError(f"{name} {text} is no budget: say 45s, 30m, 8h or 1h30m")
    return seconds


def report_notes(error: BaseException) -> None:
    """What went wrong besides, after an error or a stop."""
    for note in getattr(error, "__notes__", ()):
        report_status(note)


def report_status(message: str) -> None:
    """What a command is doing, for the person who waits for it."""
    sys.stderr.write(f"unfix: {message}\n")  # in one piece, whoever else writes
