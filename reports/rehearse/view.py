"""A rehearsal as every report shows it: deployments, memory, findings, kernels by nearness."""

from __future__ import annotations

import re

from harness.core.device import VIRTUAL
from harness.core.wording import format_count, format_duration
from harness.store.rehearse.values import (
    DeploymentChange,
    DeploymentResult,
    FindingRank,
    RehearsalFinding,
    RehearsalRun,
    RehearsedLaunch,
    UncheckedCause,
    UncheckedOperator,
)
from reports.shared.marks import ReportMark, make_marks
from reports.shared.stand_ins import describe_run_stand_ins
from reports.shared.tables import ReportTable, TableCell, TableRows, make_code_cell, make_quiet_cell

MARKS = make_marks("""
    reachable | YES | ✕ | broken    | The deployment does it.
    near      | NEA | ! | bug       | A 32-bit integer in an address is over a quarter of its limit.
    possible  | POS | · | unreached | By arithmetic alone; no deployment comes near.
    fits      | OK  | ✓ | good      | Nothing was found.
    refused   | REF | - | unreached | SGLang does not start it; the reason is beside it.
""")
MEMORY_PARTS = ("weights", "pools", "buffers", "batches", "free")


def get_mark(finding: RehearsalFinding) -> ReportMark:
    return MARKS[finding.rank.value]


def describe_stand_ins(run: RehearsalRun) -> str:
    return describe_run_stand_ins(
        VIRTUAL, (deployment.operator_calls for deployment in run.deployments)
    )


def describe_beginning(finding: RehearsalFinding) -> str:
    """Describe what a finding's threshold is: searched, or worked out from how an address grows."""
    is_near = finding.rank is FindingRank.NEAR
    return "by proportion it would begin at" if is_near else "begins at"


def describe_pool_beginning(finding: RehearsalFinding) -> str:
    """Describe what a finding's smallest pool is: of memory it is worked out from a slot's part."""
    is_searched = bool(finding.kernel) and finding.rank is not FindingRank.NEAR
    return f"in the whole batch{'' if is_searched else ' by proportion'} from this pool on"


def scale_pool_points(
    result: DeploymentResult, finding: RehearsalFinding
) -> list[tuple[float, float]]:
    """Return where an overflow begins over two settings, 100 wide and 50 high; first the batch's.

    The line has a point for each pool, by the batch's setting; right of it the batch overflows.
    """
    settings = finding.points[-1][0], result.settings["slots"]
    points = [settings, *((size, slots) for slots, size in finding.pool_points)]
    largest = max(size for size, _ in points)
    return [(100 * size / largest, 50 - 50 * slots / settings[1]) for size, slots in points]


def list_plot_points(finding: RehearsalFinding) -> list[tuple[float, float]]:
    """Return a finding's probed sizes as points of a plot 100 wide and 50 high, the limit at 25."""
    largest = max((size for size, _ in finding.points), default=0)
    return [
        (100 * size / largest, 50 - 25 * min(share, 2.0)) for size, share in finding.points if size
    ]


def list_fitting_pools(
    result: DeploymentResult, finding: RehearsalFinding
) -> list[tuple[int, int]]:
    """List each probed size of a batch with the largest pool, in slots, that it fits beside.

    Example: 512 requests fit beside 700,000 slots, and 1,024 beside 600,000 alone.
    """
    slots, pools = result.settings.get("slots", 0), result.memory.get("pools", 0)
    if finding.kernel or not slots or not pools:
        return []
    sizes = [
        (size, round(slots + (1 - share) * result.card_memory / result.measure_slot()))
        for size, share in finding.points
    ]
    return [(size, fitting) for size, fitting in sizes if fitting > 0]


