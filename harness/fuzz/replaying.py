"""A kept failure on any release: what its one example comes to there."""

from __future__ import annotations

import select
import shutil
import time

import msgspec

from harness import paths
from harness.errors import NotReady, UnfixError
from harness.fuzz import failures
from harness.fuzz.decoding import NOT_THE_SHAPE, no_longer_decodes, same
from harness.fuzz.lanes import Asked, Lane
from harness.fuzz.values import Collected, Ended, Note, Repro, Said, Slice
from harness.prove.messages import Failed
from harness.prove.run import TO_START
from harness.store.prove.values import Outcome


class Replayed(msgspec.Struct):
    """What came of it."""

    release: str
    test: str
    fails: bool
    headline: str
    arguments: list[str]
    detail: str


def replay(failure: Repro, asked: Asked) -> Replayed:
    """Run a failure's example once, on the one release that is asked for."""
    failures.file_of(failure)
    (target,) = asked.targets
    lane = Lane(asked, target, paths.state() / "fuzz" / "replays" / target.name)
    try:
        lane.start()
        number = _number(lane, failure)
        assert lane.worker is not None
        lane.worker.tell(_only(failure, number, asked))
        (ended,) = [each for each in _next(lane, asked.limit + 60) if isinstance(each, Ended)]
        note = lane.worker.note(ended.serial)
        found = lane.worker.found(ended.serial)
        words = found[0].headline if found else ended.headline
    finally:
        lane.end()
        shutil.rmtree(lane.folder, ignore_errors=True)
    return _judged(failure, target.name, ended, note, words)


def _number(lane: Lane, failure: Repro) -> int:
    for said in _next(lane, TO_START):
        if isinstance(said, Failed):
            raise (UnfixError if said.wrong_call else NotReady)(said.problem)
        if isinstance(said, Collected):
            for test in said.tests:
                if test.name == failure.test:
                    if test.left_out:
                        raise UnfixError(
                            f"{test.name} cannot be replayed on SGLang {lane.target.name}: "
                            f"{test.left_out}"
                        )
                    return test.number
    raise UnfixError(f"pytest does not collect {failure.test} on SGLang {lane.target.name}")


def _only(failure: Repro, number: int, asked: Asked) -> Slice:
    now = time.monotonic()
    return Slice(
        number=number,
        serial=1,
        seed=failure.seed,
        memory=asked.memory,
        generate_until=now + asked.limit,
        shrink_until=now + asked.limit,
        end_after=asked.limit,
        only=failure.blob,
    )


def _next(lane: Lane, seconds: float) -> list[Said]:
    """What a worker says next; it has so long for it."""
    assert lane.worker is not None
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if not select.select([lane.worker.read_end], [], [], 0.5)[0]:
            continue
        said = lane.worker.said()
        if said is None:
            break
        if said:
            return said
    raise NotReady(f"SGLang {lane.target.name} said nothing: {lane.worker.last_words()}")


def _judged(failure: Repro, release: str, ended: Ended, note: Note | None, words: str) -> Replayed:
    outcome = Outcome(ended.outcome)
    if outcome in (Outcome.NA, Outcome.SKIPPED):
        raise UnfixError(f"{failure.test} says of SGLang {release}: {ended.headline}")
    if note is None or note.examples == 0 or NOT_THE_SHAPE in ended.headline:
        if outcome is Outcome.ERROR and "DidNotReproduce" not in ended.headline:
            raise UnfixError(f"{failure.test} cannot be run on SGLang {release}: {ended.headline}")
        raise UnfixError(no_longer_decodes(failure, []))
    if not same(note.arguments, failure.arguments):
        raise UnfixError(no_longer_decodes(failure, note.arguments))
    fails = not ended.headline.startswith("DidNotReproduce")
    return Replayed(
        release=release,
        test=failure.test,
        fails=fails,
        headline=words if fails else "passes",
        arguments=note.arguments,
        detail=ended.detail if fails else "",
    )
