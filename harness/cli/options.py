"""Options, requests and output that several commands share."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harness.cli.command_parser import parse_path
from harness.core.cpp_tokens import is_cpp_path
from harness.core.device import VIRTUAL
from harness.core.errors import (
    CommandLineError,
    NotReadyError,
    UnfixError,
    UnknownToggleError,
)
from harness.core.wording import find_nearest_word

if TYPE_CHECKING:
    from rich.console import Console

    from harness.fixes.matching.toggle_status import ToggleStatus
    from harness.fixes.registry.schema import Toggle
    from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
    from harness.releases.source_trees import SourceTree


RequestType = TypeVar("RequestType")


def make_request(kind: type[RequestType], arguments: argparse.Namespace) -> RequestType:
    """Make the frozen request of a command; each field is the argument of that name."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: getattr(arguments, name) for name in names})


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable output on stdout")


def add_release(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--release",
        metavar="R",
        help="a managed version, 'current', or the path of a wheel or a checkout "
        "(default: the SGLang of this interpreter, else the newest managed one here)",
    )


def add_device(parser: argparse.ArgumentParser, with_virtual: bool = False) -> None:
    text = "on cuda managed releases stand beside the torch of this machine"
    if with_virtual:
        text += "; on virtual torch has a GPU that is not here, and kernels run on the CPU"
    choices = ("cpu", "cuda", VIRTUAL) if with_virtual else ("cpu", "cuda")
    parser.add_argument("--device", choices=choices, default="cpu", help=text)


def add_directions(parser: argparse.ArgumentParser) -> None:
    for word, effect in (("revert", "revert these fixes"), ("enable", "apply these fixes")):
        parser.add_argument(
            f"--{word}",
            action="extend",
            type=_split_ids,
            default=[],
            metavar="IDS",
            help=f"{effect} (a,b,…)",
        )


def _split_ids(text: str) -> list[str]:
    from harness.patching import bootstrap

    ids = bootstrap.split_ids(text)
    if not ids:
        raise argparse.ArgumentTypeError(f"'{text}' names no toggle; `unfix list` has their ids")
    return ids


def split_names(text: str) -> list[str]:
    """Split 'a,b' into names: the type of an option with the action `extend`."""
    return [name for name in text.split(",") if name]


def add_toggle_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--toggles",
        metavar="DIR",
        action="append",
        default=[],
        type=lambda word: parse_path(word).resolve(),  # workers run in other folders
        help="a further folder of toggle files (they run code: name only what you trust)",
    )


def load_catalogue(arguments: argparse.Namespace) -> ToggleCatalogue:
    from harness.fixes.registry import toggle_catalogue as module

    return module.load_catalogue(arguments.toggles)


def select_toggles_or_all(
    catalogue: ToggleCatalogue, names: Sequence[str], usage: str
) -> list[Toggle]:
    """Select the toggles that words name, or all; an unknown word is an error."""
    try:
        toggles = catalogue.select_or_all(names)
    except UnknownToggleError as error:
        raise CommandLineError(f"{error}; nor is it a file or folder", usage) from error
    report_meanings({name: catalogue.describe_match(name) for name in names})
    return toggles


def report_meanings(meanings: Mapping[str, str]) -> None:
    """Say on stderr what a command takes the words of its call for.

    One word can be several things: `kv_indices` is a family of toggles and a suite. A path and the
    id of a toggle are one thing alone, so nothing is said of them. Words without a meaning are
    errors, which come later.
    """
    known = [
        f"'{word}' is {meaning}"
        for word, meaning in meanings.items()
        if meaning not in ("", "a toggle") and not word.startswith((".", "/"))
    ]
    if known:
        report_status("; ".join(known))


def split_names_and_paths(
    words: Sequence[str], usage: str, catalogue: ToggleCatalogue | None = None
) -> tuple[list[str], list[str]]:
    """Split words into names and existing paths, perhaps with a test's node id.

    A bare word is a path only if a catalogue is given and has no toggle of that name. The path of
    a C++ source inside of the package is a name, as that of a module.
    """
    names, found_paths = [], []
    for word in words:
        file = Path(word.partition("::")[0])
        if is_cpp_path(word.partition(":")[0]):
            names.append(word)
        elif "/" in word or "::" in word or word.endswith(".py"):
            if not file.exists():
                beside = [entry.name for entry in file.parent.glob("*")]
                near = find_nearest_word(file.name, beside)
                hint = f"; near it: {file.with_name(near)}" if near else ""
                raise CommandLineError(f"there is no file or folder {file}{hint}", usage)
            found_paths.append(word)
        elif catalogue is not None and file.exists() and not catalogue.has_match(word):
            found_paths.append(word)
        else:
            names.append(word)
    return names, found_paths


def find_tree(name: str | None, fetch: bool) -> SourceTree | None:
    """Find the sources of a release; None if the call names none and none is installed."""
    from harness.releases import managed_releases

    try:
        if fetch:
            from harness.releases import provisioning  # imported late: takes 10 ms

            return provisioning.ensure_tree(name, report_status)
        return managed_releases.open_release_tree(name)
    except NotReadyError as error:
        if name is not None:
            raise
        report_status(f"{error}; states are left out")
        return None


STATE_STYLES = {"fixed": "green", "buggy": "yellow", "absent": "dim", "stale": "bold red"}


def make_console() -> Console:
    from rich.console import Console as RichConsole

    class Console(RichConsole):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # main() handles it; rich would exit with 1

    return Console(highlight=False, width=get_output_width())


def get_output_width() -> int:
    """Return the terminal's width; a pipe has none: a table in a log is whole.

    COLUMNS says nothing of a pipe: each process that has imported `readline` passes it on.
    """
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 200


def print_diff(out: Console, diff: str) -> None:
    from reports.shared import terminal

    terminal.print_diff(out, diff)


def toggle_to_json(toggle: Toggle, status: ToggleStatus | None) -> dict[str, Any]:
    """Return the fields of a toggle for the JSON of `list` and `show`."""
    return {
        "id": toggle.id,
        "state": status.state.value if status else None,
        "family": toggle.family,
        "symptom": toggle.symptom.value,
        "devices": [device.value for device in toggle.devices],
        "upstream": list(toggle.upstream),
        "title": toggle.title,
    }


def print_json(value: Any) -> None:
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


def parse_budget(text: str, name: str) -> float:
    """Return seconds from '45s', '30m', '1h30m'."""
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    parts = match.groups("0") if match else ("0", "0", "0")
    hours, minutes, seconds = map(float, parts)
    total = 3600 * hours + 60 * minutes + seconds
    if not 0 < total < math.inf:
        raise UnfixError(f"{name} '{text}' is no budget: say 45s, 30m, 8h or 1h30m")
    return total


def report_notes(error: BaseException) -> None:
    """Print the notes of an error: further problems that followed it."""
    for note in getattr(error, "__notes__", ()):
        report_status(note)


def report_status(message: str) -> None:
    """Print the progress of a command."""
    sys.stderr.write(f"unfix: {message}\n")  # one write: child processes write here too