def scale_fitting_pools(
    result: DeploymentResult, fitting: list[tuple[int, int]]
) -> list[tuple[float, float]]:
    """Return sizes and pools as points of a plot 100 wide and 50 high; the first is SGLang's pool.

    Above the line a batch does not fit.
    """
    slots = result.settings["slots"]
    most = max(slots, *(count for _, count in fitting))
    largest = max(size for size, _ in fitting)
    points = [(largest, slots), *fitting]
    return [(100 * size / largest, 50 - 50 * count / most) for size, count in points]


def get_plotted_setting(finding: RehearsalFinding) -> str:
    """Return the setting of a finding's plot: '--max-running-requests'."""
    return finding.threshold.split()[-2] if finding.threshold else "the batch's size"


def get_verdict(result: DeploymentResult) -> ReportMark:
    if result.refusal:
        return MARKS["refused"]
    if result.reachable:
        return MARKS["reachable"]
    return MARKS["near"] if result.near else MARKS["fits"]


def format_gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"


def format_share(share: float) -> str:
    """Format a share of 2^31: '97 %', '0.3 %'."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1g} %"


def describe_settings(result: DeploymentResult) -> str:
    """Describe what SGLang decided: '8,192 a chunk, 4,096 requests, 6,754,259 slots'."""
    words = {
        "chunk": "tokens a chunk",
        "requests": "requests",
        "context": "tokens of context",
        "slots": "slots",
    }
    return ", ".join(
        f"{result.settings[name]:,} {word}"
        for name, word in words.items()
        if name in result.settings
    )


_TENSOR_PARALLEL = re.compile(r"--(?:tp|tp-size|tensor-parallel-size)[ =](\d+)")


def describe_card(result: DeploymentResult) -> str:
    """Describe the cards that serve the model, whatever else their host has."""
    sizes = _TENSOR_PARALLEL.findall(" ".join(result.arguments))
    return f"{sizes[-1]} x {result.card}" if sizes and sizes[-1] != "1" else result.card


def split_memory(result: DeploymentResult) -> list[tuple[str, int]]:
    """Split the card's memory at its fullest; what does not fit is part of `batches`."""
    resident = sum(result.memory.values())
    batches = max(0, result.peak - resident)
    parts = {**result.memory, "batches": batches}
    parts["free"] = max(0, result.card_memory - resident - batches)
    return [(name, parts.get(name, 0)) for name in MEMORY_PARTS]


def get_memory_scale(result: DeploymentResult) -> int:
    return max(result.card_memory, result.peak, 1)


def list_findings(run: RehearsalRun) -> list[tuple[DeploymentResult, RehearsalFinding]]:
    """Return the reachable findings first, then the near ones."""
    order = list(FindingRank)
    found = [
        (deployment, finding) for deployment in run.deployments for finding in deployment.findings
    ]
    return sorted(found, key=lambda pair: (order.index(pair[1].rank), pair[0].name))


def list_nearest(run: RehearsalRun) -> list[tuple[DeploymentResult, RehearsedLaunch]]:
    """Return each kernel at its largest address of all deployments, the nearest to 2^31 first."""
    nearest: dict[str, tuple[DeploymentResult, RehearsedLaunch]] = {}
    for result in run.deployments:
        for kernel, launch in result.kernels.items():
            known = nearest.get(kernel)
            if known is None or launch.extent > known[1].extent:
                nearest[kernel] = result, launch
    return sorted(nearest.values(), key=lambda pair: (-pair[1].extent, pair[1].kernel))


def make_table(run: RehearsalRun) -> ReportTable:
    """Make a row for each deployment."""
    rows: TableRows = []
    for result in run.deployments:
        mark = get_verdict(result)
        rows.append(
            [
                make_code_cell(result.name),
                make_quiet_cell(describe_card(result)),
                TableCell(mark.word, mark.tone, mark=mark),
                format_gigabytes(result.peak) if result.memory else "",
                format_gigabytes(result.card_memory),
                f"{result.settings.get('slots', 0):,}" if result.settings else "",
                f"{result.settings.get('requests', 0):,}" if result.settings else "",
                f"{result.launch_count:,}",
                str(len(result.kernels)),
                f"{result.unchecked_launches:,}",
                f"{result.seconds:.0f} s",
            ]
        )
    heads = (
        *("deployment", "card", "", "memory", "of", "slots", "requests", "launches", "kernels"),
        *("not checked", "time"),
    )
    return ReportTable("Deployments", heads, rows, heads[3:])


