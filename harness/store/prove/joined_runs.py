"""Several runs as one: shards, machines, and repeated cells."""

from __future__ import annotations

from harness.core.outcomes import join_statuses
from harness.store.prove.values import CellResult, ProveRun, ReleaseFacts


def join_runs(runs: list[ProveRun]) -> ProveRun:
    """Join runs into one with all their cells. The later run's result of a cell counts."""
    ordered = sorted(runs, key=lambda run: run.started)
    if len(ordered) == 1:
        return ordered[0]
    cells: dict[tuple[str, str, str, str], CellResult] = {}
    releases: dict[tuple[str, str], ReleaseFacts] = {}
    for run in ordered:
        for cell in run.cells:
            if cell.verdict is not None or cell.key not in cells:
                cells[cell.key] = cell
        for on in run.releases:
            known = releases.get((on.release, on.device))
            releases[on.release, on.device] = (
                on if known is None else _join_release_facts(known, on)
            )
    return ProveRun(
        id="+".join(run.id for run in ordered),
        kind=ordered[0].kind,
        started=ordered[0].started,
        status=join_statuses(run.status for run in ordered),
        seconds=sum(run.seconds for run in ordered),
        command=ordered[-1].command,
        settings={"runs": {run.id: run.settings for run in ordered}},
        releases=list(releases.values()),
        toggles=list({toggle.id: toggle for run in ordered for toggle in run.toggles}.values()),
        cells=sorted(cells.values(), key=lambda cell: cell.key),
    )


def _join_release_facts(earlier: ReleaseFacts, later: ReleaseFacts) -> ReleaseFacts:
    """Join the facts of a release that is part of two runs."""
    return ReleaseFacts(
        release=later.release,
        device=later.device,
        versions=later.versions,
        machine=later.machine,
        seconds_to_start=earlier.seconds_to_start + later.seconds_to_start,
        seconds=earlier.seconds + later.seconds,
        states=earlier.states | later.states,
        patches=earlier.patches | later.patches,
        unguarded=_join_unguarded(earlier, later),
        expected_unguarded=later.expected_unguarded or earlier.expected_unguarded,
        problems=list(dict.fromkeys(earlier.problems + later.problems)),
    )


def _join_unguarded(earlier: ReleaseFacts, later: ReleaseFacts) -> list[str] | None:
    """Join unguarded toggles: a toggle is unguarded if no run that checked it found a guard."""
    looked = [on.unguarded for on in (earlier, later) if on.unguarded is not None]
    if not looked:
        return None
    return [name for name in looked[-1] if all(name in found for found in looked)]


def add_missing_shard_problems(runs: list[ProveRun], joined: ProveRun) -> None:
    """Add a problem for each release of which a shard is missing."""
    parts = _find_missing_shards(runs)
    for on in joined.releases:
        problem = parts.get((on.release, on.device))
        if problem and problem not in on.problems:
            on.problems.append(problem)


def _find_missing_shards(runs: list[ProveRun]) -> dict[tuple[str, str], str]:
    """Return the missing shards of each release that lacks some."""
    parts: dict[tuple[str, str], dict[int, set[int]]] = {}
    for run in runs:
        part, of = run.shard
        for on in run.releases:
            shards = parts.setdefault((on.release, on.device), {})
            shards.setdefault(of, set()).add(part)
    missing = {}
    for key, shards in parts.items():
        if not any(len(found) == of for of, found in shards.items()):
            lacking = [
                f"{part}/{of}"
                for of, found in shards.items()
                for part in range(1, of + 1)
                if part not in found
            ]
            missing[key] = f"a part of the cells is not here: shard {', '.join(lacking)}"
    return missing
