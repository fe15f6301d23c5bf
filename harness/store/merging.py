"""Several runs seen as one: shards, machines, and what was run again."""

from __future__ import annotations

from harness.store.records import Cell, OnRelease, Run


def together(runs: list[Run]) -> Run:
    """One run with the cells of all; where two have the same cell, the later one's counts."""
    ordered = sorted(runs, key=lambda run: run.started)
    if len(ordered) == 1:
        return ordered[0]
    cells: dict[tuple[str, str, str, str], Cell] = {}
    releases: dict[tuple[str, str], OnRelease] = {}
    for run in ordered:
        for cell in run.cells:
            if cell.verdict is not None or cell.key not in cells:
                cells[cell.key] = cell
        for on in run.releases:
            known = releases.get((on.release, on.device))
            releases[on.release, on.device] = on if known is None else _joined(known, on)
    return Run(
        id="+".join(run.id for run in ordered),
        kind=ordered[0].kind,
        started=ordered[0].started,
        status="finished" if all(run.status == "finished" for run in ordered) else "stopped",
        seconds=sum(run.seconds for run in ordered),
        command=ordered[-1].command,
        settings={"runs": {run.id: run.settings for run in ordered}},
        releases=list(releases.values()),
        toggles=list({toggle.id: toggle for run in ordered for toggle in run.toggles}.values()),
        cells=sorted(cells.values(), key=lambda cell: cell.key),
    )


def _joined(earlier: OnRelease, later: OnRelease) -> OnRelease:
    """A release that two runs met: a toggle is unguarded if neither found a guard."""
    return OnRelease(
        release=later.release,
        device=later.device,
        versions=later.versions,
        machine=later.machine,
        seconds_to_start=earlier.seconds_to_start + later.seconds_to_start,
        seconds=earlier.seconds + later.seconds,
        states=earlier.states | later.states,
        patches=earlier.patches | later.patches,
        unguarded=[name for name in later.unguarded if name in earlier.unguarded],
        problems=list(dict.fromkeys(earlier.problems + later.problems)),
    )
