"""How much of the registry `unfix adopt` and `drift --mend` write by themselves.

    .venv/bin/python -m bench.run adopting [TOGGLE …]

Round trip: edits are built from a toggle's two texts on the newest release that has it, and ported
to all releases; 'equal' if each release has the state that the registry gives. Held back: the
newest variant is removed and the range of the one before is opened; 'equal' if the proposed edits
have the same effect on each release of the removed variant.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import msgspec

from bench.measuring import Result
from harness.fixes.adopt import release_timeline, stale_repair
from harness.fixes.adopt.edit_porting import ResolvedEdits, has_same_effect, resolve_edits
from harness.fixes.adopt.module_diff import ModuleDiff
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.patch_plan import FLIP_DIRECTIONS, ToggleChoice, make_plan
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.schema import Toggle, ToggleEdit
from harness.releases import managed_releases
from harness.releases.source_trees import SourceTree


@dataclass(frozen=True)
class AdoptionTrial:
    """The two results of one toggle: 'equal', or the releases that differ, and how."""

    toggle: str
    round_trip: str
    held_back: str
    seconds: float  # processor time of both


def build_toggle_edits(toggle: Toggle, trees: list[SourceTree]) -> ResolvedEdits | None:
    """Build a toggle's edits from its two texts on the newest release that has it."""
    tree = next(
        t for t in reversed(trees) if find_toggle_status(toggle, t).state in FLIP_DIRECTIONS
    )
    state = find_toggle_status(toggle, tree).state
    edits: list[ToggleEdit] = []
    for module in make_plan(
        [ToggleChoice(toggle, FLIP_DIRECTIONS[state])], tree, tree.name
    ).modules:
        source = tree.read(module.module)
        assert source is not None
        pair = (source.text, module.text)
        texts = pair if state is ToggleState.FIXED else pair[::-1]
        edits += [built.edit for built in ModuleDiff(module.module, *texts).build_edits()[0]]
    return resolve_edits(edits, tree)


def round_trip(toggle: Toggle, trees: list[SourceTree]) -> str:
    edits = build_toggle_edits(toggle, trees)
    if edits is None:
        return "no pair of forms tells it on the newest release that has it"
    found = release_timeline.trace_edits(edits, trees)
    differences = []
    for tree, cell in found.cells:
        wanted = find_toggle_status(toggle, tree).state
        state = cell.state if isinstance(cell, ResolvedEdits) else ToggleState.ABSENT
        if state is not wanted:
            differences.append(f"{tree.name} is {wanted.value}, judged {state.value}")
    return "; ".join(differences) or "equal"


def held_back(toggle: Toggle, trees: list[SourceTree]) -> str:
    """Return 'equal', 'none' (no proposal), 'fewer' (places), 'wrong' or 'not stale'."""
    if len(toggle.variants) < 2:
        return "-"
    newest = toggle.variants[-1]
    found = stale_repair.repair_toggle(without_newest(toggle), trees)
    words = []
    for tree in trees:
        if tree.version is None or not newest.specifier.contains(tree.version):
            continue
        proposal = found.proposals.get(tree.name) if found else None
        wanted = resolve_edits(stale_repair.to_targeted_edits(newest), tree)
        if proposal is None:
            words.append("not stale")
        elif isinstance(proposal, str) or wanted is None:
            words.append("none")
        elif has_same_effect(proposal, wanted):
            words.append("equal")
        else:
            few = proposal.state is wanted.state and len(proposal.edits) < len(wanted.edits)
            words.append("fewer" if few else "wrong")
    return ", ".join(dict.fromkeys(words))


def without_newest(toggle: Toggle) -> Toggle:
    *older, last = toggle.variants[:-1]
    left = msgspec.structs.replace(last, releases=last.releases.split(",")[0])
    return msgspec.structs.replace(toggle, variants=(*older, left))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="TOGGLE")


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    trees = [release.open_sources() for release in managed_releases.list_releases()]
    known_toggles = toggle_catalogue.load_catalogue()
    outcomes = []
    for toggle in known_toggles.select_or_all(options.names):
        began = time.process_time()
        trip, without_variant = round_trip(toggle, trees), held_back(toggle, trees)
        seconds = round(time.process_time() - began, 1)
        outcomes.append(AdoptionTrial(toggle.id, trip, without_variant, seconds))
        print(f"{toggle.id:32} {without_variant:12} {trip}", flush=True)
    tried = [outcome.held_back for outcome in outcomes if outcome.held_back != "-"]
    equal = sum(outcome.round_trip == "equal" for outcome in outcomes)
    summary = {
        "round trip": f"{equal} of {len(outcomes)} equal",
        "held back": {word: tried.count(word) for word in sorted(set(tried))},
    }
    toggles = [asdict(outcome) for outcome in outcomes]
    yield Result({"summary": summary, "toggles": toggles}, summary=summary)
