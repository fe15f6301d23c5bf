"""`unfix exec --check`: the checks of kernels, and the summary of their reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.cli import options
from harness.cli.command_parser import CommandParser
from harness.core import device, machine
from harness.core.errors import NotReadyError, UnfixError
from harness.core.wording import format_count
from harness.patching.child_environment import STARTUP_FOLDER, ChildEnvironment
from harness.sanitizer.cuda import checked_toolchain, kernel_names
from harness.sanitizer.gpu import DEFAULT_CHECKS
from harness.sanitizer.gpu.kernel_summaries import KernelSummary
from harness.sanitizer.launches import LAUNCH_CHECKS
from harness.sanitizer.watch import report_files
from harness.sanitizer.watch.report_files import CheckSummary

# Words of the call, by the names that the back ends have for them.
_HOST_CHECKS = ("bounds", "overflow", "races", "uninitialized")
_CUDA = "cuda"  # CUDA kernels as well, on a GPU
_CHECK_WORDS = (*_HOST_CHECKS, "all", _CUDA, *LAUNCH_CHECKS, "stop")
_MAX_LISTED = 12  # kernels in a list
_PYTEST_VARIABLE, _PLUGIN = "PYTEST_ADDOPTS", "unfix_check"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--check",
        nargs="?",
        const="",
        metavar="WORDS",
        help="check every access of every Triton kernel: bounds, overflow, races, uninitialized, "
        "all of these; cuda: the same of CUDA kernels that are built meanwhile; "
        "graphs, streams: every launch of every library; stop to end a process at its first "
        "report. On this machine's GPU (default there: bounds and overflow), or with "
        "--device virtual or cpu compiled for its CPU (default there: all)",
    )


def configure_environment(
    environment: ChildEnvironment, option_value: str | None, device_name: str | None, folder: Path
) -> bool:
    """Request the checks in an environment; return whether the call has the option."""
    environment.pop(report_files.CHECKS_VARIABLE, None)
    if option_value is None:
        return False
    words = [word.strip() for word in option_value.split(",") if word.strip()]
    unknown = [word for word in words if word not in _CHECK_WORDS]
    if unknown or (option_value and not words):
        raise UnfixError(
            f"--check takes {', '.join(_CHECK_WORDS)}, and not {', '.join(unknown) or 'nothing'}"
        )
    rest = [word for word in words if word in (*LAUNCH_CHECKS, "stop")]
    checks = [word for word in words if word in _HOST_CHECKS or word == "all"]
    if "all" in checks:
        checks = list(_HOST_CHECKS)
    if not checks and not any(word in LAUNCH_CHECKS for word in rest):
        checks = ["default"]
    if device_name in ("cpu", device.VIRTUAL):
        if _CUDA in words:
            raise UnfixError(
                "--check cuda is for a GPU; --device virtual runs CUDA kernels under the same "
                "checks with --cuda-kernels"
            )
        _request_host_checks(environment, checks, rest, device_name, folder)
        return True
    if not machine.describe_gpus():
        raise NotReadyError(
            "--check needs an NVIDIA GPU, or --device virtual: then kernels are compiled for this "
            "CPU, and torch has a GPU that is not here"
        )
    environment[device.DEVICE_VARIABLE] = "cuda"
    of_kernels = DEFAULT_CHECKS if checks == ["default"] else tuple(checks)
    report_files.request_checks(
        environment, ",".join([*of_kernels, *rest]), _get_report_folder(folder)
    )
    if _CUDA in words:
        _request_cuda_checks(environment, of_kernels)
    return True


def _request_cuda_checks(environment: ChildEnvironment, checks: Sequence[str]) -> None:
    """Have the processes build CUDA kernels with checks."""
    if not checks:
        raise UnfixError(
            "--check cuda needs what to look for in CUDA kernels: "
            f"{', '.join(_HOST_CHECKS)} or all, as in --check cuda,bounds"
        )
    home = checked_toolchain.find_cuda_home(environment)
    if home is None:
        raise NotReadyError(
            "--check cuda needs the CUDA toolkit that kernels are built with: CUDA_HOME names its "
            "folder, or nvcc is on the PATH"
        )
    checked_toolchain.make_checked_toolkit(home, tuple(checks)).request(environment)


def _request_host_checks(
    environment: ChildEnvironment,
    checks: list[str],
    rest: list[str],
    device_name: str,
    folder: Path,
) -> None:
    """Request checks on this CPU; a pytest among the processes gets the plugin as well."""
    of_launches = [word for word in rest if word in LAUNCH_CHECKS]
    if of_launches and device_name != device.VIRTUAL:
        raise UnfixError(
            f"--check {','.join(of_launches)} needs a GPU or --device virtual: a CPU has neither "
            "streams nor graphs"
        )
    environment[device.DEVICE_VARIABLE] = device_name
    environment.use_checkout()
    environment.add_python_path(STARTUP_FOLDER)
    words = [*(_HOST_CHECKS if checks == ["default"] else checks), *rest]
    report_files.request_checks(environment, ",".join(words), _get_report_folder(folder))
    if checks:
        added = environment.get(_PYTEST_VARIABLE, "")
        environment[_PYTEST_VARIABLE] = f"{added} -p {_PLUGIN}".strip()


def read_reports(folder: Path, option_value: str | None) -> CheckSummary:
    of_launches = any(word in (option_value or "").split(",") for word in LAUNCH_CHECKS)
    return report_files.read_reports(_get_report_folder(folder), of_launches)


def _get_report_folder(folder: Path) -> Path:
    return folder.resolve() / "check"


def to_json(checked: CheckSummary) -> dict[str, Any]:
    share_of_all = checked.share_of_all
    return {
        "processes": checked.processes,
        "kernels": len(checked.kernels),
        "launches": checked.launches,
        "checked_launches": checked.checked_launches,
        "share": round(checked.checked_share, 4),
        "launches_by_kernel": {
            name: {"place": one.place, "launches": one.launches}
            for name, one in checked.kernels.items()
            if one.launches
        },
        "not_checked": {
            name: asdict(one)
            for name, one in checked.kernels.items()
            if one.refusals or one.skipped_checks or one.unchecked
        },
        "all_launches": {
            "launches": checked.all_launches.total(),
            "share": None if share_of_all is None else round(share_of_all, 4),
            "not_checked": dict(_count_unchecked_names(checked).most_common()),
            "uncounted": checked.uncounted,
        },
        "compilations": {
            name: {"count": one.compilations, "seconds": round(one.compile_seconds, 1)}
            for name, one in checked.kernels.items()
            if one.compilations
        },
        "dropped_reports": checked.dropped_reports,
        "reporter_failures": checked.failures,
        "followed": None if checked.traced is None else dict(checked.traced.counts),
        "not_looked_at": checked.unchecked_libraries,
        "reports": [asdict(report) for report in checked.reports],
    }


def print_summary(checked: CheckSummary, code: int, as_json: bool) -> int:
    """Print the summary, and return the exit code."""
    if as_json:
        options.print_json(to_json(checked))
    else:
        for line in format_summary(checked):
            options.report_status(line)
    if checked.reports or checked.dropped_reports:
        return 1
    for reason in (checked.reporter_failure, checked.silence):
        if reason:
            options.report_status(reason)
            return code or NotReadyError.exit_code
    return code


def format_summary(checked: CheckSummary) -> list[str]:
    partly = {
        name: ", ".join(words)
        for name, one in checked.kernels.items()
        if (words := list(_iter_unchecked_parts(one)))
    }
    lines = []
    if checked.kernels:
        lines.append(f"{checked}, in {format_count(checked.processes, 'process')}")
    if checked.traced is not None:
        traced = checked.traced
        lines.append(f"{traced}, in {format_count(traced.processes, 'process')}")
    lines += _format_all_launches(checked)
    lines += _format_compilations(checked)
    lines += _format_reasons("not checked", checked.refusals)
    lines += _format_reasons("checked except for", partly)
    if libraries := checked.unchecked_libraries:
        names = ", ".join(libraries[:_MAX_LISTED])
        if len(libraries) > _MAX_LISTED:
            names += f", and {len(libraries) - _MAX_LISTED} more"
        lines.append(f"not checked, since they are binaries: the kernels of {names}")
    if checked.reports:
        lines.append(format_count(len(checked.reports), "report"))
    elif lines:
        lines.append("no reports")
    lines += [
        f"  {name}: {format_count(count, 'report')} dropped, of launches no longer known"
        for name, count in checked.dropped_reports.items()
    ]
    for report in checked.reports:
        lines.append(f"  {report.kind}: {report.headline}  ({report.file}:{report.line})")
    further = sum(one.further_reports for one in checked.kernels.values())
    if further:
        lines.append(f"  and {format_count(further, 'report')} by other threads, of these lines")
    return lines


def _format_all_launches(checked: CheckSummary) -> list[str]:
    """Say the checked launches' share of all, and whose the others are."""
    lines = []
    share = checked.share_of_all
    if share is not None:
        total = checked.all_launches.total()
        lines.append(
            f"that is {share:.1%} of all {total} launches of these processes; the others are"
        )
        others = _count_unchecked_names(checked).most_common()
        for name, count in others[:_MAX_LISTED]:
            lines.append(f"  {count} ({count / total:.1%}): {name}")
        if rest := sum(count for _, count in others[_MAX_LISTED:]):
            more = format_count(len(others) - _MAX_LISTED, "other kernel")
            lines.append(f"  {rest} ({rest / total:.1%}): {more}")
    lines += [f"launches of all libraries were not counted in {one}" for one in checked.uncounted]
    return lines


