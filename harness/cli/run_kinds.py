"""The kinds of runs that a store keeps and `report` shows, as one table.

The word of a kind is its command, and names its folders: `harness/runs/WORD` makes such a run,
`harness/store/WORD` stores it, `reports/WORD` shows it, `harness/cli/WORD` reads its arguments.
Output that is the same for all kinds (files, lists) is in `run_output` and here.
"""

from __future__ import annotations

import datetime
import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.core import paths

if TYPE_CHECKING:
    from harness.store.database import Store


def add_reports_to_path() -> None:
    """Add the folder of the package `reports`, which is that of the toggles, to the path."""
    place = str(paths.project_folder())
    if place not in sys.path:
        sys.path.append(place)


def import_report(word: str, module_name: str) -> Any:
    """A report of a kind of run: page, terminal, markdown, junit."""
    add_reports_to_path()
    return importlib.import_module(f"reports.{word}.{module_name}")


def _get_exit_code(run: Any) -> int:
    return 0 if run.green else 1


def _make_page_name(run: Any) -> str:
    """A page for each run, so that the next run does not replace an open page."""
    name = str(run.id)
    return name if len(name) < 100 else f"{name.partition('+')[0]}-joined"


@dataclass(frozen=True)
class RunKind:
    word: str
    noun: str
    json_properties: tuple[str, ...] = (
        "green",
        "problems",
    )  # in its JSON, beside what it is made of
    list_properties: tuple[str, ...] = (
        "green",
    )  # in the JSON of a list, beside what all of them have
    is_row_enough: bool = False  # its own row says enough for a list
    make_list_label: Callable[[Any], str] | None = None  # in a list, if not by its word
    describe_verdict: Callable[[Any], str] = lambda run: "green" if run.green else "red"
    get_exit_code: Callable[[Any], int] = _get_exit_code
    make_page_name: Callable[[Any], str] = _make_page_name
    junit: bool = False

    def import_report(self, module_name: str) -> Any:
        """One of its reports: page, terminal, markdown, junit."""
        return import_report(self.word, module_name)

    def to_json(self, run: Any) -> dict[str, Any]:
        """All of a run as strict JSON, with its verdict."""
        import msgspec

        said = {name: msgspec.to_builtins(getattr(run, name)) for name in self.json_properties}
        data: dict[str, Any] = to_strict_json(msgspec.to_builtins(run) | said)
        return data

    def to_list_row(self, run: Any) -> dict[str, Any]:
        """The row of a run in `report --list`."""
        started = run.started
        if not isinstance(started, str):
            moment = datetime.datetime.fromtimestamp(started, datetime.UTC)
            started = moment.isoformat(timespec="seconds")
        return {
            "id": run.id,
            "kind": self.make_list_label(run) if self.make_list_label else self.word,
            "started": started,
            "status": run.status,
            "seconds": run.seconds,
            **{name: to_strict_json(getattr(run, name)) for name in self.list_properties},
            "summary": to_strict_json(run.summary),
            "command": to_strict_json(run.command),
        }


PROVE = RunKind(
    "prove",
    "a proof",
    json_properties=("counts", "green", "problems"),
    list_properties=("counts", "green"),
    make_list_label=lambda run: str(run.kind),
    make_page_name=lambda run: "index",
    junit=True,
)
BISECT = RunKind(
    "bisect",
    "a search",
    json_properties=(),
    list_properties=("verdict",),
    is_row_enough=True,
    make_list_label=lambda search: f"bisect {search.kind}",
    describe_verdict=lambda search: str(search.verdict),
    get_exit_code=lambda search: 0 if search.found else 1,
    make_page_name=lambda search: f"bisect-{search.id}",
)
EVAL = RunKind(
    "eval", "an evaluation", list_properties=("name", "counts", "green"), is_row_enough=True
)


class _MatrixKind(RunKind):
    def to_json(self, run: Any) -> dict[str, Any]:
        data = super().to_json(run)
        for cell, plain in zip(run.cells, data["cells"], strict=True):
            plain |= {"outcome": cell.outcome_word, "seconds": cell.seconds}
        return data


MATRIX = _MatrixKind(
    "matrix",
    "a matrix run",
    json_properties=("counts", "green", "problems"),
    list_properties=("name", "plan", "shard", "counts", "green"),
    get_exit_code=lambda run: int(run.exit_code),
)
MUTATE = RunKind(
    "mutate",
    "a mutation run",
    json_properties=("counts", "score", "green", "problems"),
    list_properties=("green", "score"),
    make_page_name=lambda run: "mutate",
)
KINDS = (PROVE, BISECT, EVAL, MATRIX, MUTATE)


def find_run(store: Store, name: str) -> tuple[RunKind, Any] | None:
    """The run of this name and its kind; None for a proof, of which several are shown as one."""
    for kind in KINDS:
        if kind is not PROVE and (run := store.table(kind.word).find(name)) is not None:
            return kind, run
    return None


def list_runs(store: Store) -> list[tuple[RunKind, Any]]:
    """Each run of a store, loaded as far as a list needs it."""
    found = []
    for kind in KINDS:
        table = store.table(kind.word)
        found += [
            (kind, run if kind.is_row_enough else table.load_whole(run))
            for run in table.list_runs()
        ]
    return found


def to_strict_json(value: Any) -> Any:
    """JSON has no infinities, and UTF-8 no half of a surrogate pair."""
    if isinstance(value, dict):
        return {to_strict_json(name): to_strict_json(one) for name, one in value.items()}
    if isinstance(value, list):
        return [to_strict_json(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return str(value).encode(errors="backslashreplace").decode()
    return value
