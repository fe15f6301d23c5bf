"""A review as every report shows it: a section for each part, with a sentence, a table, details."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote

from harness.core.wording import format_count, format_duration
from harness.store.pr.part_results import (
    SAME_BITS,
    GuardChange,
    KernelAnswer,
    ToggleEffect,
    TouchedItem,
    UnnoticedFault,
)
from harness.store.pr.values import PrPart, PrRun
from reports.shared.marks import ReportMark, make_marks
from reports.shared.tables import (
    ReportTable,
    TableRows,
    make_code_cell,
    make_mark,
    make_quiet_cell,
)

MARKS = make_marks("""
    taken back         | BCK | ✕ | broken    | The fix was there, and now the bug is.
    appears with the bug | APP | ✕ | broken  | New code comes with the known bug.
    stale              | STA | ? | stale     | A form was found before, and none is now.
    mended             | MEN | ~ | bug       | The same state, by a form mended for this run.
    brought in         | IN  | ✓ | fix       | The bug was there, and now the fix is.
    gone               | GON | · | quiet     | The change removes the code of the toggle.
    reported           | REP | ✕ | broken    | It leaves its tensors now, or races.
    different          | DIF | ≠ | toothless | The answers differ by more than rounding.
    within rounding    | RND | ≈ | bug       | Floats differ by a few units in the last place.
    same bits          | SAM | = | good      | Each byte of each tensor is the same.
    not compared       | -   | · | unreached | No launch ran on both; the reason is beside it.
    survived           | SUR | ○ | toothless | Guards run the faulty line, and none fails.
    unreached          | UNR | · | unreached | No guard runs the faulty line.
    passes             | OK  | ✓ | good      | It passes before and now.
    fails now          | NO  | ✕ | broken    | It passed before, and fails now.
    lost               | LST | ✕ | broken    | It proved its toggle before, and does not now.
    mends              | MND | ✓ | fix       | It failed before, and passes now.
    as before          | SAM | · | quiet     | It fails, or does not apply, before and now.
    confirmed          | YES | ✕ | broken    | A launch shows it.
    unconfirmed        | MAY | ? | unreached | No launch that was tried shows it.
    held               | YES | ✓ | good      | The claim holds, or fails for a known reason.
    holds no more      | NO  | ✕ | broken    | The claim held before, and fails or is gone now.
    moves              | MOV | ≠ | broken    | The numbers differ by more than rounding.
    breaks             | BRK | ✕ | broken    | A server fails there, and did not before.
    worse              | MOR | △ | bug       | It takes more memory, or comes nearer to a limit.
    other              | CHG | · | quiet     | It changes, and not for the worse.
    fails as before    | BEF | · | quiet     | The claim failed before, too.
""")


@dataclass(frozen=True)
class ReviewDetail:
    """One thing to look into, below its section's table."""

    mark: ReportMark
    title: str
    lines: list[str] = field(default_factory=list)
    diff: str = ""

    @property
    def link(self) -> str:
        return f"#{quote(f'{self.mark.word} {self.title}')}"


@dataclass(frozen=True)
class ReviewSection:
    """A part of a review."""

    part: PrPart
    summary: str
    table: ReportTable
    details: list[ReviewDetail] = field(default_factory=list)

    @property
    def title(self) -> str:
        return self.table.title


def describe_run(run: PrRun) -> str:
    """Describe a run in one sentence."""
    changed = sum(file.added for file in run.files)
    return (
        f"{run.headline[:1].upper()}{run.headline[1:]}; "
        f"{format_count(len(run.files), 'file')} of the package, {format_count(changed, 'line')}; "
        f"{run.base}..{run.head} in {format_duration(run.seconds)}"
    )


