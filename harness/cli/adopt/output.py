"""The output of `unfix adopt`: changes to choose from, adopted toggles, their guards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import options
from harness.fixes.adopt import fix_parts
from harness.fixes.adopt.anchors import LeftOutChange
from harness.fixes.adopt.edit_porting import ResolvedEdits
from harness.fixes.adopt.fix_parts import AdoptedToggle, ReleaseChange
from harness.fixes.drift import DriftSurvey
from harness.fixes.patch_plan import format_toggle_diff
from harness.fixes.registry import toggle_writer

if TYPE_CHECKING:
    from rich.console import Console

    from harness.runs.adopt.detection import DetectionReport

MAX_NAMED_GUARDS = 8  # only the number of the others is shown


def print_changes(changes: Sequence[ReleaseChange], search: str, as_json: bool) -> None:
    diffs_of_changes = [fix_parts.render_difference(change.difference) for change in changes]
    if as_json:
        rows = enumerate(zip(changes, diffs_of_changes, strict=True), 1)
        options.print_json(
            [
                {"hunk": number, "module": change.module, "name": change.name, "diff": diff}
                for number, (change, diff) in rows
            ]
        )
        return
    from rich.text import Text

    out = options.make_console()
    for number, (change, diff) in enumerate(zip(changes, diffs_of_changes, strict=True), 1):
        out.print(Text(f"{number}  {change.module}:{change.name}", style="bold"), soft_wrap=True)
        options.print_diff(out, diff)
    out.print(f"\nchoose: unfix adopt --between {search} --hunks N,… --as ID")


def print_adopted(
    adopted: AdoptedToggle, survey: DriftSurvey, trial_result: str | None, out: Console
) -> None:
    """Print a toggle's diff on the newest release, and the origin of its edits on each release."""
    from rich.text import Text

    toggle, newest = adopted.toggle, adopted.timeline.resolved_edits[-1].tree
    [status] = [
        status
        for release in survey.releases
        if release.name == newest.name
        for status in release.statuses
        if status.toggle.id == toggle.id
    ]
    out.print(Text.assemble((toggle.id, "bold"), "  ", toggle.title))
    out.print(f"on SGLang {newest.version}: {status.state.value}; toggling does this:")
    options.print_diff(out, format_toggle_diff(status, newest))
    for tree, cell in adopted.timeline.cells:
        remark = cell if isinstance(cell, str) else "; ".join(cell.remarks)
        if remark:
            out.print(f"  {tree.name}: {remark}", style="dim", soft_wrap=True)
    if trial_result is not None:
        out.print(f"tried {trial_result}", soft_wrap=True)
    out.print()


def print_detection(
    out: Console, name: str, report: DetectionReport | None, folders: str = ""
) -> None:
    """Print the guards of a toggle; `folders`: the options that find its file."""
    from rich.text import Text

    if report is None:
        out.print(Text(f"{name}: no installed release has its code, so no suite was run"))
        return
    guards = report.notices or report.runs
    where = f"of {report.asked} guards on SGLang {report.release}"
    if report.notices:
        out.print(Text(f"{name}: {len(guards)} {where} detect it:", style="green"))
    elif report.runs:
        out.print(Text(f"{name}: no guard detects it; {len(guards)} {where} run its code:"))
    elif report.asked:
        out.print(Text(f"{name}: no guard detects it, and none {where} runs its code"))
    else:
        out.print(Text(f"{name}: no guard was run on SGLang {report.release}"))
    for guard in guards[:MAX_NAMED_GUARDS]:
        out.print(Text(f"  {guard}"), soft_wrap=True)
    if len(guards) > MAX_NAMED_GUARDS:
        out.print(f"  and {len(guards) - MAX_NAMED_GUARDS} more")
    if report.left_out:
        call = f"`unfix adopt --ask {name}{folders}`"
        out.print(f"{report.left_out} more guards were not run: {call} runs all", soft_wrap=True)
    if not report.notices:
        template = f"`unfix adopt --guard {name}{folders}`"
        out.print(f"to write one, begin with the template of {template}", soft_wrap=True)


def adopted_to_json(
    adopted: Sequence[AdoptedToggle],
    files: Sequence[Path],
    omitted: Sequence[LeftOutChange],
    trial_results: dict[str, str],
) -> dict[str, Any]:
    return {
        "toggles": [
            {
                "id": adoption.toggle.id,
                "states": {
                    tree.name: cell.state.value if isinstance(cell, ResolvedEdits) else "absent"
                    for tree, cell in adoption.timeline.cells
                },
                "how": {
                    tree.name: list(cell.remarks) if isinstance(cell, ResolvedEdits) else [cell]
                    for tree, cell in adoption.timeline.cells
                },
                "yaml": toggle_writer.format_toggle(adoption.toggle),
                "tried": trial_results.get(adoption.toggle.id, ""),
            }
            for adoption in adopted
        ],
        "left_out": [{"what": change.change, "why": change.reason} for change in omitted],
        "files": [str(file) for file in files],
    }
