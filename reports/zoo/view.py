"""A zoo run as every report shows it: architectures by rows, claims by columns, kernels."""

from __future__ import annotations

from collections import Counter

from harness.core.added_counts import add_counts
from harness.core.device import VIRTUAL
from harness.core.wording import format_count, format_duration
from harness.store.zoo.values import (
    FAMILY_CLAIMS,
    ArchitectureResult,
    ClaimResult,
    ZooClaim,
    ZooRun,
)
from reports.shared.marks import ReportMark, make_marks
from reports.shared.stand_ins import describe_run_stand_ins
from reports.shared.tables import ReportTable, TableCell, TableRows, make_code_cell, make_quiet_cell

MARKS = make_marks("""
    holds      | YES | ✓ | good      | The claim holds within the tolerance.
    fails      | NO  | ✕ | broken    | It does not hold.
    known      | BUG | ! | bug       | A known bug: the architecture's file has the reason.
    not tested | -   | · | unreached | Nothing was compared; the reason is beside it.
""")

FEATURE_MARKS = make_marks("""
    equal      | yes | ✓ | good      | The answers are the plain server's, within the tolerance.
    differs    | NO  | ✕ | broken    | They are not.
    known      | BUG | ! | bug       | A known failure of the row: its claim has the reason.
    refused    | ref | - | quiet     | SGLang refuses it, or takes it back; its words are below.
    not tested | ?   | · | unreached | It cannot be computed here, and nobody said so before.
    n/a        |     |   | quiet     | It is not possible here, or the row has nothing of it.
""")

# Counts of claims in a sentence, by the words of their verdicts.
CLAIM_COUNTS = {"holds": "claims hold", "fails": "fail", "known": "fail as recorded"}


def get_mark(claim: ClaimResult) -> ReportMark:
    return MARKS[claim.verdict.value]


def find_claim(result: ArchitectureResult, claim: ZooClaim) -> ClaimResult | None:
    return next((found for found in result.claims if found.claim is claim), None)


def describe_error(claim: ClaimResult) -> str:
    """Describe a comparison: '4e-07 of 2e-05'."""
    if claim.error is None:
        return ""
    return f"{claim.error:.1g} of {claim.tolerance or 0:.1g}"


def sort_results(results: list[ArchitectureResult]) -> list[ArchitectureResult]:
    """Return the failing rows first, then the others, by name."""
    return sorted(results, key=lambda result: (not result.failures, result.name))


def make_tables(run: ZooRun) -> list[ReportTable]:
    """Make the table of architectures and that of kernel families, each if it has rows."""
    kinds = (
        ("Architectures", ("architecture", "class"), run.models, run.model_claims),
        ("Kernel families", ("family",), run.families, FAMILY_CLAIMS),
    )
    return [_make_table(*kind) for kind in kinds if kind[2]]


def _make_table(
    title: str,
    heads: tuple[str, ...],
    results: list[ArchitectureResult],
    claims: tuple[ZooClaim, ...],
) -> ReportTable:
    """Make a row for each result and a column for each claim."""
    rows: TableRows = []
    for result in sort_results(results):
        cells: list[TableCell | str] = []
        for claim in claims:
            found = find_claim(result, claim)
            if found is None:
                cells.append(make_quiet_cell(""))
                continue
            mark = get_mark(found)
            text = "known bug" if mark.word == "known" else mark.short.lower()
            cells.append(TableCell(text, mark.tone, mark=mark))
        used = f"{result.processor_seconds:.1f} s" if result.processor_seconds else ""
        counts = [str(len(result.kernels)), used, f"{result.seconds:.0f} s"]
        names = [make_code_cell(result.name), make_quiet_cell(result.model_class)][: len(heads)]
        rows.append([*names, *cells, *counts])
    numbers = ("kernels", "processor", "time")
    all_heads = (*heads, *(claim.value for claim in claims), *numbers)
    return ReportTable(title, all_heads, rows, numbers)


MOST_PAIRS = 8  # that have columns, as those which a call names; others are in the second table