def make_phase_table(result: DeploymentResult) -> ReportTable:
    rows: TableRows = [
        [
            phase.name,
            phase.described,
            format_gigabytes(phase.peak),
            TableCell(phase.failure, "broken") if phase.failure else "",
        ]
        for phase in result.phases
    ]
    return ReportTable(result.name, ("batch", "of", "memory", ""), rows, ("memory",))


def make_kernel_table(run: RehearsalRun, count: int | None = None) -> ReportTable:
    """Make a row for each kernel, the nearest to 2^31 first."""
    rows: TableRows = []
    for result, launch in list_nearest(run)[:count]:
        where = f"{launch.extent_file}:{launch.extent_line}" if launch.extent else ""
        rows.append(
            [
                format_share(launch.nearness) if launch.extent else make_quiet_cell("-"),
                make_code_cell(launch.kernel.rpartition(":")[2]),
                str(list(launch.grid)),
                make_quiet_cell(f"{launch.phase} of {result.name}"),
                launch.refusal[:60] if launch.refusal else where,
            ]
        )
    heads = ("of 2^31", "kernel", "grid", "in", "line")
    return ReportTable("Kernels by their largest 32-bit address", heads, rows, ("of 2^31",))


def measure_share(run: RehearsalRun, calls: int) -> float:
    """Return the share of calls among all launches; an operator counts by its calls."""
    counts = run.counts
    total = counts["launches"] + counts["calls"]
    return calls / total if total else 0


def describe_cause(operator: UncheckedOperator) -> str:
    """Describe why no check runs an operator, with what a checker or a compiler says."""
    package = operator.name.partition(".")[0]
    words = {
        UncheckedCause.UNKNOWN: "an operator of CUDA code",
        UncheckedCause.NO_SOURCE: f"nothing here builds the package {package}",
        UncheckedCause.NO_TOOLKIT: (
            "the CUDA toolkit is not installed: ./unfix releases add cuda-toolkit"
        ),
        UncheckedCause.NO_LOADER: (
            "this release builds its modules through tvm-ffi, which nothing here runs"
        ),
        UncheckedCause.NOT_PREPARED: "no modules are built in this process",
        UncheckedCause.KEYWORDS: "it is called by keyword",
        UncheckedCause.NOT_BUILT: "it is not built",
        UncheckedCause.REFUSED: "",
    }[operator.cause]
    if operator.cause is UncheckedCause.UNKNOWN and operator.reason:
        return operator.reason
    return ": ".join(filter(None, (words, operator.reason)))


def make_unchecked_table(run: RehearsalRun) -> ReportTable:
    """Make a row for each operator and kernel that no check ran, the most calls first."""
    rows: TableRows = [
        [
            f"{measure_share(run, call.calls):.1%}",
            f"{call.calls:,}",
            make_code_cell(call.name.rpartition("/")[2]),  # a kernel with its file
            describe_cause(call),
        ]
        for call in run.unchecked_calls
    ]
    return ReportTable(
        "Not checked",
        ("of launches", "calls", "operator or kernel", "why"),
        rows,
        ("of launches", "calls"),
    )


