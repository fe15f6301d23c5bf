"""The kinds of runs that `unfix report` shows, in one table.

A kind joins three things: its table in the store, its reports (imported when they are needed, since
a page imports Jinja), and the few ways in which its runs differ from others in a list or as JSON.
The common part of all kinds (files, output, lists) is in `run_output` and here. To add a kind,
write its table under harness/store, its reports under reports/, and one `RunKind` here.
"""

from __future__ import annotations

import datetime
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


def _load_prove_reports() -> RunReports:
    from reports.prove import junit, markdown, page, terminal

    return RunReports(
        page.render_page, markdown.render_markdown, terminal.print_run, junit.write_junit
    )


def _load_bisect_reports() -> RunReports:
    from reports.bisect import markdown, page, terminal

    return RunReports(page.render_page, markdown.render_markdown, terminal.print_run)


def _load_eval_reports() -> RunReports:
    from reports.eval import markdown, page, terminal

    return RunReports(page.render_page, markdown.render_markdown, terminal.print_run)


def _load_matrix_reports() -> RunReports:
    from reports.matrix import markdown, page, terminal

    return RunReports(page.render_page, markdown.render_markdown, terminal.print_run)


def _load_mutate_reports() -> RunReports:
    from reports.mutate import markdown, page, terminal

    return RunReports(page.render_page, markdown.render_markdown, terminal.print_run)


def _load_fuzz_reports() -> RunReports:
    from reports.fuzz import markdown, page, terminal

    return RunReports(page.render_page, markdown.render_markdown, terminal.print_run)


def _load_zoo_reports() -> RunReports:
    from reports.zoo import markdown, page, terminal

    return RunReports(page.render_page, markdown.render_markdown, terminal.print_run)


def _load_pr_reports() -> RunReports:
    from reports.pr import markdown, page, sarif, terminal

    return RunReports(
        page.render_page,
        markdown.render_markdown,
        terminal.print_run,
        render_sarif=sarif.render_sarif,
    )


def _load_rehearse_reports() -> RunReports:
    from reports.rehearse import markdown, page, terminal

    return RunReports(page.render_page, markdown.render_markdown, terminal.print_run)


def _make_page_name(run: Any) -> str:
    """Make a name for each run, so that a new page does not replace an open one."""
    name = str(run.id)
    return name if len(name) < 100 else f"{name.partition('+')[0]}-joined"


@dataclass(frozen=True)
class RunKind:
    noun: str
    get_table: Callable[[Store], RunTable[Any, Any]]
    load_reports: Callable[[], RunReports]
    make_list_label: Callable[[Any], str]
    json_properties: tuple[str, ...] = ("green", "problems")  # added to the run's own fields
    list_properties: tuple[str, ...] = ("green",)  # added to the common properties
    is_row_enough: bool = False  # a list only needs the run's own row
    describe_verdict: Callable[[Any], str] = lambda run: "green" if run.green else "red"
    get_exit_code: Callable[[Any], int] = lambda run: 0 if run.green else 1
    make_page_name: Callable[[Any], str] = _make_page_name
    has_junit: bool = False
    has_sarif: bool = False

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
            "started": _format_started(run),
            "status": run.status,
            "seconds": run.seconds,
            **{name: to_strict_json(getattr(run, name)) for name in self.list_properties},
            "summary": to_strict_json(run.summary),
            "command": to_strict_json(run.command),
        }


def _format_started(run: Any) -> str:
    if isinstance(run.started, str):
        return run.started
    moment = datetime.datetime.fromtimestamp(run.started, datetime.UTC)
    return moment.isoformat(timespec="seconds")


class _MatrixKind(RunKind):
    def to_json(self, run: Any) -> dict[str, Any]:
        data = super().to_json(run)
        for cell, plain in zip(run.cells, data["cells"], strict=True):
            plain |= {"outcome": cell.outcome_word, "seconds": cell.seconds}
        return data