def make_feature_tables(run: ZooRun) -> list[ReportTable]:
    """Make the table of rows by features, and that of all that is not equal, with its words."""
    rows = [result for result in sort_results(run.models) if result.features]
    if not rows:
        return []
    keys = dict.fromkeys(tuple(one.features) for row in rows for one in row.features)
    pairs = [key for key in keys if len(key) > 1]
    shown = [key for key in keys if len(key) == 1] + (pairs if len(pairs) <= MOST_PAIRS else [])
    cells: TableRows = []
    for row in rows:
        verdicts = {tuple(one.features): one.verdict.value for one in row.features}
        marks = [verdicts.get(key, "") for key in shown]
        cells.append([make_code_cell(row.name), *map(_make_feature_cell, marks)])
    names = map(" + ".join, shown)
    return [ReportTable("Features", ("architecture", *names), cells), _make_difference_table(rows)]


def _make_feature_cell(verdict: str) -> TableCell:
    if not verdict:
        return make_quiet_cell("")
    mark = FEATURE_MARKS[verdict]
    return TableCell(mark.short, mark.tone, mark=mark if mark.glyph else None)


def _make_difference_table(rows: list[ArchitectureResult]) -> ReportTable:
    """Make a row for each tuple of features that is not equal somewhere, and its words."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for one in row.features:
            if one.verdict.value != "equal":
                key = (" + ".join(one.features), one.verdict.value, one.headline)
                found.setdefault(key, []).append(row.name)
    cells: TableRows = [
        [
            *(TableCell(features), TableCell(verdict, FEATURE_MARKS[verdict].tone)),
            *(make_quiet_cell(words), _name_rows(names, len(rows))),
        ]
        for (features, verdict, words), names in sorted(found.items())
    ]
    return ReportTable("Features that are not equal", ("features", "result", "why", "on"), cells)


def _name_rows(names: list[str], count: int) -> str:
    return "every row" if len(names) == count > 1 else ", ".join(names)


def describe_features(run: ZooRun) -> str:
    """Describe how many tuples of a row's features were compared: '' if none was asked for."""
    sizes = Counter(
        len(one.features)
        for row in run.models
        for one in row.features
        if one.error is not None and one.features != ["plain server"]
    )
    if not sizes:
        return ""
    pairs = sum(sizes.values()) - sizes[1]
    return f"{format_count(sizes[1], 'feature')} and {format_count(pairs, 'pair')} of them compared"


def make_kernel_table(run: ZooRun) -> ReportTable:
    rows: TableRows = [
        [make_code_cell(kernel), str(len(names)), ", ".join(names)]
        for kernel, names in run.kernels.items()
    ]
    return ReportTable("Kernels", ("kernel", "rows", "by"), rows, ("rows",))


def make_stand_in_table(run: ZooRun) -> ReportTable:
    """Make a row for each operator that stand-ins computed, with its calls, the most first."""
    counts = add_counts(*(result.stand_ins for result in run.architectures))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows: TableRows = [[make_code_cell(name), str(calls)] for name, calls in ordered]
    return ReportTable("Operators that stand-ins computed", ("operator", "calls"), rows, ("calls",))


def describe_stand_ins(run: ZooRun) -> str:
    return describe_run_stand_ins(VIRTUAL, (result.stand_ins for result in run.architectures))


def list_failures(run: ZooRun) -> list[tuple[ArchitectureResult, ClaimResult]]:
    """Return each claim that fails or is known to fail, the unexpected ones first."""
    failures = [
        (result, claim)
        for result in run.present
        for claim in result.claims
        if claim.verdict.value in ("fails", "known")
    ]
    return sorted(failures, key=lambda pair: (pair[1].verdict.value != "fails", pair[0].name))


def describe_run(run: ZooRun) -> str:
    """Describe a run in one sentence."""
    absent = len(run.architectures) - len(run.present)
    starting = sum(result.starts for result in run.models)
    rows = []
    if run.models or not run.families:
        rows.append(f"{starting} of {len(run.models)} architectures start")
    if run.families:
        good = sum(not result.failures for result in run.families)
        rows.append(f"{good} of {len(run.families)} kernel families are green")
    parts = [
        f"{', '.join(rows)} on SGLang {run.release}, virtual {run.card}",
        ", ".join(f"{count} {CLAIM_COUNTS.get(word, word)}" for word, count in run.counts.items()),
        f"{len(run.kernels)} Triton kernels launched under check",
        format_duration(run.seconds),
    ]
    if compared := describe_features(run):
        parts.append(compared)
    if used := [result.processor_seconds for result in run.present if result.processor_seconds]:
        parts.append(
            f"{format_duration(sum(used))} of a processor, {max(used):.1f} s for the longest row"
        )
    if absent:
        parts.insert(1, f"{absent} not in this release")
    return "; ".join(filter(None, parts))