def make_sections(run: PrRun) -> list[ReviewSection]:
    makers = {
        PrPart.TOGGLES: _make_toggles,
        PrPart.SUITES: _make_suites,
        PrPart.AUDIT: _make_findings,
        PrPart.KERNELS: _make_kernels,
        PrPart.FAULTS: _make_faults,
        PrPart.ZOO: _make_zoo,
        PrPart.REHEARSE: _make_rehearsals,
    }
    return [make(run) for part, make in makers.items() if part in run.parts]


def _add_detail(rows: TableRows, details: list[ReviewDetail], detail: ReviewDetail) -> None:
    """Add a detail, to which the newest row leads."""
    details.append(detail)
    cell = rows[-1][0]
    rows[-1][0] = make_code_cell(cell if isinstance(cell, str) else cell.text, detail.link)


def make_file_table(run: PrRun) -> ReportTable:
    rows: TableRows = [
        [make_code_cell(file.path), str(file.added or ""), str(file.removed or "")]
        for file in run.files
    ]
    return ReportTable(
        "Changed files", ("file", "new lines", "old lines"), rows, ("new lines", "old lines")
    )


def _make_toggles(run: PrRun) -> ReviewSection:
    rows: TableRows = []
    details: list[ReviewDetail] = []
    for toggle in run.toggles:
        mark = MARKS[toggle.effect.value]
        place = f"{toggle.path}:{toggle.line}" if toggle.path else ""
        rows.append(
            [
                make_code_cell(toggle.id),
                make_mark(mark),
                toggle.before,
                toggle.after,
                make_code_cell(place),
                toggle.title,
            ]
        )
        if toggle.why or toggle.diff:
            lines = [toggle.why] if toggle.why else []
            _add_detail(rows, details, ReviewDetail(mark, toggle.id, lines, toggle.diff))
    unchanged = run.toggle_count - len(run.toggles)
    summary = f"{unchanged} of {run.toggle_count} toggles are as before"
    counts = [
        f"{run.count_toggles(effect)} {effect}"
        for effect in ToggleEffect
        if run.count_toggles(effect)
    ]
    heads = ("toggle", "", "before", "after", "where", "fix")
    table = ReportTable("Fixes and faults", heads, rows)
    return ReviewSection(PrPart.TOGGLES, "; ".join([*counts, summary]), table, details)


def get_guard_mark(change: GuardChange) -> ReportMark:
    if change.is_lost:
        return MARKS["lost"]
    if change.fails_now:
        return MARKS["fails now"]
    if change.difference:
        return MARKS["moves"]
    if change.plain_after == "passed" and change.plain_before in ("passed", ""):
        return MARKS["passes"]
    if change.plain_after == "passed":
        return MARKS["mends"]
    return MARKS["as before"]


def _make_suites(run: PrRun) -> ReviewSection:
    rows: TableRows = []
    details: list[ReviewDetail] = []
    for guard in run.guards:
        mark = get_guard_mark(guard)
        reached = run.reaching.get(guard.guard.partition("[")[0], 0)
        rows.append(
            [
                make_code_cell(shorten_guard(guard.guard)),
                make_code_cell(guard.toggle) if guard.toggle else make_quiet_cell("none"),
                make_mark(mark),
                guard.before or make_quiet_cell("not run"),
                guard.after or make_quiet_cell("not run"),
                str(reached or ""),
            ]
        )
        if not mark.good:
            example = [f"    {line}" for line in guard.example]
            lines = [line for line in (guard.why, guard.headline, guard.difference) if line]
            title = f"{guard.guard} for {guard.toggle}" if guard.toggle else guard.guard
            _add_detail(rows, details, ReviewDetail(mark, title, [*lines, *example]))
    heads = ("guard", "toggle", "as it is", "before", "after", "changed lines")
    cells = [guard for guard in run.guards if guard.toggle]
    proven = sum(guard.after == "proven" for guard in cells)
    passing = sum(guard.plain_after == "passed" for guard in run.guards)
    reaching = len(run.reaching)
    summary = (
        f"{format_count(reaching, 'guard')} {'runs' if reaching == 1 else 'run'} changed lines; "
        f"after the change {passing} of {len(run.guards)} pass as it is, and {proven} of "
        f"{format_count(len(cells), 'cell')} {'is' if len(cells) == 1 else 'are'} proven"
    )
    if not run.guards:
        summary = "no guard runs a changed line: nothing is proven"
    table = ReportTable("Suites that run the changed lines", heads, rows, ("changed lines",))
    return ReviewSection(PrPart.SUITES, summary, table, details)