PROVE = RunKind(
    "a proof",
    lambda store: store.prove,
    _load_prove_reports,
    make_list_label=lambda run: str(run.kind),
    json_properties=("counts", "green", "problems"),
    list_properties=("counts", "green"),
    make_page_name=lambda run: f"prove-{_make_page_name(run)}",
    has_junit=True,
)
BISECT = RunKind(
    "a search",
    lambda store: store.bisect,
    _load_bisect_reports,
    make_list_label=lambda search: f"bisect {search.kind}",
    json_properties=(),
    list_properties=("verdict",),
    is_row_enough=True,
    describe_verdict=lambda search: str(search.verdict),
    get_exit_code=lambda search: 0 if search.found else 1,
    make_page_name=lambda search: f"bisect-{search.id}",
)
EVAL = RunKind(
    "an evaluation",
    lambda store: store.eval,
    _load_eval_reports,
    make_list_label=lambda evaluation: "eval",
    list_properties=("name", "counts", "green"),
    is_row_enough=True,
)
MATRIX = _MatrixKind(
    "a matrix run",
    lambda store: store.matrix,
    _load_matrix_reports,
    make_list_label=lambda run: "matrix",
    json_properties=("counts", "green", "problems"),
    list_properties=("name", "plan", "shard", "counts", "green"),
    get_exit_code=lambda run: int(run.exit_code),
)
MUTATE = RunKind(
    "a mutation run",
    lambda store: store.mutate,
    _load_mutate_reports,
    make_list_label=lambda run: "mutate",
    json_properties=("counts", "score", "green", "problems"),
    list_properties=("green", "score"),
    make_page_name=lambda run: f"mutate-{_make_page_name(run)}",
)
FUZZ = RunKind(
    "a fuzzing run",
    lambda store: store.fuzz,
    _load_fuzz_reports,
    make_list_label=lambda run: "fuzz",
    json_properties=("green",),
    is_row_enough=True,
    make_page_name=lambda run: str(run.id),
)
ZOO = RunKind(
    "a zoo run",
    lambda store: store.zoo,
    _load_zoo_reports,
    make_list_label=lambda run: "zoo",
    json_properties=("counts", "green", "problems", "kernels"),
    list_properties=("counts", "green"),
    make_page_name=lambda run: f"zoo-{_make_page_name(run)}",
)
PR = RunKind(
    "a review",
    lambda store: store.pr,
    _load_pr_reports,
    make_list_label=lambda run: "pr",
    json_properties=("headline", "green", "problems"),
    list_properties=("headline", "green"),
    is_row_enough=True,
    make_page_name=lambda run: f"pr-{_make_page_name(run)}",
    has_sarif=True,
)
REHEARSE = RunKind(
    "a rehearsal",
    lambda store: store.rehearse,
    _load_rehearse_reports,
    make_list_label=lambda run: "rehearse",
    json_properties=("counts", "green", "problems"),
    list_properties=("counts", "green"),
    make_page_name=lambda run: f"rehearse-{_make_page_name(run)}",
)
KINDS = (PROVE, BISECT, EVAL, MATRIX, MUTATE, FUZZ, ZOO, PR, REHEARSE)


def find_run(store: Store, name: str) -> tuple[RunKind, Any] | None:
    """Find the run of this name and its kind; None for a proof: several proofs share a report."""
    for kind in KINDS:
        if kind is not PROVE and (run := kind.get_table(store).find(name)) is not None:
            return kind, run
    return None


def find_newest_run(store: Store) -> tuple[RunKind, Any] | None:
    """Find the run that started last, without its items; None if the store is empty."""
    newest = [(kind, runs[-1]) for kind in KINDS if (runs := kind.get_table(store).list_runs())]
    return max(newest, key=lambda pair: _format_started(pair[1]), default=None)


def list_runs(store: Store) -> list[tuple[RunKind, Any]]:
    """Return each run of a store, with the part of it that a list shows."""
    runs = []
    for kind in KINDS:
        table = kind.get_table(store)
        runs += [
            (kind, run if kind.is_row_enough else table.load_whole(run))
            for run in table.list_runs()
        ]
    return runs


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
