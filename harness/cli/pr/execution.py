"""The execution of `unfix pr`: prepares both ends, and runs the parts of a review one by one."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import msgspec

from harness.cli import guard_runs, options, run_output
from harness.cli.pr import item_parts, parts
from harness.cli.pr.review import Review, record_coverage
from harness.core import machine
from harness.core.errors import UnfixError
from harness.core.files import write_atomically
from harness.core.outcomes import RunStatus
from harness.core.wording import format_count, format_duration
from harness.releases import added_releases
from harness.runs.pr import proposed_tests, source_change
from harness.runs.pr import request as requests
from harness.runs.pr.joined_reviews import join_runs
from harness.runs.pr.request import PrRequest
from harness.store.database import Store
from harness.store.pr.table import PrTable
from harness.store.pr.values import PrPart, PrRun
from harness.workers.release_target import ReleaseTarget

SOURCE_PARTS = {PrPart.TOGGLES, PrPart.AUDIT}  # read no more than the sources of both ends


def review_change(request: PrRequest) -> PrRun:
    """Review a change to its end, or until Ctrl-C; return the stored run."""
    started_at = time.monotonic()
    ends = requests.find_range(request.checkout, request.range)
    paths = ends.list_changed_paths()
    targets = _prepare_ends([ends.base_word, ends.head_word], request.parts)
    change = source_change.read_change(targets[0].sources, targets[1].sources, paths)
    run_id, started = guard_runs.make_id_and_start()
    facts = machine.collect_machine_facts(str(targets[1].python))
    run = PrRun(
        id=run_id,
        started=started,
        checkout=str(ends.repository.folder),
        range=request.range,
        base=targets[0].name,
        head=targets[1].name,
        command=run_output.get_recorded_command(),
        machine=facts,
        settings={
            "profile": request.profile,
            "faults": request.fault_limit,
            "seed": request.seed,
            "architectures": request.zoo_limit,
            "deployments": request.deployment_limit,
            "budget": request.budget,
            "code": guard_runs.digest_guards_and_toggles(request.toggles, []),
            "commit": machine.describe_commit(),
        },
        subjects=ends.list_subjects(),
        files=change.files,
        others=change.others,
        planned=request.parts,
        accepted=request.accepted,
    )
    store = Store()
    options.report_status(
        f"{run.base}..{run.head}: {format_count(len(run.files), 'changed file')} of the package, "
        f"{len(run.others)} others; run {run.id}"
    )
    review = Review(request, run, store, targets[0], targets[1], change, started_at)
    run.part_seconds["prepare"] = time.monotonic() - started_at
    review.judge_lines()
    run.seconds = time.monotonic() - started_at
    with contextlib.suppress(KeyboardInterrupt), PrTable(store).record_run(run):
        _run_parts(review)
    return run


def write_tests(run: PrRun, folder: Path) -> None:
    """Write the tests that a review proposes, and say which."""
    tests = proposed_tests.list_tests(run)
    for name, text in tests.items():
        write_atomically(folder / name, text)
    named = ", ".join(str(folder / name) for name in tests)
    options.report_status(
        f"{format_count(len(tests), 'test')} that the change fails: {named}"
        if tests
        else "no test is proposed: no launch or lifecycle shows a difference"
    )


def _prepare_ends(words: list[str], chosen: list[PrPart]) -> list[ReleaseTarget]:
    """Prepare both ends; parts that only read sources need no environment of either."""
    if set(chosen) - SOURCE_PARTS:
        return guard_runs.prepare_targets(words, mends_toggles=False)
    releases = [added_releases.find_release(word, "cpu", options.report_status) for word in words]
    return [
        ReleaseTarget(release.name, Path(sys.executable), release.open_sources(), release.name)
        for release in releases
    ]


def _run_parts(review: Review) -> None:
    started = time.monotonic()
    parts.find_toggle_changes(review)  # mends stale toggles for the other parts
    review.run.part_seconds[PrPart.TOGGLES.value] = time.monotonic() - started
    for part, run_part in parts.PARTS.items():
        if part not in review.request.parts:
            continue
        started = time.monotonic()
        times = review.run.part_seconds
        of_base = times.get("base", 0.0)
        if review.run.files:
            run_part(review)
        seconds = time.monotonic() - started - (times.get("base", 0.0) - of_base)
        review.run.parts.append(part)
        times[part.value] = times.get(part, 0.0) + seconds
        review.judge_lines()
        PrTable(review.store).save(msgspec.structs.replace(review.run, status=RunStatus.RUNNING))
        options.report_status(f"{part}: {format_duration(review.run.part_seconds[part.value])}")


def record_base(request: PrRequest, base: str, as_json: bool) -> int:
    """Record what guards, architectures and deployments run on a base, for the reviews to come."""
    folder = request.checkout.expanduser().resolve()
    (target,) = guard_runs.prepare_targets([f"{folder}@{base}"], toggle_folders=request.toggles)
    coverages = record_coverage(request, target)
    item_parts.record_unknown_items(request, Store(), target)
    if as_json:
        options.print_json({"base": target.name, "guards": len(coverages)})
    else:
        print(f"{target.name}: the lines of {format_count(len(coverages), 'guard')} are recorded")
    return 0


def _read_review(name: str, store: Store) -> PrRun:
    """Read a review from the store, or from the file that `--record` wrote."""
    file = Path(name)
    if not file.is_file():
        return PrTable(store).get(name)
    try:
        return msgspec.json.decode(file.read_bytes(), type=PrRun)
    except msgspec.MsgspecError as error:
        raise UnfixError(f"{file} is no record of a review: {error}") from error


def join_reviews(names: list[str], planned: list[PrPart], accepted: list[str]) -> PrRun:
    """Join the parts of stored reviews of one change, and store the whole."""
    store = Store()
    runs = [_read_review(name, store) for name in names]
    if len({(run.base, run.head) for run in runs}) > 1:
        ends = ", ".join(sorted({f"{run.base}..{run.head}" for run in runs}))
        raise UnfixError(f"these are reviews of several changes: {ends}")
    whole = join_runs(runs, planned)
    whole.accepted = accepted
    whole.id, _ = guard_runs.make_id_and_start()
    PrTable(store).begin(whole)
    PrTable(store).save(whole)
    return whole