def _format_compilations(checked: CheckSummary) -> list[str]:
    compiled = [one for one in checked.kernels.values() if one.compilations]
    if not compiled:
        return []
    count = sum(one.compilations for one in compiled)
    seconds = sum(one.compile_seconds for one in compiled)
    longest = max(compiled, key=lambda one: one.compile_seconds)
    return [
        f"Triton compiled with checks {count} times, in {seconds:.1f} s: {longest.name} "
        f"{longest.compilations} times, in {longest.compile_seconds:.1f} s"
    ]


def _count_unchecked_names(checked: CheckSummary) -> Counter[str]:
    """Count the launches that were not under check, by their kernels' plain names."""
    left: Counter[str] = Counter()
    for one in checked.kernels.values():
        left[kernel_names.find_plain_name(one.name)] += one.checked_launches
    counts: Counter[str] = Counter()
    for mangled, count in checked.all_launches.items():
        name = kernel_names.unmangle_name(mangled).partition("<")[0]
        plain = kernel_names.find_plain_name(name)
        under_check = min(count, left[plain])
        left[plain] -= under_check
        counts[name] += count - under_check
    return +counts


def _iter_unchecked_parts(kernel: KernelSummary) -> Iterator[str]:
    for why, count in kernel.unchecked.items():
        yield f"{count} of its accesses: {why}"
    for why, count in kernel.skipped_checks.items():
        yield f"{count} of {kernel.launches} launches, {why}"


def _format_reasons(head: str, reasons: dict[str, str]) -> list[str]:
    lines = [f"{head}: {name}, {why}" for name, why in list(reasons.items())[:_MAX_LISTED]]
    if len(reasons) > _MAX_LISTED:
        lines.append(f"{head}: {len(reasons) - _MAX_LISTED} more")
    return lines
