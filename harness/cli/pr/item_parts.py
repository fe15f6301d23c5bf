"""The parts of a review that run whole models: architectures of the zoo, deployments.

Those that are known to run changed code are named; a few of them run, the most concerned first, as
long as the budget lasts. The others are left out by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.cli import guard_runs
from harness.cli.pr.review import Review
from harness.core.wording import format_count
from harness.runs.pr import touched_items
from harness.runs.pr.touched_items import MAX_NAMED, ItemKind
from harness.runs.rehearse.deployment import Deployment, read_deployments
from harness.runs.zoo.architecture import read_architectures
from harness.store.lane_runs import LaneRunTable
from harness.store.pr.values import TouchedItem
from harness.store.rehearse.values import RehearsalRun
from harness.store.zoo.values import ZooRun
from harness.workers.release_target import ReleaseTarget

ITEM_SECONDS = 240.0  # the limit of one architecture or deployment


def run_zoo(review: Review) -> None:
    """Run architectures that run changed code: on the head, and on the base those that fail."""
    from harness.cli.zoo import command as zoo
    from harness.runs.zoo.request import ZooRequest

    run = review.run
    kind = ItemKind(
        noun="architecture",
        command="./unfix zoo {names} --release {head}",
        record_command="./unfix zoo {names} --release {base}",
        whole="",
        ends=1,
    )
    models = {one.name: {one.name, one.model_type} for one in read_architectures([])}
    run.architectures = _find_touched(review, kind, review.store.zoo, ZooRun, models)
    names = _choose(review, kind, run.architectures, review.request.zoo_limit)
    if not names:
        return

    def execute_on(target: ReleaseTarget) -> ZooRun:
        request = ZooRequest(
            names=names,
            release=target.name,
            card="H100",
            jobs=review.request.jobs,
            seconds=ITEM_SECONDS,
            revert=[],
            enable=[],
            toggles=review.request.toggles,
            check=[],
        )
        done, is_stopped = zoo.execute_zoo(target, request)
        run.runs[f"zoo {target.name}"] = done.id
        if is_stopped:
            raise KeyboardInterrupt
        return done

    after = execute_on(review.head)
    before = execute_on(review.base) if touched_items.needs_base_run(after) else None
    run.claims = touched_items.compare_claims(before, after)


def rehearse(review: Review) -> None:
    """Rehearse deployments that run changed code on both ends; a stored run of the base counts."""
    from harness.cli.rehearse import command as rehearsal
    from harness.runs.rehearse.comparison import compare_runs
    from harness.runs.rehearse.request import RehearseRequest

    run, known = review.run, read_deployments()
    kind = ItemKind(
        noun="deployment",
        command="./unfix rehearse {names} --diff {base}..{head}",
        record_command="./unfix rehearse {names} --release {base}",
        whole="--all",
        ends=2,
    )
    models = {name: _list_classes(one) for name, one in known.items()}
    run.deployments = _find_touched(review, kind, review.store.rehearse, RehearsalRun, models)
    names = _choose(review, kind, run.deployments, review.request.deployment_limit)
    if not names:
        return

    def execute_on(target: ReleaseTarget) -> RehearsalRun:
        request = RehearseRequest(
            models=names,
            config=None,
            gpu=None,
            gpus=None,
            all=False,
            thresholds=False,  # a search takes longer than the batches
            release=target.name,
            diff="",
            jobs=review.request.jobs,
            seconds=ITEM_SECONDS,
            revert=[],
            enable=[],
            toggles=review.request.toggles,
        )
        done, is_stopped = rehearsal.rehearse(
            target, request, rehearsal.list_deployments(request, [])
        )
        run.runs[f"rehearse {target.name}"] = done.id
        if is_stopped:
            raise KeyboardInterrupt
        return done

    code = guard_runs.digest_lane_code(review.base, review.request.toggles)
    before = (
        review.store.rehearse.find_newest_whole(review.base.name, names, code) if code else None
    )
    before = before or execute_on(review.base)
    after = execute_on(review.head)
    run.rehearsals = compare_runs(before, after)
    for one in after.deployments:
        if one.refusal and not any(change.deployment == one.name for change in run.rehearsals):
            review.note(f"{one.name} starts on neither end: {one.refusal}")


def _list_classes(deployment: Deployment) -> set[str]:
    return set(deployment.config["architectures"])


def _find_touched(
    review: Review,
    kind: ItemKind,
    table: LaneRunTable[Any],
    run_type: type[Any],
    models: dict[str, set[str]],
) -> list[TouchedItem]:
    """Find the items that run changed code, by stored runs and the record of the newest release."""
    results = touched_items.find_known_results(table, run_type, review.base.name, list(models))
    unknown = [name for name in models if name not in results or not results[name].functions]
    if unknown:
        command = kind.fill_record_command(unknown, review.base.name)
        review.note(
            f"{format_count(len(unknown), kind.noun)} of {len(models)}: the functions that they "
            f"run are not known, only kernels and models: `{command}` records them"
        )
    kernels = [
        name for one in review.listed_kernels for name in (one.change.kernel, one.earlier) if name
    ]
    code = touched_items.find_changed_code(review.change, kernels, results.values())
    return touched_items.find_touched(code, results, models)


def _choose(review: Review, kind: ItemKind, touched: list[TouchedItem], limit: int) -> list[str]:
    """Choose those that the limit and the budget allow, and name the others in a note."""
    touched_items.leave_out(touched, kind, limit, review.seconds_left)
    left_out = [one for one in touched if one.left_out]
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
    for one in items:
        groups.setdefault(one.left_out, []).append(one.name)
    return groups
