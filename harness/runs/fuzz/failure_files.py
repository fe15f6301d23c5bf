"""Failures as files, for replays and for the regressions of a suite.

Hypothesis silently replaces choices that no longer fit a strategy. So a file contains the arguments
of its example in words (`number=4711`) beside the choices. A replay with other arguments is
refused: the strategy has changed.
"""

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
from harness.core.files import write_atomically
from harness.store.fuzz.values import FailureRecord, FoundFailure, RunFailure, ToggleDirections

FORMAT_VERSION = 1
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def locate_failures_folder() -> Path:
    return paths.state_folder() / "fuzz" / "failures"


def make_failure_record(
    failure: FoundFailure,
    *,
    test: str,
    release: str,
    under: ToggleDirections,
    versions: dict[str, str],
    seed: int,
    detail: str,
) -> FailureRecord:
    return FailureRecord(
        **msgspec.structs.asdict(failure),
        format=FORMAT_VERSION,
        test=test,
        release=release,
        under=under,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions=versions,
        seed=seed,
        detail=detail,
    )


def name_failure(failure: FailureRecord, key: str) -> str:
    """Return the name of a failure, the same every night and on every machine."""
    bare = failure.test.partition("::")[2] or failure.test
    digest = hashlib.sha256(f"{failure.test} | {key} | {failure.under}".encode()).hexdigest()[:6]
    words = f"{failure.release}-{bare.removeprefix('test_')[:60]}-{failure.error}-{digest}"
    return re.sub(r"[^\w.-]+", "_", words)


def write_failure(failure: FailureRecord, key: str, toggle_folders: list[Path]) -> RunFailure:
    name = name_failure(failure, key)
    file = locate_failures_folder() / f"{name}.json"
    try:
        write_atomically(file, failure.format_file())
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
    """Return a file's path from the working folder, if the file lies below it."""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


def read_failure(file: Path) -> FailureRecord:
    """Read a failure's file; raise an error with the reason if that is impossible."""
    if not file.is_file():
        folder = locate_failures_folder()
        names = ", ".join(sorted(each.name for each in folder.glob("*.json"))[:8])
        content = f"there are {names}" if names else "there are none yet"
        raise UnfixError(f"there is no file {file}; in {shorten_path(folder)} {content}")
    try:
        raw = msgspec.json.decode(file.read_bytes())
        if isinstance(raw, dict) and raw.get("format", FORMAT_VERSION) != FORMAT_VERSION:
            raise UnfixError(
                f"{file} is of format {raw['format']}, and this unfix reads format "
                f"{FORMAT_VERSION}: find the failure again, or use the unfix that wrote it"
            )
        return msgspec.convert(raw, FailureRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnfixError(f"{file} is no failure that `unfix fuzz` wrote: {error}") from error


def make_node_id(file: Path, test: str) -> str:
    """Make a test's name, with its path in the project, or the whole path of a file elsewhere."""
    root = paths.project_folder()
    return f"{file.relative_to(root) if file.is_relative_to(root) else file}::{test}"


def locate_test_file(failure: FailureRecord, folder: Path | None = None) -> Path:
    """Return the file of a failure's test; raise an error if the file or the test is gone."""
    name, _, node = failure.test.partition("::")
    file = paths.project_folder() / name  # a whole path replaces the folder
    if folder is not None and Path(name).is_absolute():
        file = folder / Path(name).name
    if not file.is_file():
        raise UnfixError(f"the test {failure.test} is gone: there is no file {file}")
    function = node.rpartition("::")[2].partition("[")[0]
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    if function not in functions:
        tests = ", ".join(name for name in functions if name.startswith("test_"))
        raise UnfixError(f"the test {failure.test} is gone: {file.name} has {tests or 'none'}")
    return file


def keep_regression(file: Path) -> Path:
    """Make a failure a regression of its suite; return the new file."""
    failure = read_failure(file)
    folder = locate_test_file(failure).parent / "regressions"
    if not failure.blob:
        raise UnfixError(f"{file} holds no example: there is nothing that could be run again")
    regression = folder / f"{name_failure(failure, '')}.json"
    if regression.exists():
        if read_failure(regression).blob == failure.blob:
            raise UnfixError(f"{regression} is there already, with the same example")
        regression = folder / f"{name_failure(failure, failure.blob)}.json"
    write_atomically(regression, failure.format_file())
    return regression


def describe_arguments(arguments: dict[str, object]) -> list[str]:
    """Describe an example's arguments for readers."""
    return [f"{name}={value!r}" for name, value in arguments.items()]


def are_same_arguments(some: list[str], others: list[str]) -> bool:
    """Return whether described arguments are the same, except for addresses in a `repr`."""
    return [_ADDRESS.sub("", each) for each in some] == [_ADDRESS.sub("", each) for each in others]


def describe_changed_strategy(failure: FailureRecord, arguments_now: list[str]) -> str:
    before = ", ".join(failure.arguments)
    now = ", ".join(arguments_now) or "none at all"
    return (
        f"the example of {failure.test} no longer decodes: the strategy has changed since "
        f"{failure.date}. It was {before} and is now {now}. Write it as an @example of the test, "
        "or find it again"
    )
