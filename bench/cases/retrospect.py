"""Does a rehearsal name upstream's fixes of addresses when they are taken out?

    .venv/bin/python -m bench.run retrospect [CASE ...]              of bench/cases/retrospect.yaml
    .venv/bin/python -m bench.run retrospect --table --record FILE   FILE's table, as Markdown

A case is one deployment with the fixes that are taken out of it together, each in a kernel of its
own. It is rehearsed with them and without; a fix is named if its kernel has a finding of an
overflow with the fix out, and none, or one further from its limit, with the fix in. Fixes that no
toggle of `toggles` reverts are in `bench/reverted_fixes`. The threshold of a finding is the setting
that the rehearsal searched, or, of a near one, the batch's size divided by the share of 2^31;
`searches: false` leaves the search out. Cases that are not named stay as FILE has them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bench.measuring import Result, read_record, run_unfix
from harness.core import paths
from harness.runs.rehearse.deployment import read_model

ROOT = paths.project_folder()
CASES = Path(__file__).with_suffix(".yaml")
FOLDER = ROOT / "bench" / "reverted_fixes"
RELEASE = "0.5.23"
OLDEST = "0.5.9"  # of the releases here
SIZES = {  # of each batch: the setting that bounds it
    "chunk": "chunk",
    "prefix": "context",
    "decode": "requests",
    "long decode": "context",
}
FACTOR = 2  # within which a threshold counts as upstream's


class Fix(msgspec.Struct, forbid_unknown_fields=True):
    """A fix that is taken out of a deployment."""

    kernel: str
    upstream: int = 0  # the pull request; 0 for a cast without one that we found
    fixed: str = ""  # the first release that has it; empty if our oldest has it already
    threshold: int = 0  # upstream's formula with the sizes of this deployment
    gives: str = ""  # what the threshold counts, and from which formula
    miss: str = ""  # why no rehearsal names it
    grows_with: str = ""  # the setting that the address grows with, if not the one of its batch


class Case(msgspec.Struct, forbid_unknown_fields=True):
    """A deployment, and the fixes that are taken out of it together."""

    model: str
    fixes: dict[str, Fix]
    gpu: str = "H200"
    arguments: list[str] = []
    layers: int = 0  # of a stage of a pipeline; 0 for all
    searches: bool = True  # the smallest setting of each finding


class NamedFix(msgspec.Struct):
    """One row: what the rehearsal says of a fix."""

    fix: str
    case: str
    kernel: str
    rank: str  # reachable, near, or missed
    share: float = 0.0  # of 2^31, with the fix out
    share_with_fix: float = 0.0
    headline: str = ""
    setting: str = ""
    threshold: int = 0
    upstream: int = 0
    fixed: str = ""  # the first release that has it
    upstream_threshold: int = 0
    gives: str = ""
    miss: str = ""

    @property
    def ratio(self) -> float:
        """The threshold as a multiple of upstream's; 0 if one of them is unknown."""
        return self.threshold / self.upstream_threshold if self.upstream_threshold else 0.0


def read_cases() -> dict[str, Case]:
    return msgspec.convert(yaml.safe_load(CASES.read_text()), dict[str, Case])


def rehearse_case(case: Case, reverts: list[str], folder: Path) -> dict[str, Any]:
    """Rehearse the deployment of a case; return its result."""
    model = [case.model]
    if case.layers:
        config = {**read_model(case.model).config, "num_hidden_layers": case.layers}
        file = folder / f"{case.model}.json"
        file.write_text(json.dumps(config))
        model = ["--config", str(file)]
    words = [*model, "--gpu", case.gpu, "--release", RELEASE, "--seconds", "900", "--json"]
    words += ["--toggles", str(FOLDER)] if reverts else []
    words += [word for fix in reverts for word in ("--revert", fix)]
    words += [] if case.searches and reverts else ["--no-thresholds"]
    program = [str(ROOT / "unfix"), "rehearse"]
    run = run_unfix([*words, "--", *case.arguments], program=program)
    result: dict[str, Any] = run["deployments"][0]
    if result["refusal"]:
        raise SystemExit(f"{result['name']} does not start: {result['refusal']}")
    return result


def measure_shares(result: dict[str, Any]) -> dict[str, float]:
    """Return each kernel's largest 32-bit integer on the way into an address, of 2^31."""
    shares: dict[str, float] = {}
    for launch in result["launches"]:
        name = launch["kernel"].rpartition(":")[2]
        shares[name] = max(shares.get(name, 0.0), launch["extent"] / (1 << 31))
    return shares