def shorten_guard(guard: str) -> str:
    file, _, test = guard.rpartition("::")
    return f"{file.removeprefix('suites/').rpartition('/')[0]}::{test}" if file else guard


def group_unguarded_faults(run: PrRun) -> dict[str, list[UnnoticedFault]]:
    """Group the faults of whose module no guard runs a line, by file: each file is named once."""
    unguarded: dict[str, list[UnnoticedFault]] = {}
    for fault in run.faults:
        if not fault.nearest:
            unguarded.setdefault(fault.path, []).append(fault)
    return unguarded


def describe_unguarded_faults(faults: list[UnnoticedFault]) -> str:
    return f"{format_count(len(faults), 'fault')}, such as: {faults[0].words}"


def _make_findings(run: PrRun) -> ReviewSection:
    rows: TableRows = [
        [
            make_code_cell(finding.kernel.partition(":")[2]),
            make_code_cell(f"{finding.path}:{finding.line}"),
            finding.kind,
            make_mark(MARKS["confirmed" if finding.is_confirmed else "unconfirmed"]),
            finding.condition,
        ]
        for finding in run.findings
    ]
    summary = (
        f"{format_count(run.audited, 'changed kernel')} audited: "
        f"{format_count(len(run.findings), 'finding')} that the base does not have"
    )
    if not run.audited:
        summary = "no changed kernel to audit"
    heads = ("kernel", "where", "kind", "", "when")
    table = ReportTable("New findings of the audit", heads, rows)
    return ReviewSection(PrPart.AUDIT, summary, table)


def _make_kernels(run: PrRun) -> ReviewSection:
    rows: TableRows = []
    details: list[ReviewDetail] = []
    for kernel in run.kernels:
        mark = MARKS[kernel.answer.value]
        counted = (
            f"{kernel.differing} of {kernel.launches}"
            if kernel.differing
            else str(kernel.launches or "")
        )
        counted += f" and {kernel.drawn} drawn" if kernel.drawn else ""
        rows.append(
            [
                make_code_cell(kernel.kernel.partition(":")[2]),
                make_code_cell(f"{kernel.path}:{kernel.line}"),
                make_mark(mark),
                counted,
                kernel.why,
            ]
        )
        if kernel.smallest:
            lines = [
                kernel.why,
                "the smallest launch:",
                *(f"    {line}" for line in kernel.smallest),
            ]
            _add_detail(rows, details, ReviewDetail(mark, kernel.kernel, lines))
    compared = [kernel for kernel in run.kernels if kernel.answer is not KernelAnswer.NOT_COMPARED]
    counts = [
        f"{number} {answer}"
        for answer in KernelAnswer
        if (number := sum(kernel.answer is answer for kernel in run.kernels))
    ]
    summary = (
        f"{format_count(len(run.kernels), 'changed kernel')}, "
        f"{len(compared)} compared on the same launches"
        + (f": {', '.join(counts)}" if counts else "")
    )
    if not run.kernels:
        summary = "no kernel changed"
    heads = ("kernel", "where", "answers", "launches", "why")
    table = ReportTable("Changed kernels", heads, rows, ("launches",))
    return ReviewSection(PrPart.KERNELS, summary, table, details)


