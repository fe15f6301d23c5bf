"""`unfix exec --check`: what to check, and what came of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import machine
from harness.cli import options
from harness.cli.parsing import Parser
from harness.compiled import ALL, CHECKS
from harness.errors import NotReady, UnfixError
from harness.watch import reports
from harness.watch.reports import Checked

_WORDS = (*ALL, "all", "stop")
_SHOWN = 12  # kernels of a list


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--check",
        nargs="?",
        const=",".join(CHECKS),
        metavar="WORDS",
        help="on a GPU, check every access of every Triton kernel: bounds, wraps (default: both), "
        "unwritten, races, all of these; stop to end a process at its first report",
    )


def put_in(environment: dict[str, str], asked: str | None, folder: Path) -> bool:
    """Have what runs in the environment check; whether it was asked for."""
    environment.pop(reports.CHECKS, None)
    if asked is None:
        return False
    words = [word.strip() for word in asked.split(",") if word.strip()]
    strange = [word for word in words if word not in _WORDS]
    if strange or not words:
        raise UnfixError(
            f"--check knows {', '.join(_WORDS)}, and not {', '.join(strange) or 'nothing'}"
        )
    if "all" in words:
        words = [*ALL, *(word for word in words if word == "stop")]
    if not machine.gpu():
        raise NotReady(
            "--check needs an NVIDIA GPU: on a CPU `unfix prove` and `checking.checked()` check"
        )
    reports.ask(environment, ",".join(words), _reports(folder))
    return True


def read(folder: Path) -> Checked:
    return reports.read(_reports(folder))


def _reports(folder: Path) -> Path:
    return folder.resolve() / "check"


def as_data(checked: Checked) -> dict[str, Any]:
    return {
        "processes": checked.processes,
        "kernels": len(checked.kernels),
        "launches": checked.launches,
        "share": round(checked.share, 4),
        "not_checked": {
            name: asdict(one)
            for name, one in checked.kernels.items()
            if one.refused or one.unchecked
        },
        "not_looked_at": checked.others,
        "reports": [asdict(report) for report in checked.reports],
    }


def shown(checked: Checked, code: int, as_json: bool) -> int:
    """The summary, and the exit code that follows from it."""
    if as_json:
        options.print_json(as_data(checked))
    else:
        for line in summary(checked):
            options.say(line)
    if checked.reports:
        return 1
    if not checked.launches and not code:
        options.say("no process launched a kernel of Triton's, so the check says nothing")
        return NotReady.exit_code
    return code


def summary(checked: Checked) -> list[str]:
    lines = [f"{checked}, in {checked.processes} process{'es' * (checked.processes != 1)}"]
    lines += _listed("not checked", checked.refused)
    lines += _listed(
        "checked but for",
        {
            name: ", ".join(
                f"{count} of its accesses: {why}" for why, count in one.unchecked.items()
            )
            for name, one in checked.kernels.items()
            if one.unchecked
        },
    )
    if checked.others:
        more = f", and {len(checked.others) - _SHOWN} more" * (len(checked.others) > _SHOWN)
        shown = ", ".join(checked.others[:_SHOWN])
        lines.append(f"not looked at, being no kernels of Triton's: those of {shown}{more}")
    count = len(checked.reports)
    lines.append(f"{count or 'no'} report{'s' * (count != 1)}")
    for report in checked.reports:
        lines.append(f"  {report.kind}: {report.headline}  ({report.file}:{report.line})")
    return lines


def _listed(head: str, reasons: dict[str, str]) -> list[str]:
    lines = [f"{head}: {name}, {why}" for name, why in list(reasons.items())[:_SHOWN]]
    if len(reasons) > _SHOWN:
        lines.append(f"{head}: {len(reasons) - _SHOWN} more")
    return lines
