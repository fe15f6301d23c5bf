"""`unfix exec --check`: what to check, and what came of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.cli import options
from harness.cli.command_parser import CommandParser
from harness.core import machine
from harness.core.errors import NotReadyError, UnfixError
from harness.kernels.gpu import ALL_CHECKS, DEFAULT_CHECKS
from harness.kernels.watch import report_files
from harness.kernels.watch.report_files import CheckSummary

_CHECK_WORDS = (*ALL_CHECKS, "all", "stop")
_MAX_LISTED = 12  # kernels of a list


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--check",
        nargs="?",
        const=",".join(DEFAULT_CHECKS),
        metavar="WORDS",
        help="on a GPU, check every access of every Triton kernel: bounds, wraps (default: both), "
        "unwritten, races, all of these; stop to end a process at its first report",
    )


def configure_environment(
    environment: dict[str, str], option_value: str | None, folder: Path
) -> bool:
    """Have what runs in the environment check; whether it was asked for."""
    environment.pop(report_files.CHECKS_VARIABLE, None)
    if option_value is None:
        return False
    words = [word.strip() for word in option_value.split(",") if word.strip()]
    strange = [word for word in words if word not in _CHECK_WORDS]
    if strange or not words:
        raise UnfixError(
            f"--check knows {', '.join(_CHECK_WORDS)}, and not {', '.join(strange) or 'nothing'}"
        )
    if "all" in words:
        words = [*ALL_CHECKS, *(word for word in words if word == "stop")]
    if not machine.describe_gpus():
        raise NotReadyError(
            "--check needs an NVIDIA GPU: on a CPU `unfix prove` and `checking.checked()` check"
        )
    report_files.request_checks(environment, ",".join(words), _get_report_folder(folder))
    return True


def read_reports(folder: Path) -> CheckSummary:
    return report_files.read_reports(_get_report_folder(folder))


def _get_report_folder(folder: Path) -> Path:
    return folder.resolve() / "check"


def to_json(checked: CheckSummary) -> dict[str, Any]:
    return {
        "processes": checked.processes,
        "kernels": len(checked.kernels),
        "launches": checked.launches,
        "share": round(checked.checked_share, 4),
        "not_checked": {
            name: asdict(one)
            for name, one in checked.kernels.items()
            if one.refused or one.unchecked
        },
        "not_looked_at": checked.unchecked_libraries,
        "reports": [asdict(report) for report in checked.reports],
    }


def print_summary(checked: CheckSummary, code: int, as_json: bool) -> int:
    """The summary, and the exit code that follows from it."""
    if as_json:
        options.print_json(to_json(checked))
    else:
        for line in format_summary(checked):
            options.report_status(line)
    if checked.reports:
        return 1
    if not checked.launches and not code:
        options.report_status("no process launched a kernel of Triton's, so the check says nothing")
        return NotReadyError.exit_code
    return code


def format_summary(checked: CheckSummary) -> list[str]:
    lines = [f"{checked}, in {checked.processes} process{'es' * (checked.processes != 1)}"]
    lines += _format_reasons("not checked", checked.refusals)
    lines += _format_reasons(
        "checked but for",
        {
            name: ", ".join(
                f"{count} of its accesses: {why}" for why, count in one.unchecked.items()
            )
            for name, one in checked.kernels.items()
            if one.unchecked
        },
    )
    if checked.unchecked_libraries:
        more = f", and {len(checked.unchecked_libraries) - _MAX_LISTED} more" * (
            len(checked.unchecked_libraries) > _MAX_LISTED
        )
        shown = ", ".join(checked.unchecked_libraries[:_MAX_LISTED])
        lines.append(f"not looked at, being no kernels of Triton's: those of {shown}{more}")
    count = len(checked.reports)
    lines.append(f"{count or 'no'} report{'s' * (count != 1)}")
    for report in checked.reports:
        lines.append(f"  {report.kind}: {report.headline}  ({report.file}:{report.line})")
    return lines


def _format_reasons(head: str, reasons: dict[str, str]) -> list[str]:
    lines = [f"{head}: {name}, {why}" for name, why in list(reasons.items())[:_MAX_LISTED]]
    if len(reasons) > _MAX_LISTED:
        lines.append(f"{head}: {len(reasons) - _MAX_LISTED} more")
    return lines