def _make_faults(run: PrRun) -> ReviewSection:
    rows: TableRows = []
    details: list[ReviewDetail] = []
    for fault in run.faults:
        if fault.nearest:
            place, nearest = (
                make_code_cell(f"{fault.path}:{fault.line}"),
                make_code_cell(shorten_guard(fault.nearest)),
            )
            mark = make_mark(MARKS[fault.outcome])
            rows.append(
                [make_code_cell(fault.id), place, mark, fault.words, nearest, fault.nearness]
            )
            title = f"{fault.id}: {fault.words}"
            detail = ReviewDetail(MARKS[fault.outcome], title, [], fault.diff)
            _add_detail(rows, details, detail)
    for path, faults in group_unguarded_faults(run).items():
        mark = make_mark(MARKS[faults[0].outcome])
        words = describe_unguarded_faults(faults)
        rows.append(
            ["", make_code_cell(path), mark, words, make_quiet_cell("none"), faults[0].nearness]
        )
    counts = ", ".join(f"{number} {word}" for word, number in run.fault_counts.items())
    tried = sum(run.fault_counts.values())
    summary = (
        f"{tried} of {format_count(run.faults_made, 'fault')} in the changed lines "
        f"{'was' if run.faults_made == 1 else 'were'} tried: "
        f"{counts or 'none'}"
    )
    if not run.faults_made:
        summary = "no fault can be made in the changed lines"
    heads = ("fault", "where", "", "what", "nearest guard", "how near")
    table = ReportTable("Faults in the changed lines that no guard notices", heads, rows)
    return ReviewSection(PrPart.FAULTS, summary, table, details)


def _make_zoo(run: PrRun) -> ReviewSection:
    rows: TableRows = []
    details: list[ReviewDetail] = []
    for claim in run.claims:
        if claim.is_worse:
            mark = MARKS["holds no more" if claim.is_lost else "moves"]
        else:
            mark = MARKS["fails as before" if claim.after in ("fails", "absent") else "held"]
        if claim.after in ("not tested", SAME_BITS):
            continue
        rows.append(
            [
                make_code_cell(claim.architecture),
                claim.claim,
                make_mark(mark),
                claim.before,
                claim.after,
            ]
        )
        if not mark.good:
            title = f"{claim.architecture}: {claim.claim}"
            lines = [line for line in (claim.headline, claim.difference) if line]
            _add_detail(rows, details, ReviewDetail(mark, title, lines))
    heads = ("architecture", "claim", "", "before", "after")
    table = ReportTable("Architectures that run changed code", heads, rows)
    return ReviewSection(
        PrPart.ZOO, _describe_touched(run.architectures, "architecture"), table, details
    )


def _make_rehearsals(run: PrRun) -> ReviewSection:
    rows: TableRows = []
    details: list[ReviewDetail] = []
    for rehearsal in run.rehearsals:
        mark = MARKS[
            "breaks" if rehearsal.is_broken else "worse" if rehearsal.is_worse else "other"
        ]
        before, after = (
            text or make_quiet_cell("none") for text in (rehearsal.before, rehearsal.after)
        )
        rows.append(
            [make_code_cell(rehearsal.deployment), rehearsal.what, make_mark(mark), before, after]
        )
        if not mark.good:
            title = f"{rehearsal.deployment}: {rehearsal.what}"
            _add_detail(rows, details, ReviewDetail(mark, title, [rehearsal.after]))
    summary = _describe_touched(run.deployments, "deployment")
    if not rows and any(not item.left_out for item in run.deployments):
        summary += "; their memory, kernels and findings are as before"
    heads = ("deployment", "what", "", "before", "after")
    table = ReportTable("Deployments that run changed code", heads, rows)
    return ReviewSection(PrPart.REHEARSE, summary, table, details)


def _describe_touched(items: list[TouchedItem], noun: str) -> str:
    """Describe what runs changed code, and why those that were run here do."""
    ran = [f"{item.name} ({item.why})" for item in items if not item.left_out]
    known = format_count(len(items), noun)
    verb = "runs" if len(items) == 1 else "run"
    if not items:
        return f"no {noun} is known to run changed code"
    return f"{known} {verb} changed code; run here: {', '.join(ran) or 'none'}"
