"""`unfix show TOGGLE`: prints its story, its state on a release, and its patch as a diff."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from typing import Any

from harness.cli import guard_runs, options
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.patch_plan import format_toggle_diff
from harness.fixes.registry.schema import Toggle
from harness.guards import proof_exceptions
from harness.guards.proof_exceptions import ProofException
from harness.releases import managed_releases
from harness.releases.source_trees import SourceTree
from harness.store.prove import recorded_proofs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="TOGGLE", help="ids, PR numbers or globs")
    options.add_release(parser)
    options.add_toggle_folders(parser)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    catalogue = options.load_catalogue(arguments)
    toggles = catalogue.select_all(arguments.names)
    gaps = proof_exceptions.load_project_exceptions(catalogue)
    tree = options.find_tree(arguments.release, fetch=True)
    if guard_runs.mend_for_named_tree(arguments.release, tree, arguments.toggles):
        toggles = options.load_catalogue(arguments).select_all(arguments.names)
    rows = [toggle_to_json(toggle, tree, gaps) for toggle in toggles]
    if arguments.json:
        options.print_json(rows)
    else:
        for data in rows:
            print_toggle(data)
    return 1 if any(data["state"] == ToggleState.STALE.value for data in rows) else 0


def toggle_to_json(
    toggle: Toggle, tree: SourceTree | None, gaps: Sequence[ProofException]
) -> dict[str, Any]:
    status = find_toggle_status(toggle, tree) if tree else None
    known = [release.name for release in managed_releases.list_releases()]
    proofs = recorded_proofs.load_proofs(known).get(toggle.id, ())
    directions = {ToggleState.FIXED: "revert", ToggleState.BUGGY: "enable"}
    return options.toggle_to_json(toggle, status) | {
        "why": toggle.why.strip(),
        "proven": [proof.describe(known) for proof in proofs],
        "not_proven": [gap.describe() for gap in gaps if gap.toggle == toggle.id],
        "release": str(tree.version or tree.name) if tree else None,
        "problem": status.problem if status else "",
        "nearest": status.nearest if status else "",
        "variants": [
            {"releases": variant.releases, "targets": [str(target) for target in variant.targets]}
            for variant in toggle.variants
        ],
        "does": directions.get(status.state, "") if status else "",
        "diff": format_toggle_diff(status, tree) if status and tree else "",
    }


def print_toggle(data: dict[str, Any]) -> None:
    from rich.text import Text

    out = options.make_console()
    out.print(Text.assemble((data["id"], "bold"), "  ", data["title"]))
    facts = f"{data['family']} · {data['symptom']} · {', '.join(data['devices'])}"
    if data["upstream"]:
        facts += " · " + ", ".join(f"#{number}" for number in data["upstream"])
    out.print(Text(facts, style="dim"))
    if data["why"]:
        width = min(96, options.get_output_width() - 2)
        print(textwrap.indent(textwrap.fill(data["why"], width), "  "))
    for proof in data["proven"]:
        out.print(Text(f"proven on {proof}", style="dim"))
    for gap in data["not_proven"]:
        out.print(Text(f"not proven {gap}", style="yellow"))
    out.print()
    for variant in data["variants"]:
        for target in variant["targets"]:
            out.print(Text(f"  {variant['releases']:<18} {target}"), soft_wrap=True)
    out.print()
    if data["state"]:
        style = options.STATE_STYLES[data["state"]]
        out.print(Text.assemble(f"on SGLang {data['release']}: ", (data["state"], style)))
    if data["problem"]:
        out.print(Text(data["problem"], style="red"))
    if data["nearest"]:
        out.print(Text(data["nearest"]), soft_wrap=True)
    if data["diff"]:
        out.print(f"`{data['does']}` does this:")
        options.print_diff(out, data["diff"])
    out.print()
