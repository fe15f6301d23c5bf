"""Failures as files: written as they are found, read to be run again, kept as regressions."""

from __future__ import annotations

import ast
import datetime
import hashlib
import re
import shlex
from pathlib import Path

import msgspec

from harness.core import paths
from harness.core.errors import NotReadyError, UnfixError
from harness.runs.fuzz.messages import FailureRecord, FoundFailure, RunFailure, ToggleDirections

FORMAT_VERSION = 1


def locate_failures_folder() -> Path:
    return paths.state_folder() / "fuzz" / "failures"


def make_failure_record(
    failure: FoundFailure,
    test: str,
    release: str,
    under: ToggleDirections,
    versions: dict[str, str],
    seed: int,
    detail: str,
) -> FailureRecord:
    return FailureRecord(
        format=FORMAT_VERSION,
        test=test,
        error=failure.error,
        where=failure.where,
        kind=failure.kind,
        headline=failure.headline,
        release=release,
        under=under,
        blob=failure.blob,
        arguments=failure.arguments,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions=versions,
        seed=seed,
        shrunk=failure.shrunk,
        examples=failure.examples,
        detail=detail,
    )


def name_failure(failure: FailureRecord, key: str) -> str:
    """The same failure has the same name each night, on whichever machine."""
    bare = failure.test.partition("::")[2] or failure.test
    digest = hashlib.sha256(f"{failure.test} | {key} | {failure.under}".encode()).hexdigest()[:6]
    words = f"{failure.release}-{bare.removeprefix('test_')[:60]}-{failure.error}-{digest}"
    return re.sub(r"[^\w.-]+", "_", words)


def write_failure(failure: FailureRecord, key: str, toggle_folders: list[Path]) -> RunFailure:
    name = name_failure(failure, key)
    file = locate_failures_folder() / f"{name}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write_atomically(file, failure)
    except OSError as error:
        raise NotReadyError(
            f"{name} cannot be written to {file.parent}: {error.strerror or error}; its example "
            f"of {failure.test} is {failure.blob}"
        ) from error
    return RunFailure(name, str(file), format_replay_command(file, toggle_folders), failure)


def format_replay_command(file: Path, toggle_folders: list[Path]) -> str:
    words = ["./unfix", "fuzz", "--replay", shorten_path(file)]
    return shlex.join(
        [*words, *(word for each in toggle_folders for word in ("--toggles", str(each)))]
    )


def shorten_path(file: Path) -> str:
    """A file as it is named from where one stands, if it lies below."""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


def _write_atomically(file: Path, failure: FailureRecord) -> None:
    """Whole or not at all."""
    aside = file.with_name(f"{file.name}.part")
    aside.write_text(format_failure(failure), encoding="utf-8")
    aside.replace(file)


def format_failure(failure: FailureRecord) -> str:
    return msgspec.json.format(msgspec.json.encode(failure), indent=1).decode() + "\n"


def read_failure(file: Path) -> FailureRecord:
    """A failure from its file, or why it is none."""
    if not file.is_file():
        near = sorted(each.name for each in locate_failures_folder().glob("*.json"))
        there = f"there are {', '.join(near[:8])}" if near else "there are none yet"
        raise UnfixError(
            f"there is no file {file}; in {shorten_path(locate_failures_folder())} {there}"
        )
    try:
        raw = msgspec.json.decode(file.read_bytes())
        if isinstance(raw, dict) and raw.get("format", FORMAT_VERSION) != FORMAT_VERSION:
            raise UnfixError(
                f"{file} is of format {raw['format']}, and this unfix reads format {FORMAT_VERSION}: find "
                "the failure again, or use the unfix that wrote it"
            )
        return msgspec.convert(raw, FailureRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnfixError(f"{file} is no failure that `unfix fuzz` wrote: {error}") from error


def make_node_id(file: Path, test: str) -> str:
    """A test's name: from the project on if it is ours, by its own file otherwise."""
    root = paths.project_folder()
    return f"{file.relative_to(root) if file.is_relative_to(root) else file}::{test}"


def locate_test_file(failure: FailureRecord, folder: Path | None = None) -> Path:
    """Where its test is, which has to be in the source there."""
    name, _, node = failure.test.partition("::")
    file = paths.project_folder() / name  # or its own file, if the name is a whole path
    if folder is not None and Path(name).is_absolute():
        file = folder / Path(name).name
    if not file.is_file():
        raise UnfixError(f"the test {failure.test} is gone: there is no file {file}")
    function = node.rpartition("::")[2].partition("[")[0]
    tree = ast.parse(file.read_text(encoding="utf-8"))
    known = [each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    if function not in known:
        there = ", ".join(each for each in known if each.startswith("test_"))
        raise UnfixError(f"the test {failure.test} is gone: {file.name} has {there or 'none'}")
    return file


def keep_regression(file: Path) -> Path:
    """Make a failure a regression that its suite runs from now on; gives the new file."""
    failure = read_failure(file)
    place = locate_test_file(failure).parent / "regressions"
    if not failure.blob:
        raise UnfixError(f"{file} holds no example: there is nothing that could be run again")
    kept = place / f"{name_failure(failure, '')}.json"
    if kept.exists():
        known = read_failure(kept)
        if known.blob == failure.blob:
            raise UnfixError(f"{kept} is there already, with the same example")
        kept = place / f"{name_failure(failure, failure.blob)}.json"
    place.mkdir(parents=True, exist_ok=True)
    _write_atomically(kept, failure)
    return kept
