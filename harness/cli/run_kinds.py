"""What `unfix report`, and the end of a run, need to know of a kind of run.

The kinds stand in the table of commands (`harness/cli/commands.py`). The common part of their
outputs is in `run_output`, and `run_lookup` finds and lists the runs of all kinds.
"""

from __future__ import annotations

import datetime
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.store.database import Store
    from harness.store.run_table import RunTable


@dataclass(frozen=True)
class RunReports:
    """The reports of one kind of run, as functions of the run."""

    render_page: Callable[[Any], str]
    render_markdown: Callable[[Any], str]
    print_run: Callable[[Any, Any], None]  # on a rich console
    write_junit: Callable[[Any, Any], None] | None = None  # writes a file
    render_sarif: Callable[[Any], str] | None = None


def make_page_name_of(run: Any) -> str:
    """Make a name for each run, so that a new page does not replace an open one."""
    name = str(run.id)
    return name if len(name) < 100 else f"{name.partition('+')[0]}-joined"


@dataclass(frozen=True)
class RunKind:
    """What differs from kind to kind in lists, outputs and as JSON.

    Its folders have its name: `harness/store/NAME/table.py` has its table in the store, and
    `reports/NAME` its reports. Both are imported when they are needed: a page imports Jinja.
    """

    name: str
    noun: str
    make_list_label: Callable[[Any], str]
    json_properties: tuple[str, ...] = ("green", "problems")  # added to the run's own fields
    list_properties: tuple[str, ...] = ("green",)  # added to the common properties
    is_row_enough: bool = False  # a list only needs the run's own row
    describe_verdict: Callable[[Any], str] = lambda run: "green" if run.green else "red"
    get_exit_code: Callable[[Any], int] = lambda run: 0 if run.green else 1
    make_page_name: Callable[[Any], str] = make_page_name_of
    has_junit: bool = False
    has_sarif: bool = False

    def open_table(self, store: Store) -> RunTable[Any, Any]:
        from harness.store.run_table import RunTable

        module = importlib.import_module(f"harness.store.{self.name}.table")
        (table,) = (
            each
            for each in vars(module).values()
            if isinstance(each, type)
            and issubclass(each, RunTable)
            and each.__module__ == module.__name__
        )
        opened: RunTable[Any, Any] = table(store)
        return opened

    def load_reports(self) -> RunReports:
        def load(part: str) -> Any:
            return importlib.import_module(f"reports.{self.name}.{part}")

        return RunReports(
            load("page").render_page,
            load("markdown").render_markdown,
            load("terminal").print_run,
            load("junit").write_junit if self.has_junit else None,
            load("sarif").render_sarif if self.has_sarif else None,
        )

    def to_json(self, run: Any) -> dict[str, Any]:
        """Return a whole run, with its verdict, as JSON that any reader accepts."""
        import msgspec

        properties = {
            name: msgspec.to_builtins(getattr(run, name)) for name in self.json_properties
        }
        data: dict[str, Any] = to_strict_json(msgspec.to_builtins(run) | properties)
        return data

    def to_list_row(self, run: Any) -> dict[str, Any]:
        """Return a run as one line of `report --list`."""
        return {
            "id": run.id,
            "kind": self.make_list_label(run),
            "started": format_started(run),
            "status": run.status,
            "seconds": run.seconds,
            **{name: to_strict_json(getattr(run, name)) for name in self.list_properties},
            "summary": to_strict_json(run.summary),
            "command": to_strict_json(run.command),
        }


def format_started(run: Any) -> str:
    if isinstance(run.started, str):
        return run.started
    moment = datetime.datetime.fromtimestamp(run.started, datetime.UTC)
    return moment.isoformat(timespec="seconds")


class ProveKind(RunKind):
    def to_json(self, run: Any) -> dict[str, Any]:
        """Leave out the stories of toggles without a cell: of one guard they would be a hundred."""
        data = super().to_json(run)
        guarded = {cell["toggle"] for cell in data["cells"]}
        data["toggles"] = [toggle for toggle in data["toggles"] if toggle["id"] in guarded]
        return data


class MatrixKind(RunKind):
    def to_json(self, run: Any) -> dict[str, Any]:
        data = super().to_json(run)
        for cell, plain in zip(run.cells, data["cells"], strict=True):
            plain |= {"outcome": cell.outcome_word, "seconds": cell.seconds}
        return data


def to_strict_json(value: Any) -> Any:
    """Replace the values that strict JSON lacks: infinities, NaN and lone surrogates."""
    if isinstance(value, dict):
        return {to_strict_json(name): to_strict_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [to_strict_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return str(value).encode(errors="backslashreplace").decode()
    return value
