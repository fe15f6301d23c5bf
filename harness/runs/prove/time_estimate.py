"""An estimate of a run's time, from earlier runs on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from harness.core.outcomes import RunStatus
from harness.runs.prove.plan import ProveRequest
from harness.store.prove.values import ProveRun, ReleaseFacts

# Settings that an earlier run must share with this one.
SETTINGS_TO_MATCH = ("device", "profile", "words", "k", "shard")
MAX_RUNS_READ = 30  # the newest ones


def estimate_run_seconds(
    request: ProveRequest, new_run: ProveRun, earlier_runs: Iterable[ProveRun]
) -> float | None:
    """Estimate the time of the whole run, with imports one release ahead of the tests."""
    alike = [
        run for run in earlier_runs if run.kind == new_run.kind and _has_same_settings(run, new_run)
    ]
    imports: dict[str, float] = {}
    tests: dict[str, float] = {}
    for target in request.targets:
        known = next(
            ((r, on) for r in alike for on in r.releases if _has_start_time(on, target.name)), None
        )
        if known is None:
            continue
        run, on = known
        imports[target.name] = on.seconds_to_start
        tests[target.name] = _estimate_test_seconds(request, run, target.name)
    if not imports:
        return None
    ended, ready, before = 0.0, 0.0, 0.0
    for target in request.targets:
        # Its import began at the end of the last but one: the run imports one release ahead.
        ready = max(ready, before) + imports.get(target.name, fmean(imports.values()))
        before = ended
        ended = max(ended, ready) + tests.get(target.name, fmean(tests.values()))
    return ended


def _has_same_settings(run: ProveRun, new_run: ProveRun) -> bool:
    return all(run.settings.get(name) == new_run.settings.get(name) for name in SETTINGS_TO_MATCH)


def _has_start_time(facts: ReleaseFacts, release: str) -> bool:
    return facts.release == release and facts.seconds_to_start > 0


def _estimate_test_seconds(request: ProveRequest, run: ProveRun, release: str) -> float:
    """Estimate the seconds for the tests of one release, from their pace in earlier runs."""
    wanted = {toggle.id for toggle in request.toggles}
    own = [cell for cell in run.cells if cell.release == release]
    left = [
        cell
        for cell in own
        if cell.toggle in wanted
        and cell.key not in request.skipped_cells
        and cell.key not in request.finished_cells
    ]
    jobs = request.jobs if len(left) > 1 else 1
    return _measure_overhead_factor(run) * sum(cell.seconds for cell in left) / jobs


def _measure_overhead_factor(run: ProveRun) -> float:
    """Return the ratio of a run's time for its tests to the tests' own time."""
    jobs = int(run.settings.get("jobs", 1))
    measured = sum(cell.seconds for cell in run.cells) / jobs
    import_seconds = min((facts.seconds_to_start for facts in run.releases), default=0.0)
    if len(run.releases) != 1 or run.status is not RunStatus.FINISHED or measured <= 0:
        return 1.0
    return max(1.0, (run.seconds - import_seconds) / measured)