def judge_fix(
    name: str, case: str, fix: Fix, reverted: dict[str, Any], fixed: dict[str, Any]
) -> NamedFix:
    """Compare a fix's kernel with the fix out and in."""
    share = measure_shares(reverted).get(fix.kernel, 0.0)
    with_fix = measure_shares(fixed).get(fix.kernel, 0.0)
    row = NamedFix(name, case, fix.kernel, "missed", share, with_fix)
    found = [
        one
        for one in reverted["findings"]
        if one["kernel"].rpartition(":")[2] == fix.kernel and one["kind"] == "IntegerOverflow"
    ]
    known = {
        (one["text"], one["rank"])
        for one in fixed["findings"]
        if one["kernel"].rpartition(":")[2] == fix.kernel
    }
    found = [one for one in found if (one["text"], one["rank"]) not in known]
    found.sort(key=lambda one: one["rank"] != "reachable")
    if not found or share <= with_fix:
        row.miss = fix.miss or (
            "no batch of this deployment launches the kernel"
            if fix.kernel not in measure_shares(reverted)
            else f"{share:.1%} of 2^31 at the most"
        )
        return row
    first = found[0]
    row.rank, row.headline = first["rank"], first["headline"]
    words = first["threshold"].split()[-2:]
    if len(words) == 2 and words[1].isdigit():
        row.setting, row.threshold = words[0], int(words[1])
    elif row.rank == "near":
        setting = fix.grows_with or SIZES[first["phase"]]
        size = reverted["settings"][setting]
        row.setting, row.threshold = f"{setting}, by proportion", int(size / share)
    return row


def add_upstream(rows: list[NamedFix], cases: dict[str, Case]) -> None:
    """Add to each row what upstream says, and why it is missed: no part of a measurement."""
    for row in rows:
        fix = cases[row.case].fixes[row.fix]
        row.upstream, row.fixed = fix.upstream, fix.fixed
        row.upstream_threshold, row.gives = fix.threshold, fix.gives
        if row.rank == "missed" and fix.miss:
            row.miss = fix.miss


def make_table(rows: list[NamedFix]) -> str:
    named = [row for row in rows if row.rank != "missed"]
    with_formula = [row for row in named if row.upstream_threshold]
    within = [row for row in with_formula if 1 / FACTOR <= row.ratio <= FACTOR]
    lines = [
        "| fix | since | kernel | deployment | rank | of 2^31 (with it) | begins at | upstream |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        fix = f"{row.fix} (#{row.upstream})" if row.upstream else row.fix
        begins = f"{row.setting} {row.threshold:,}" if row.threshold else row.miss
        gives = f"{row.upstream_threshold:,} {row.gives}" if row.upstream_threshold else row.gives
        share = "over" if row.rank == "reachable" else f"{row.share:.0%}"
        lines.append(
            f"| {fix} | {row.fixed or 'before'} | `{row.kernel}` | {row.case} | {row.rank} "
            f"| {share} ({row.share_with_fix:.1%}) | {begins} | {gives} |"
        )
    return "\n".join(
        [
            *lines,
            "",
            f"{len(named)} of {len(rows)} are named ({len(named) / len(rows):.0%}), "
            f"{sum(bool(row.fixed) for row in named)} of {sum(bool(row.fixed) for row in rows)} of "
            f"those that came between {OLDEST} and {RELEASE}; of {len(with_formula)} whose "
            f"threshold upstream's formula gives with these sizes, {len(within)} are within a "
            f"factor of {FACTOR}.",
        ]
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all by default")
    parser.add_argument("--table", action="store_true", help="print the record's table alone")


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    rows: list[NamedFix] = []
    cases = read_cases()
    if options.record and options.record.exists():
        rows = msgspec.convert(read_record(options.record)["fixes"], list[NamedFix])
        # A fix that another case takes out by now is not of the one that it was recorded with.
        rows = [row for row in rows if row.case in cases and row.fix in cases[row.case].fixes]
    for name in [] if options.table else options.cases or cases:
        case = cases[name]
        with tempfile.TemporaryDirectory() as folder:
            reverted = rehearse_case(case, list(case.fixes), Path(folder))
            fixed = rehearse_case(case, [], Path(folder))
        rows = [row for row in rows if row.case != name]
        rows += [judge_fix(fix, name, one, reverted, fixed) for fix, one in case.fixes.items()]
        print(name, "is rehearsed", file=sys.stderr, flush=True)
        yield make_result(rows, cases)
    if options.table:
        print(make_table(rows))
        yield make_result(rows, cases)


def make_result(rows: list[NamedFix], cases: dict[str, Case]) -> Result:
    add_upstream(rows, cases)
    named = sum(row.rank != "missed" for row in rows)
    return Result({"fixes": msgspec.to_builtins(rows)}, summary={"named": named, "of": len(rows)})
