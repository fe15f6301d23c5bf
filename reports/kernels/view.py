"""An inventory of kernels as every report shows it: by folder, and by what keeps kernels out."""

from __future__ import annotations

from harness.runs.kernels.values import KernelInventory, KernelKind, ListedKernel
from reports.shared.formatting import link_source
from reports.shared.tables import ReportTable, TableCell, TableRows, make_code_cell, make_quiet_cell

_KIND_WORDS = {KernelKind.TRITON: "Triton", KernelKind.CUDA: "CUDA C++"}
_MAX_NAMES = 3
_NUMBERS = ("kernels", "reached", "suites", "servers", "zoo", "lines")


def describe_inventory(inventory: KernelInventory) -> str:
    """Describe an inventory in one sentence."""
    parts = []
    for kind, words in _KIND_WORDS.items():
        reached, count = inventory.count_reached(kind)
        if count:
            parts.append(f"{reached} of {count} {words} kernels")
    on = f", recorded on {', '.join(inventory.recorded_on)}" if inventory.recorded_on else ""
    return f"SGLang {inventory.release}: {' and '.join(parts)} launched under check{on}"


def count_launchers(kernels: list[ListedKernel], word: str) -> int:
    """Count the kernels that some launcher of a kind reaches: `suite`, `server` or `zoo`."""
    return sum(
        any(launcher.partition(" ")[0] == word for launcher in kernel.reached_by)
        for kernel in kernels
    )


def describe_lines(kernels: list[ListedKernel]) -> str:
    """Describe which part of the reached kernels' lines ran: '210 / 260'."""
    counted = sum(kernel.line_count for kernel in kernels)
    return f"{sum(kernel.reached_lines for kernel in kernels)} / {counted}" if counted else ""


def describe_unreached_lines(kernel: ListedKernel) -> str:
    """Describe the lines that did not run: '412 to 418, 430'."""
    ranges: list[list[int]] = []
    for line in kernel.unreached_lines:
        if ranges and line == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], line]
        else:
            ranges.append([line])
    return ", ".join(" to ".join(map(str, line_range)) for line_range in ranges)


def make_folder_table(inventory: KernelInventory) -> ReportTable:
    """Make a row for each folder with kernels of a kind."""
    folders: dict[tuple[str, KernelKind], list[ListedKernel]] = {}
    for kernel in inventory.kernels:
        folders.setdefault((kernel.folder, kernel.kind), []).append(kernel)
    rows: TableRows = []
    for (folder, kind), kernels in sorted(folders.items()):
        reached = sum(kernel.is_reached for kernel in kernels)
        counts = [str(count_launchers(kernels, word)) for word in ("suite", "server", "zoo")]
        tone = "good" if reached == len(kernels) else "" if reached else "quiet"
        rows.append(
            [
                make_code_cell(folder, f"#filter:{folder}/"),
                make_quiet_cell(_KIND_WORDS[kind]),
                str(len(kernels)),
                TableCell(str(reached), tone),
                *counts,
                describe_lines(kernels),
            ]
        )
    return ReportTable("Folders", ("folder", "kind", *_NUMBERS), rows, _NUMBERS)


def make_obstacle_table(inventory: KernelInventory) -> ReportTable:
    """Make a row for each reason why kernels are not reached, the most frequent first."""
    rows: TableRows = [
        [str(count), TableCell(obstacle, link=f"#filter:{obstacle}")]
        for obstacle, count in inventory.count_obstacles().most_common()
    ]
    return ReportTable("Not reached", ("kernels", "what keeps them out"), rows, ("kernels",))


def make_missing_table(inventory: KernelInventory) -> ReportTable:
    """Make a row for each kernel that nothing reaches, with what would."""
    order = {name: rank for rank, (name, _) in enumerate(inventory.count_obstacles().most_common())}
    missing = [kernel for kernel in inventory.kernels if kernel.obstacle]
    missing.sort(key=lambda kernel: (order[kernel.obstacle], kernel.file, kernel.line))
    rows: TableRows = [
        [
            kernel.obstacle,
            make_code_cell(kernel.name),
            make_quiet_cell(f"{kernel.file}:{kernel.line}"),
            describe_way(kernel),
        ]
        for kernel in missing
    ]
    return ReportTable("Each of them", ("what keeps it out", "kernel", "place", "reached by"), rows)


def describe_way(kernel: ListedKernel) -> str:
    """Describe what would reach a kernel: the code that leads to it, and what that reads first."""
    if kernel.refusals:
        return kernel.refusals[0]
    if kernel.helper_of:
        return f"called by {shorten_list(kernel.helper_of)}"
    host = kernel.launch_sites[0].rpartition(" ")[2] if kernel.launch_sites else ""
    parts = [host] if host else []
    if kernel.entries:
        entries = [entry.removeprefix("sglang.") for entry in kernel.entries]
        parts.append(f"from {shorten_list(entries)}")
    if kernel.conditions:
        parts.append(f"which reads {shorten_list(kernel.conditions)}")
    return " ".join(parts)


def shorten_list(words: list[str]) -> str:
    more = f" and {len(words) - _MAX_NAMES} more" if len(words) > _MAX_NAMES else ""
    return ", ".join(words[:_MAX_NAMES]) + more


def list_launchers(kernel: ListedKernel) -> str:
    """Describe who reaches a kernel: '4 guards, zoo llama, qwen3 and 20 more'."""
    names: dict[str, list[str]] = {}
    for launcher in kernel.reached_by:
        word, _, name = launcher.partition(" ")
        names.setdefault(word, []).append(name)
    return "; ".join(f"{word} {shorten_list(each)}".strip() for word, each in names.items())


def make_kernel_table(inventory: KernelInventory) -> ReportTable:
    """Make a row for each kernel, with who reaches it, or what would."""
    rows: TableRows = [
        [
            make_code_cell(kernel.name),
            TableCell(
                f"{kernel.file}:{kernel.line}",
                "quiet",
                link=link_source(inventory.release, kernel.file, kernel.line),
            ),
            describe_lines([kernel]),
            make_quiet_cell(describe_unreached_lines(kernel)),
            list_launchers(kernel)
            or ": ".join(filter(None, (kernel.obstacle, describe_way(kernel)))),
        ]
        for kernel in inventory.kernels
    ]
    heads = ("kernel", "place", "lines", "lines that did not run", "reached by")
    return ReportTable("Kernels", heads, rows, ("lines",))
