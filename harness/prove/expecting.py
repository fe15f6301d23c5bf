"""How long a run will take, from what earlier ones took here; nothing if they cannot tell."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from harness.prove.plan import Asked
from harness.store.prove.values import OnRelease, Run

# What an earlier run must share with this one for its times to say anything of it.
ALIKE = ("device", "profile", "words", "k", "shard")
RUNS = 30  # to look at, the newest first


def seconds(asked: Asked, new: Run, earlier: Iterable[Run]) -> float | None:
    """The time of the whole run: imports one ahead of the tests, tests side by side."""
    alike = [run for run in earlier if run.kind == new.kind and _alike(run, new)]
    imports: dict[str, float] = {}
    tests: dict[str, float] = {}
    for target in asked.targets:
        met = next(((r, on) for r in alike for on in r.releases if _is_met(on, target.name)), None)
        if met is None:
            continue
        run, on = met
        imports[target.name] = on.seconds_to_start
        tests[target.name] = _tests(asked, run, target.name)
    if not imports:
        return None
    ended, ready, before = 0.0, 0.0, 0.0
    for target in asked.targets:
        # Its import began when the last but one ended, as the run keeps one ahead.
        ready = max(ready, before) + imports.get(target.name, fmean(imports.values()))
        before = ended
        ended = max(ended, ready) + tests.get(target.name, fmean(tests.values()))
    return ended


def _alike(run: Run, new: Run) -> bool:
    return all(run.settings.get(name) == new.settings.get(name) for name in ALIKE)


def _is_met(on: OnRelease, release: str) -> bool:
    return on.release == release and on.seconds_to_start > 0


def _tests(asked: Asked, run: Run, release: str) -> float:
    """Seconds for the tests of one release, by the pace that they had then."""
    wanted = {toggle.id for toggle in asked.toggles}
    own = [cell for cell in run.cells if cell.release == release]
    left = [
        cell
        for cell in own
        if cell.toggle in wanted and cell.key not in asked.skip and cell.key not in asked.done
    ]
    jobs = asked.jobs if len(left) > 1 else 1
    return _pace(run) * sum(cell.seconds for cell in left) / jobs


def _pace(run: Run) -> float:
    """How long a run had its tests for, against what these say themselves that they took."""
    jobs = int(run.settings.get("jobs", 1))
    said = sum(cell.seconds for cell in run.cells) / jobs
    began = min((on.seconds_to_start for on in run.releases), default=0.0)
    if len(run.releases) != 1 or run.status != "finished" or said <= 0:
        return 1.0
    return max(1.0, (run.seconds - began) / said)