def make_change_table(
    runs: list[RehearsalRun],
    changes: list[DeploymentChange],
    title: str = "Changes",
    is_short: bool = False,
) -> ReportTable:
    """Make a row for each change, the worse ones first; what several deployments share is one.

    A short table names the first of these deployments, and says how many more there are.
    """
    groups: dict[tuple[object, ...], list[DeploymentChange]] = {}
    for change in changes:
        key = (change.what, change.before, change.after, change.is_worse)
        groups.setdefault(key, []).append(change)
    rows: TableRows = [
        [
            make_code_cell(_name_deployments(group, is_short)),
            group[0].what,
            group[0].before,
            TableCell(group[0].after, "broken" if group[0].is_worse else ""),
        ]
        for group in groups.values()
    ]
    return ReportTable(title, ("deployment", "what", *(run.release for run in runs)), rows)


def _name_deployments(changes: list[DeploymentChange], is_short: bool) -> str:
    names = list(dict.fromkeys(change.deployment for change in changes))
    if is_short and len(names) > 1:
        return f"{names[0]} and {len(names) - 1} more"
    return ", ".join(names)


def describe_changes(
    before: RehearsalRun, after: RehearsalRun, changes: list[DeploymentChange]
) -> str:
    """Describe in one sentence what changed between two rehearsals."""
    worse = sum(change.is_worse for change in changes)
    names = [{deployment.name for deployment in run.deployments} for run in (before, after)]
    deployments = len(set.intersection(*names))
    return (
        f"{format_count(deployments, 'deployment')} of SGLang {before.release} and "
        f"{after.release}: {format_count(len(changes), 'change')}, {worse:,} for the worse"
    )


def describe_passed_layers(calls: int, passed: int) -> str:
    """Describe how many calls of layers ran, if others passed their input on."""
    if not passed:
        return ""
    return (
        f"{calls - passed:,} of {calls:,} layers were run; the others launch the same kernels with "
        "the same shapes (`--all-layers` runs them, too)"
    )


def describe_answer(run: RehearsalRun) -> str:
    """Answer what a rehearsal is made for: 'fits on one H200 with 8.3 GB free; no overflow; …'."""
    counts = run.counts
    share = measure_share(run, counts["not checked"])
    reachable, near = counts["reachable"], counts["near"]
    parts = [
        f"a server reaches {format_count(reachable, 'finding')}" if reachable else "no overflow",
        f"{format_count(near, 'address')} near the limit" if near else "",
        f"{share:.0%} of launches are not checked" if share else "every launch is checked",
    ]
    if len(run.deployments) == 1:
        [result] = run.deployments
        free = result.card_memory - result.peak
        cards = describe_card(result)
        on = cards if " x " in cards else f"one {cards}"
        fits = (
            f"SGLang does not start it: {result.refusal}"
            if result.refusal
            else f"Fits on {on} with {format_gigabytes(free)} free"
            if free >= 0
            else f"Does not fit on {on}: {format_gigabytes(-free)} too much"
        )
    else:
        started = len(run.deployments) - counts["refused"]
        fits = f"{started} of {len(run.deployments)} deployments start"
    return f"{'; '.join(filter(None, (fits, *parts)))}."


def describe_run(run: RehearsalRun) -> str:
    """Describe a run in one sentence."""
    counts = run.counts
    share = measure_share(run, counts["not checked"])
    without_toolkit = sum(
        call.calls for call in run.unchecked_calls if call.cause is UncheckedCause.NO_TOOLKIT
    )
    reason = f", {measure_share(run, without_toolkit):.0%} for want of the CUDA toolkit"
    reason = reason if without_toolkit else ""
    launched = counts["launches"]
    parts = [
        f"{len(run.deployments) - counts['refused']} of {len(run.deployments)} deployments start "
        f"on SGLang {run.release}",
        f"{counts['reachable']} reachable and {counts['near']} near findings",
        f"{counts['launches']:,} launches of {counts['kernels']} kernels" if launched else "",
        describe_passed_layers(counts["layer calls"], counts["passed layers"]),
        f"{share:.0%} of all launches not checked{reason}" if launched else "",
        format_duration(run.seconds),
    ]
    return "; ".join(filter(None, parts))
