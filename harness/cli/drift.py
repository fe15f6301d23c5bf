"""`unfix drift`: shows the state of every toggle on every release, from its sources."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import options
from harness.core.errors import CommandLineError
from harness.fixes.drift import DriftSurvey, survey_drift
from harness.fixes.matching import nearest_code
from harness.fixes.registry.schema import Toggle
from harness.releases import managed_releases, provisioning, source_trees
from harness.releases.source_trees import SourceTree
from harness.store.prove import recorded_proofs

if TYPE_CHECKING:
    from rich.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="TOGGLE", help="ids, families or globs")
    parser.add_argument(
        "--release", action="append", default=[], metavar="R", help="only this managed release"
    )
    parser.add_argument(
        "--from",
        dest="paths",
        nargs="+",
        default=[],
        type=Path,
        metavar="PATH",
        help="wheels, checkouts or installed folders to read instead",
    )
    parser.add_argument(
        "--mend", action="store_true", help="propose a variant for each stale cell, as a diff"
    )
    parser.add_argument("--write", action="store_true", help="with --mend: write it into the file")
    options.add_toggle_folders(parser)
    options.add_json(parser)


@dataclass(frozen=True)
class DriftRequest:
    """The arguments of `unfix drift`; `paths` has the values of --from, perhaps with toggles."""

    names: list[str]
    release: list[str]
    paths: list[Path]
    mend: bool
    write: bool
    toggles: list[Path]
    json: bool
    usage: str


def run_command(arguments: argparse.Namespace) -> int:
    request = options.make_request(DriftRequest, arguments)
    if request.write and not request.mend:
        raise CommandLineError("--write goes with --mend", request.usage)
    catalogue = options.load_catalogue(arguments)
    # `--from` takes all following words; a word that is no path is a toggle.
    sources = [path for path in request.paths if path.exists() or path.suffix == ".whl"]
    more_names = [str(path) for path in request.paths if path not in sources]
    options.split_names_and_paths(more_names, request.usage)
    names = request.names + more_names
    toggles = options.select_toggles_or_all(catalogue, names, request.usage)
    trees = [source_trees.open_tree(path) for path in sources]
    releases = [managed_releases.get_release(name) for name in request.release]
    if releases or not trees:
        releases = releases or managed_releases.list_releases()
        trees += provisioning.ensure_sources(releases, options.report_status)
    trees.sort(key=lambda tree: (tree.version is None, tree.version or 0))
    if request.mend:
        return _mend_stale_cells(request, toggles, trees)
    survey = survey_drift(toggles, trees, only_named=bool(names))
    known = [release.name for release in managed_releases.list_releases()]
    surveyed = {tree.name for tree in trees}
    proofs = {
        toggle: [proof.describe(known) for each in entries if (proof := each.restrict(surveyed))]
        for toggle, entries in recorded_proofs.load_proofs(known).items()
    }
    unproven = [tree.name for tree in trees if tree.name not in known]
    if request.json:
        options.print_json(
            survey.as_data()
            | {
                "proven": {t.id: proofs.get(t.id, []) for t in toggles},
                "without_proofs": unproven,
                "note": STATE_NOTE,
            }
        )
    else:
        print_drift(survey, options.make_console(), proofs, unproven)
    return 1 if survey.stale_count else 0


def _mend_stale_cells(request: DriftRequest, toggles: list[Toggle], trees: list[SourceTree]) -> int:
    """Propose a variant for each stale cell, with the reasons."""
    from harness.fixes.adopt import mended_toggles
    from harness.fixes.registry import toggle_catalogue

    files = toggle_catalogue.find_toggle_files(request.toggles)
    rows: list[dict[str, Any]] = []
    unmended = 0
    versions = {tree.version for tree in trees}
    stale = mended_toggles.find_stale_toggles(toggles, trees)
    known = provisioning.open_repair_sources(trees, options.report_status) if stale else []
    others = [tree for tree in known if tree.version not in versions]
    for toggle in stale:
        path = files[toggle.id]
        mended = mended_toggles.repair_file(toggle, path, trees, others)
        if mended is None:
            continue
        repair, text, diff = mended.repair, mended.text, ""
        if text:
            before = path.read_text(encoding="utf-8")
            diff = nearest_code.format_diff(before, text, f"a/{path.name}", f"b/{path.name}")
        if request.write and text:
            path.write_text(text, encoding="utf-8")
        unmended += sum(isinstance(proposal, str) for proposal in repair.proposals.values())
        rows.append(
            {
                "id": toggle.id,
                "proposals": {
                    name: {"state": None, "why": [proposal]}
                    if isinstance(proposal, str)
                    else {"state": proposal.state.value, "why": list(proposal.remarks)}
                    for name, proposal in repair.proposals.items()
                },
                "diff": diff,
                "written": bool(request.write and text),
            }
        )
    if request.json:
        options.print_json({"mended": rows, "unmended": unmended})
    else:
        _print_mended(rows, unmended, options.make_console())
    return 1 if unmended or any(not row["written"] for row in rows) else 0


def _print_mended(mended: list[dict[str, Any]], unmended: int, out: Console) -> None:
    for row in mended:
        out.print(f"[bold]{row['id']}[/]")
        for name, proposal in row["proposals"].items():
            state = proposal["state"] or "nothing is proposed"
            why = "; ".join(proposal["why"]) or "its forms are those of the release beside it"
            out.print(f"  {name}: {state}: {why}", soft_wrap=True)
        options.print_diff(out, row["diff"])
        out.print()
    cells = sum(len(row["proposals"]) for row in mended)
    if not cells:
        out.print("nothing is stale")
        return
    out.print(f"{cells} stale cells, {cells - unmended} with a proposal")
    if any(row["diff"] and not row["written"] for row in mended):
        out.print("`--write` writes them into the files; read them first")


STATE_MARKS = {
    "fixed": ("fixed", "fix", "green"),
    "buggy": ("BUGGY", "BUG", "yellow"),
    "absent": ("·", "·", "dim"),
    "outside": ("-", "-", "dim"),
    "stale": ("STALE", "!!!", "bold red"),
    "applies": ("applies", "ok", "green"),
    "broken": ("BROKEN", "BRK", "bold red"),
}
FULL_WIDTH = 118
STATE_NOTE = (
    "a state says which form a toggle's own code has: fixed does not cover the functions that it "
    "calls, which may be broken there; `unfix prove` runs the guards"
)


def print_drift(
    survey: DriftSurvey,
    out: Console,
    proofs: Mapping[str, list[str]] | None = None,
    unproven: Sequence[str] = (),
) -> None:
    from rich.table import Table
    from rich.text import Text

    narrow = out.width < FULL_WIDTH and len(survey.releases) > 3
    grid = Table(box=None, pad_edge=False, padding=(0, 0 if narrow else 1))
    grid.add_column("toggle", no_wrap=True)
    for release in survey.releases:
        name = release.name.removeprefix("0.5") if narrow else release.name
        grid.add_column(name, justify="center", no_wrap=True, min_width=4)

    def add_row(title: str, states: list[str]) -> None:
        cells = (STATE_MARKS[state] for state in states)
        words = (Text(short if narrow else full, style=style) for full, short, style in cells)
        grid.add_row(f"{title} ", *words)

    for toggle in survey.toggles:
        states = [
            "outside" if toggle.id in release.out_of_range else release.states[toggle.id]
            for release in survey.releases
        ]
        add_row(toggle.id, states)
    numbers = sorted({number for release in survey.releases for number in release.upstream_states})
    if numbers:
        grid.add_row()
        grid.add_row(Text("SGLang's own reverts", style="bold"))
    for number in numbers:
        states = [release.upstream_states.get(number, "absent") for release in survey.releases]
        add_row(number, states)
    out.print(grid)
    for release in survey.releases:
        for status in release.stale:
            head = Text(f"\nSTALE {status.toggle.id} on {release.name}: ", style="bold red")
            out.print(head + Text(status.problem, style="not bold"))
            if status.nearest:
                out.print(Text(status.nearest), soft_wrap=True)
    out.print()
    for proof, names in sorted(_group_by_proof(survey.toggles, proofs or {}).items()):
        out.print(f"proven on {proof}: {', '.join(names)}", soft_wrap=True)
    if unproven:
        out.print(f"no proof is recorded on {', '.join(unproven)}", soft_wrap=True)
    out.print(STATE_NOTE, soft_wrap=True)
    out.print(survey.describe())


def _group_by_proof(
    toggles: Iterable[Toggle], proofs: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """Group the toggles by the releases of their proofs."""
    groups: dict[str, list[str]] = {}
    for toggle in toggles:
        for proof in proofs.get(toggle.id, ()):
            groups.setdefault(proof, []).append(toggle.id)
    return groups
