"""What a fix changes: rows of the zoo as released, with the fix, and with others that they need.

`unfix:` of a finding has the commands: `./unfix zoo cohere2 --enable cohere2-window,swa-decode`
names the rows, and behind `--enable` fixes of other findings without which a row is not right yet.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from harness.core import paths
from harness.core.code_digest import compute_digest
from harness.findings import pages
from harness.findings.schema import Finding
from harness.runs.upstream.verification import PatchedFinding
from harness.runs.zoo.architecture import read_definition
from harness.store.record_files import read_record_text, round_numbers, write_record
from harness.store.zoo.values import ArchitectureResult, ClaimResult, ZooClaim

_COMMAND = "./unfix zoo "
_PAGE = re.compile(r" \(docs/findings/\S+\)")
_KNOWN = re.compile(r"^docs/findings/\S+ \((.*)\)$", re.DOTALL)
MeasureRows = Callable[[list[str], list[str]], list[ArchitectureResult]]  # rows, enabled toggles


class MeasuredSide(msgspec.Struct, frozen=True):
    enabled: list[str]  # toggles
    claims: dict[str, dict[ZooClaim, ClaimResult]]  # by row


class AccuracyRecord(msgspec.Struct, frozen=True):
    digest: str  # of release, patch and rows
    release: str
    card: str
    date: str
    sides: list[MeasuredSide]


def list_rows(finding: Finding) -> list[str]:
    """List the rows of the zoo that a finding's commands name."""
    commands = [words[len(_COMMAND) :] for words in finding.unfix if words.startswith(_COMMAND)]
    return [word for text in commands for word in text.partition(" --")[0].split()]


def list_sides(finding: Finding) -> list[list[str]]:
    """List the toggles of each side: none, the fix, and with it the others that rows need."""
    own = finding.fix.toggle
    named = [
        word
        for command in finding.unfix
        if command.startswith(_COMMAND) and (match := re.search(r"--enable (\S+)", command))
        for word in match[1].split(",")
    ]
    every = list(dict.fromkeys([own, *named]))
    return [[], [own], *([every] if every != [own] else [])]


def measure_findings(
    items: Sequence[PatchedFinding], release: str, card: str, measure: MeasureRows
) -> Iterator[tuple[str, AccuracyRecord]]:
    """Measure the rows of findings: all as released in one run, then those of each with its fix."""
    items = [item for item in items if list_rows(item.finding)]
    every = dict.fromkeys(row for item in items for row in list_rows(item.finding))
    released = {result.name: result for result in measure(list(every), [])} if items else {}
    for item in items:
        rows = list_rows(item.finding)
        results = [
            (enabled, measure(rows, enabled) if enabled else [released[row] for row in rows])
            for enabled in list_sides(item.finding)
        ]
        sides = [
            MeasuredSide(
                enabled,
                {one.name: {c.claim: _shorten_claim(c) for c in one.claims} for one in found},
            )
            for enabled, found in results
        ]
        day, digest = datetime.date.today().isoformat(), compute_row_digest(item, release)
        yield item.finding.name, AccuracyRecord(digest, release, card, day, sides)


def compute_row_digest(item: PatchedFinding, release: str) -> str:
    rows = (read_definition(row) for row in list_rows(item.finding))
    return compute_digest(release, item.patch, *rows)


def _shorten_claim(claim: ClaimResult) -> ClaimResult:
    """Return a claim without its traceback, and without the finding that explains its failure."""
    headline = "" if _is_within(claim) else _KNOWN.sub(r"\1", claim.headline)
    return msgspec.structs.replace(claim, headline=headline, detail="")


def _get_record_file() -> Path:
    return paths.project_folder() / "bench" / "recorded" / "accuracy-of-fixes.json.xz"


def load_records() -> dict[str, AccuracyRecord]:
    file = _get_record_file()
    if not file.is_file():
        return {}
    return msgspec.json.decode(read_record_text(file), type=dict[str, AccuracyRecord])


def add_records(records: dict[str, AccuracyRecord]) -> Path:
    every = dict(sorted((load_records() | records).items()))
    data = msgspec.json.encode(round_numbers(msgspec.to_builtins(every)))
    write_record(_get_record_file(), data.decode())
    return _get_record_file()


def describe_accuracy(item: PatchedFinding, release: str) -> str:
    """Describe what the record of a finding says, or that there is none of this patch."""
    finding = item.finding
    if not list_rows(finding):
        return "No tiny model shows it: the test and the evidence below do."
    record = load_records().get(finding.name)
    if record is None or record.digest != compute_row_digest(item, release):
        return f"**Not measured with this patch**: `unfix upstream {finding.name} --record`."
    heads = ["as released", "with `fix.patch`", "and with the fixes of its neighbours"]
    columns = ["model", "claim", *heads[: len(record.sides)]]
    table = pages.format_table(columns, _list_cells(record))
    text = (
        "Tiny models with random weights on SGLang's CUDA path, run on a CPU in place of one "
        f"{record.card} ({record.date}). A number is the largest difference of logits from "
        "transformers, or from the same model as one batch, relative to the largest logit; a "
        "formula is what torch computes in place of SGLang's kernels."
    )
    others = [name for name in record.sides[-1].enabled if name != finding.fix.toggle]
    note = f"\n\nNeighbours, each a pull request of its own: {', '.join(others)}."
    return f"{text}\n\n{table}{note if others else ''}"


def _list_cells(record: AccuracyRecord) -> Iterator[list[str]]:
    """List the claims that a side does not keep, and the comparison with transformers."""
    for row in record.sides[0].claims:
        for claim in ZooClaim:
            sides = [side.claims[row].get(claim) for side in record.sides]
            is_kept = all(result is None or _is_kept(result) for result in sides)
            if any(sides) and not (is_kept and claim is not ZooClaim.REFERENCE):
                yield [row, claim.value, *map(_describe_claim, sides)]


def _is_kept(result: ClaimResult) -> bool:
    return not result.headline or _is_within(result)


def _is_within(result: ClaimResult) -> bool:
    return result.error is not None and result.error <= (result.tolerance or 0.0)


def _describe_claim(result: ClaimResult | None) -> str:
    if result is None:
        return ""
    if result.error is None or result.claim is ZooClaim.FORMULA:
        return _PAGE.sub("", result.headline) or "holds"
    if _is_within(result):
        return f"{result.error:.2g} (at most {result.tolerance:.2g})"
    return f"**{result.error:.2g}**"
