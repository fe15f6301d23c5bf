"""Failures as files: written as they are found, read to be run again, kept as regressions."""

from __future__ import annotations

import ast
import datetime
import hashlib
import re
import shlex
from pathlib import Path

import msgspec

from harness import paths
from harness.errors import NotReady, UnfixError
from harness.fuzz.values import Found, Kept, Repro, Under

FORMAT = 1


def folder() -> Path:
    return paths.state() / "fuzz" / "failures"


def repro(
    found: Found,
    test: str,
    release: str,
    under: Under,
    versions: dict[str, str],
    seed: int,
    detail: str,
) -> Repro:
    return Repro(
        format=FORMAT,
        test=test,
        error=found.error,
        where=found.where,
        kind=found.kind,
        headline=found.headline,
        release=release,
        under=under,
        blob=found.blob,
        arguments=found.arguments,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions=versions,
        seed=seed,
        shrunk=found.shrunk,
        examples=found.examples,
        detail=detail,
    )


def name_of(failure: Repro, key: str) -> str:
    """The same failure has the same name each night, on whichever machine."""
    bare = failure.test.partition("::")[2] or failure.test
    digest = hashlib.sha256(f"{failure.test} | {key} | {failure.under}".encode()).hexdigest()[:6]
    words = f"{failure.release}-{bare.removeprefix('test_')[:60]}-{failure.error}-{digest}"
    return re.sub(r"[^\w.-]+", "_", words)


def write(failure: Repro, key: str, toggles: list[Path]) -> Kept:
    name = name_of(failure, key)
    file = folder() / f"{name}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, failure)
    except OSError as error:
        raise NotReady(
            f"{name} cannot be written to {file.parent}: {error.strerror or error}; its example "
            f"of {failure.test} is {failure.blob}"
        ) from error
    return Kept(name, str(file), replay_line(file, toggles), failure)


def replay_line(file: Path, toggles: list[Path]) -> str:
    words = ["./unfix", "fuzz", "--replay", shown(file)]
    return shlex.join([*words, *(word for each in toggles for word in ("--toggles", str(each)))])


def shown(file: Path) -> str:
    """A file as it is named from where one stands, if it lies below."""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


def _write(file: Path, failure: Repro) -> None:
    """Whole or not at all."""
    aside = file.with_name(f"{file.name}.part")
    aside.write_text(as_text(failure), encoding="utf-8")
    aside.replace(file)


def as_text(failure: Repro) -> str:
    return msgspec.json.format(msgspec.json.encode(failure), indent=1).decode() + "\n"


def read(file: Path) -> Repro:
    """A failure from its file, or why it is none."""
    if not file.is_file():
        near = sorted(each.name for each in folder().glob("*.json"))
        there = f"there are {', '.join(near[:8])}" if near else "there are none yet"
        raise UnfixError(f"there is no file {file}; in {shown(folder())} {there}")
    try:
        raw = msgspec.json.decode(file.read_bytes())
        if isinstance(raw, dict) and raw.get("format", FORMAT) != FORMAT:
            raise UnfixError(
                f"{file} is of format {raw['format']}, and this unfix reads format {FORMAT}: find "
                "the failure again, or use the unfix that wrote it"
            )
        return msgspec.convert(raw, Repro)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnfixError(f"{file} is no failure that `unfix fuzz` wrote: {error}") from error


def node(file: Path, rest: str) -> str:
    """A test's name: from the project on if it is ours, by its own file otherwise."""
    root = paths.project()
    return f"{file.relative_to(root) if file.is_relative_to(root) else file}::{rest}"


def file_of(failure: Repro, folder: Path | None = None) -> Path:
    """Where its test is, which has to be in the source there."""
    name, _, node = failure.test.partition("::")
    file = paths.project() / name  # or its own file, if the name is a whole path
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


def keep(file: Path) -> Path:
    """Make a failure a regression that its suite runs from now on; gives the new file."""
    failure = read(file)
    place = file_of(failure).parent / "regressions"
    if not failure.blob:
        raise UnfixError(f"{file} holds no example: there is nothing that could be run again")
    kept = place / f"{name_of(failure, '')}.json"
    if kept.exists():
        known = read(kept)
        if known.blob == failure.blob:
            raise UnfixError(f"{kept} is there already, with the same example")
        kept = place / f"{name_of(failure, failure.blob)}.json"
    place.mkdir(parents=True, exist_ok=True)
    _write(kept, failure)
    return kept
