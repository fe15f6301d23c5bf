"""The kinds of runs that a store keeps and `report` shows, as one table.

A kind's word is its command's, and names its folders: `harness/WORD` makes such a run,
`harness/store/WORD` keeps it, `reports/WORD` shows it, `harness/cli/WORD` takes its arguments. All
that is the same for all of them (files, output, lists) is in `pages` and here.
"""

from __future__ import annotations

import datetime
import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness import paths

if TYPE_CHECKING:
    from harness.store.database import Store


def find_reports() -> None:
    """The package `reports` lies beside the toggles, in a checkout and in a wheel."""
    place = str(paths.project())
    if place not in sys.path:
        sys.path.append(place)


def report(word: str, part: str) -> Any:
    """A module of what shows a kind of run: its page, terminal, markdown."""
    find_reports()
    return importlib.import_module(f"reports.{word}.{part}")


def _code(run: Any) -> int:
    return 0 if run.green else 1


def _page(run: Any) -> str:
    """One for each run: the next one does not replace what somebody has open."""
    name = str(run.id)
    return name if len(name) < 100 else f"{name.partition('+')[0]}-joined"


@dataclass(frozen=True)
class Kind:
    word: str
    noun: str
    said: tuple[str, ...] = ("green", "problems")  # in its JSON, beside what it is made of
    listed: tuple[str, ...] = ("green",)  # in the JSON of a list, beside what all of them have
    bare: bool = False  # its own row says enough for a list
    called: Callable[[Any], str] | None = None  # in a list, if not by its word
    verdict: Callable[[Any], str] = lambda run: "green" if run.green else "red"
    code: Callable[[Any], int] = _code
    page: Callable[[Any], str] = _page
    junit: bool = False

    def report(self, part: str) -> Any:
        """A module of what shows it: page, terminal, markdown."""
        return report(self.word, part)

    def data(self, run: Any) -> dict[str, Any]:
        """All of a run as JSON that any reader takes, with what it comes to."""
        import msgspec

        said = {name: msgspec.to_builtins(getattr(run, name)) for name in self.said}
        data: dict[str, Any] = strict(msgspec.to_builtins(run) | said)
        return data

    def row(self, run: Any) -> dict[str, Any]:
        """A run in one line of `report --list`."""
        started = run.started
        if not isinstance(started, str):
            moment = datetime.datetime.fromtimestamp(started, datetime.UTC)
            started = moment.isoformat(timespec="seconds")
        return {
            "id": run.id,
            "kind": self.called(run) if self.called else self.word,
            "started": started,
            "status": run.status,
            "seconds": run.seconds,
            **{name: strict(getattr(run, name)) for name in self.listed},
            "summary": strict(run.summary),
            "command": strict(run.command),
        }


PROVE = Kind(
    "prove",
    "a proof",
    said=("counts", "green", "problems"),
    listed=("counts", "green"),
    called=lambda run: str(run.kind),
    page=lambda run: "index",
    junit=True,
)
BISECT = Kind(
    "bisect",
    "a search",
    said=(),
    listed=("verdict",),
    bare=True,
    called=lambda search: f"bisect {search.kind}",
    verdict=lambda search: str(search.verdict),
    code=lambda search: 0 if search.found else 1,
    page=lambda search: f"bisect-{search.id}",
)
EVAL = Kind("eval", "an evaluation", listed=("name", "counts", "green"), bare=True)


class _Matrix(Kind):
    def data(self, run: Any) -> dict[str, Any]:
        data = super().data(run)
        for cell, plain in zip(run.cells, data["cells"], strict=True):
            plain |= {"outcome": cell.word, "seconds": cell.seconds}
        return data


MATRIX = _Matrix(
    "matrix",
    "a matrix run",
    said=("counts", "green", "problems"),
    listed=("name", "plan", "shard", "counts", "green"),
    code=lambda run: int(run.exit_code),
)
MUTATE = Kind(
    "mutate",
    "a mutation run",
    said=("counts", "score", "green", "problems"),
    listed=("green", "score"),
    page=lambda run: "mutate",
)
KINDS = (PROVE, BISECT, EVAL, MATRIX, MUTATE)


def named(store: Store, name: str) -> tuple[Kind, Any] | None:
    """The run of this name and its kind; None for a proof, of which several are shown as one."""
    for kind in KINDS:
        if kind is not PROVE and (run := store.table(kind.word).find(name)) is not None:
            return kind, run
    return None


def every(store: Store) -> list[tuple[Kind, Any]]:
    """Each run of a store with as much of it as a list tells."""
    found = []
    for kind in KINDS:
        table = store.table(kind.word)
        found += [(kind, run if kind.bare else table.whole(run)) for run in table.all()]
    return found


def strict(value: Any) -> Any:
    """JSON knows no infinities, and a terminal no half characters."""
    if isinstance(value, dict):
        return {strict(name): strict(one) for name, one in value.items()}
    if isinstance(value, list):
        return [strict(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return str(value).encode(errors="backslashreplace").decode()
    return value
