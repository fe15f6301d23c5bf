"""Several reviews of one change as one: each machine ran some of the parts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.core.outcomes import join_statuses
from harness.store.pr.line_results import ChangedFunction
from harness.store.pr.values import PrPart, PrRun

FIELDS = {
    PrPart.TOGGLES: ("toggles", "toggle_count"),
    PrPart.SUITES: ("guards", "reaching", "touched_guards"),
    PrPart.KERNELS: ("kernels",),
    PrPart.FAULTS: ("faults", "fault_counts", "faults_made"),
    PrPart.ZOO: ("architectures", "claims"),
    PrPart.REHEARSE: ("deployments", "rehearsals"),
    PrPart.AUDIT: ("findings", "audited"),
}


def _join_functions(runs: Sequence[PrRun]) -> list[ChangedFunction]:
    """Join what ran each function: a line was not run if it ran on no machine."""
    joined: dict[tuple[str, str], ChangedFunction] = {}
    for run in runs:
        for one in run.functions:
            key = one.module, one.name
            known = joined.setdefault(key, msgspec.structs.replace(one, ran_by=[], evidence=[]))
            known.ran_by = sorted({*known.ran_by, *one.ran_by})
            known.evidence = list(dict.fromkeys([*known.evidence, *one.evidence]))
            known.again = known.again or one.again
            known.left_out = sorted({*known.left_out, *one.left_out})
            known.unrun = [line for line in known.unrun if line in one.unrun]
            known.nearest = known.nearest if known.ran_by else one.nearest
    return list(joined.values())


def join_runs(runs: list[PrRun], planned: Sequence[PrPart]) -> PrRun:
    """Take each part from the last review that ran it to its end.

    A planned part that no machine has run keeps the whole from being green.
    """
    ordered = sorted(runs, key=lambda run: run.started)
    whole = msgspec.structs.replace(ordered[0], parts=[], notes=[])
    for part, names in FIELDS.items():
        for run in ordered:
            if part in run.parts:
                for name in names:
                    setattr(whole, name, getattr(run, name))
                whole.parts = [*(one for one in whole.parts if one is not part), part]
    whole.planned = list(planned)
    whole.part_seconds = {
        name: seconds for run in ordered for name, seconds in run.part_seconds.items()
    }
    whole.runs = {name: one for run in ordered for name, one in run.runs.items()}
    whole.functions = _join_functions(ordered)
    whole.notes = list(dict.fromkeys(note for run in ordered for note in run.notes))
    whole.seconds = sum(run.seconds for run in ordered)
    whole.status = join_statuses(run.status for run in ordered)
    return whole
