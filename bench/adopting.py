"""How much of the registry `unfix adopt` and `drift --mend` would have written by themselves.

    .venv/bin/python bench/adopting.py [--record FILE] [TOGGLE …]    # FILE keeps what is not named

Round trip: a toggle's two texts on the newest release that has it, told anew and followed through
all releases; equal where each release has the state that the registry says. Held back: its newest
variant is taken away and the one before left open; equal where what is proposed does the same to
each release that the variant was for.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from bench.recording import record
from harness.adopt import course, mending
from harness.adopt.following import FLIP, Known, known, same_effect
from harness.adopt.forms import Telling
from harness.matching.states import State, find
from harness.patching.plan import Choice, make
from harness.registry import catalogue
from harness.registry.schema import Edit, Toggle
from harness.releases import managed
from harness.releases.sources import SourceTree


@dataclass(frozen=True)
class Outcome:
    """What came of one toggle: 'equal', or which releases are not, and how."""

    toggle: str
    round_trip: str
    held_back: str
    seconds: float  # of a processor, for both


def told(toggle: Toggle, trees: list[SourceTree]) -> Known | None:
    """The toggle's forms as they are made from its two texts on the newest release that has it."""
    tree = next(t for t in reversed(trees) if find(toggle, t).state in FLIP)
    state = find(toggle, tree).state
    edits: list[Edit] = []
    for module in make([Choice(toggle, FLIP[state])], tree, tree.name).modules:
        source = tree.read(module.module)
        assert source is not None
        pair = (source.text, module.text)
        texts = pair if state is State.FIXED else pair[::-1]
        edits += [one.edit for one in Telling(module.module, *texts).edits()[0]]
    return known(edits, tree)


def round_trip(toggle: Toggle, trees: list[SourceTree]) -> str:
    there = told(toggle, trees)
    if there is None:
        return "no pair of forms tells it on the newest release that has it"
    found = course.through(there, trees)
    odd = []
    for tree, cell in found.cells:
        wanted = find(toggle, tree).state
        state = cell.state if isinstance(cell, Known) else State.ABSENT
        if state is not wanted:
            odd.append(f"{tree.name} is {wanted.value}, told {state.value}")
    return "; ".join(odd) or "equal"


def held_back(toggle: Toggle, trees: list[SourceTree]) -> str:
    """'equal', 'none' where nothing is proposed, 'fewer' places, 'wrong', or 'not stale'."""
    if len(toggle.variants) < 2:
        return "-"
    newest = toggle.variants[-1]
    found = mending.mend(without_newest(toggle), trees)
    words = []
    for tree in trees:
        if tree.version is None or not newest.specifier.contains(tree.version):
            continue
        proposal = found.proposals.get(tree.name) if found else None
        wanted = known(mending.with_targets(newest), tree)
        if proposal is None:
            words.append("not stale")
        elif isinstance(proposal, str) or wanted is None:
            words.append("none")
        elif same_effect(proposal, wanted):
            words.append("equal")
        else:
            few = proposal.state is wanted.state and len(proposal.edits) < len(wanted.edits)
            words.append("fewer" if few else "wrong")
    return ", ".join(dict.fromkeys(words))


def without_newest(toggle: Toggle) -> Toggle:
    *older, last = toggle.variants[:-1]
    left = msgspec.structs.replace(last, releases=last.releases.split(",")[0])
    return msgspec.structs.replace(toggle, variants=(*older, left))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="TOGGLE")
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    trees = [release.sources() for release in managed.all_releases()]
    known_toggles = catalogue.load()
    chosen = known_toggles.select_or_all(arguments.names)
    outcomes = []
    for toggle in chosen:
        began = time.process_time()
        trip, held = round_trip(toggle, trees), held_back(toggle, trees)
        seconds = round(time.process_time() - began, 1)
        outcomes.append(Outcome(toggle.id, trip, held, seconds))
        print(f"{toggle.id:32} {held:12} {trip}", flush=True)
    if arguments.record and arguments.names and arguments.record.exists():
        asked = {one.toggle for one in outcomes}
        before = [Outcome(**one) for one in json.loads(arguments.record.read_text())["toggles"]]
        known_ids = {toggle.id for toggle in known_toggles}
        left = [one for one in before if one.toggle in known_ids - asked]
        outcomes = sorted([*outcomes, *left], key=lambda one: one.toggle)
    tried = [one.held_back for one in outcomes if one.held_back != "-"]
    equal = sum(one.round_trip == "equal" for one in outcomes)
    summary = {
        "round trip": f"{equal} of {len(outcomes)} equal",
        "held back": {word: tried.count(word) for word in sorted(set(tried))},
    }
    print(json.dumps(summary, indent=1))
    told = {"summary": summary, "toggles": [asdict(one) for one in outcomes]}
    record(told, arguments.record, say=False)


if __name__ == "__main__":
    main()
