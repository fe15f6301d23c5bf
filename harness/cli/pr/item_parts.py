"""The parts of a review that run whole models: rows of the zoo, deployments.

Those that are known to run changed code are named; they run on both ends, the most concerned first,
as long as the budget lasts. The others are left out by name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.cli import guard_runs, options
from harness.cli.pr.review import Review
from harness.core.outcomes import RunStatus
from harness.core.wording import format_count
from harness.runs.pr import row_changes, touched_items
from harness.runs.pr.request import PrRequest
from harness.runs.pr.touched_items import MAX_NAMED, ItemKind
from harness.runs.rehearse.deployment import read_deployments
from harness.runs.zoo.architecture import list_families, read_architectures, read_definition
from harness.sanitizer.triton.capture_folder import CAPTURE_VARIABLE
from harness.store.database import Store
from harness.store.lane_runs import LaneResult, LaneRunTable
from harness.store.pr.part_results import TouchedItem
from harness.store.pr.values import PrPart
from harness.store.rehearse.table import RehearsalTable
from harness.store.rehearse.values import RehearsalRun
from harness.store.zoo.table import ZooTable
from harness.store.zoo.values import ArchitectureResult, ZooRun
from harness.workers.line_tracer import TRACED_VARIABLE
from harness.workers.release_target import ReleaseTarget

ITEM_SECONDS = 240.0  # the limit of one architecture or deployment


@dataclass(frozen=True)
class ItemPart:
    """A kind of items, and how a review finds and runs them."""

    kind: ItemKind
    models: dict[str, set[str]]  # of each item, the names that stand for its model
    definitions: dict[str, str]  # the text that says what each item has
    share: float  # of the budget that is left
    table: LaneRunTable[Any]
    run_type: type[Any]
    execute: Callable[[ReleaseTarget, list[str]], Any]  # returns the run

    def execute_on(self, target: ReleaseTarget, names: list[str]) -> Any:
        run = self.execute(target, names)
        if run.status is not RunStatus.FINISHED:
            raise KeyboardInterrupt
        return run


def run_zoo(review: Review) -> None:
    """Run the rows of the zoo that run changed code on both ends."""
    part, run = make_zoo_part(review.request, review.store), review.run
    run.architectures = _find_touched(review, part)
    names = _choose_items(review, part, run.architectures, review.request.zoo_limit)
    if not names:
        return
    before = _execute_on(review, part, review.base, names)
    after = _execute_on(review, part, review.head, names)
    _note_runs(review, part, before, after)
    run.claims = row_changes.compare_rows(before, after)


def rehearse_deployments(review: Review) -> None:
    """Rehearse deployments that run changed code on both ends; a stored run of the base counts."""
    from harness.runs.rehearse.comparison import compare_runs

    part, run = make_rehearse_part(review.request, review.store), review.run
    run.deployments = _find_touched(review, part)
    names = _choose_items(review, part, run.deployments, review.request.deployment_limit)
    if not names:
        return
    code = guard_runs.digest_lane_code(review.base, review.request.toggles)
    before = None
    if code and not any(review.change.removed.values()):  # a stored run has traced no lines
        before = RehearsalTable(review.store).find_newest_whole(
            review.base.name, names, code, has_thresholds=False
        )
    before = before or _execute_on(review, part, review.base, names)
    after = _execute_on(review, part, review.head, names)
    _note_runs(review, part, before, after)
    run.rehearsals = compare_runs(before, after)
    for deployment in after.deployments:
        if deployment.refusal and not any(
            change.deployment == deployment.name for change in run.rehearsals
        ):
            review.note(f"{deployment.name} starts on neither end: {deployment.refusal}")


def record_unknown_items(request: PrRequest, store: Store, base: ReleaseTarget) -> None:
    """Run what reviews of this base would have to run first, to know which functions run."""
    for name, make_part in PARTS.items():
        if name in request.parts:
            part = make_part(request, store)
            _record_unknown(part, base, request.toggles, math.inf)


def make_zoo_part(request: PrRequest, store: Store) -> ItemPart:
    from harness.cli.zoo import command as zoo
    from harness.runs.zoo.request import ZooRequest

    def execute(target: ReleaseTarget, names: list[str]) -> ZooRun:
        zoo_request = ZooRequest(
            names=names,
            release=target.name,
            card="H100",
            jobs=request.jobs,
            seconds=ITEM_SECONDS,
            revert=[],
            enable=[],
            toggles=request.toggles,
            check=[],
        )
        return zoo.execute_zoo(target, zoo_request)

    kind = ItemKind(
        noun="architecture",
        command="./unfix zoo {names} --since {base} --release {head}",
        record_command="./unfix zoo {names} --release {base}",
        whole="",
        ends=2,
    )
    architectures = read_architectures([])
    models = {one.name: {one.name, one.model_type} for one in architectures}
    models |= {name: set() for name in list_families()}
    definitions = {name: read_definition(name) for name in models}
    share = 0.6 if {PrPart.REHEARSE, PrPart.KERNELS} & {*request.parts} else 1.0
    return ItemPart(kind, models, definitions, share, ZooTable(store), ZooRun, execute)


def make_rehearse_part(request: PrRequest, store: Store) -> ItemPart:
    from harness.cli.rehearse import command as rehearsal
    from harness.runs.rehearse.request import RehearseRequest

    def execute(target: ReleaseTarget, names: list[str]) -> RehearsalRun:
        rehearse_request = RehearseRequest(
            models=names,
            config=None,
            gpu=None,
            gpus=None,
            all=False,
            thresholds=False,  # a search takes longer than the batches
            all_layers=False,
            release=target.name,
            diff="",
            jobs=request.jobs,
            seconds=ITEM_SECONDS,
            revert=[],
            enable=[],
            toggles=request.toggles,
        )
        deployments = rehearsal.list_deployments(rehearse_request, [])
        return rehearsal.rehearse_release(target, rehearse_request, deployments)

    kind = ItemKind(
        noun="deployment",
        command="./unfix rehearse {names} --diff {base}..{head}",
        record_command="./unfix rehearse {names} --release {base}",
        whole="--all",
        ends=2,
    )
    deployments = read_deployments()
    models = {name: set(one.config["architectures"]) for name, one in deployments.items()}
    definitions = {name: f"{name} {' '.join(one.arguments)}" for name, one in deployments.items()}
    table = RehearsalTable(store)
    return ItemPart(kind, models, definitions, 1.0, table, RehearsalRun, execute)


PARTS: dict[PrPart, Callable[[PrRequest, Store], ItemPart]] = {
    PrPart.ZOO: make_zoo_part,
    PrPart.REHEARSE: make_rehearse_part,
}


def _execute_on(review: Review, part: ItemPart, target: ReleaseTarget, names: list[str]) -> Any:
    """Run items on an end, with the lines of the changed files that they run."""
    files = [name for name in review.change.files_of_package if name.endswith(".py")]
    variables = {TRACED_VARIABLE: os.pathsep.join(files)}
    if target is review.base and part.kind.noun == "architecture" and review.capture is not None:
        variables[CAPTURE_VARIABLE] = str(review.capture.folder)
    os.environ.update(variables)
    try:
        done = part.execute_on(target, names)
    finally:
        for name in variables:
            del os.environ[name]
    review.run.runs[f"{part.table.kind} {target.name}"] = done.id
    return done


def _note_runs(review: Review, part: ItemPart, before: Any, after: Any) -> None:
    """Note the lines that items ran; one that does not start on the base compares nothing."""
    started = {one.name for one in before.results if has_started(one)}
    for is_head, run in ((False, before), (True, after)):
        for result in run.results:
            if result.name in started:
                name = f"{part.table.kind} {result.name}"
                review.line_runs.add(is_head, name, result.lines)


def has_started(result: Any) -> bool:
    """Return whether a row or a deployment ran as far as its answers or batches."""
    if isinstance(result, ArchitectureResult):
        return result.starts or bool(result.answers)
    return not result.refusal


def _find_touched(review: Review, part: ItemPart) -> list[TouchedItem]:
    """Find the items that run changed code; those of which too little is known run on the base."""
    with review.count_as_base():
        recorded = _record_unknown(part, review.base, review.request.toggles, review.request.budget)
    if recorded is not None:
        review.run.runs[f"functions of {part.table.kind} {review.base.name}"] = recorded.id
    results = _find_known_results(part, review.base)
    unknown = _list_unknown(part, results)
    if unknown:
        command = part.kind.fill_record_command(unknown, review.base.name)
        review.note(
            f"{format_count(len(unknown), part.kind.noun)} of {len(part.models)}: the functions "
            f"that they run are not known, only kernels and models: `{command}` runs them"
        )
    kernels = [
        name
        for listed in review.listed_kernels
        for name in (listed.change.kernel, listed.earlier)
        if name
    ]
    code = touched_items.find_changed_code(review.change, kernels, results.values())
    touched = touched_items.find_touched(code, results, part.models)
    features = touched_items.find_changed_features(review.change)
    return touched_items.sort_touched(touched, features, part.definitions)


def _record_unknown(
    part: ItemPart, base: ReleaseTarget, toggle_folders: list[Path], seconds: float
) -> Any:
    """Run on the base the items whose functions no stored run and no record has.

    The quickest run first, as long as the seconds last. The store keeps what they ran, so this
    happens once; those that ran on the base with this code of ours, and have no functions all the
    same, do not run again. Return the run; None if there is nothing to run.
    """
    code = guard_runs.digest_lane_code(base, toggle_folders)
    results = _find_known_results(part, base)
    unknown = _list_unknown(part, results)
    names = touched_items.leave_out_recorded(part.table, base.name, code, unknown)
    names = touched_items.choose_quickest(names, results, seconds)
    if not names:
        return None
    options.report_status(
        f"{format_count(len(names), part.kind.noun)}: the functions that they run are not "
        f"known: they run on {base.name} once"
    )
    return part.execute_on(base, names)


def _find_known_results(part: ItemPart, base: ReleaseTarget) -> dict[str, LaneResult]:
    return touched_items.find_known_results(part.table, part.run_type, base.name, list(part.models))


def _list_unknown(part: ItemPart, results: dict[str, LaneResult]) -> list[str]:
    return [name for name in part.models if name not in results or not results[name].functions]


def _choose_items(
    review: Review, part: ItemPart, touched: list[TouchedItem], limit: int | None
) -> list[str]:
    """Choose those that the limit and the budget allow, and name the others in a note."""
    kind, lanes = part.kind, guard_runs.choose_job_count("cpu", review.request.jobs)
    touched_items.leave_out(touched, kind, limit, review.seconds_left * part.share, lanes)
    left_out = [item for item in touched if item.left_out]
    for reason, names in _group_by_reason(left_out).items():
        rest = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        command = kind.fill_command(names[0], review.base.name, review.head.name)
        review.note(
            f"not run, though they run changed code: {', '.join(names[:MAX_NAMED])}{rest} "
            f"({reason}); `{command}` runs one"
        )
    return [one.name for one in touched if not one.left_out]


def _group_by_reason(items: Iterable[TouchedItem]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for item in items:
        groups.setdefault(item.left_out, []).append(item.name)
    return groups
