"""`unfix exec -- COMMAND`: runs a command and its child processes under toggles and checks."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from harness.cli import guard_runs, kernel_checks, options, run_output
from harness.cli.command_parser import CommandParser
from harness.core import machine, paths
from harness.core.device import VIRTUAL, get_environment
from harness.core.errors import CommandLineError, NotReadyError, UnfixError
from harness.core.missing_package import describe_missing_torch
from harness.core.wording import format_count
from harness.fixes.patch_plan import ToggleChoice, make_plan
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.patching import attestation, bootstrap, planner
from harness.patching.child_environment import ChildEnvironment
from harness.releases import added_releases, cuda_toolkit, managed_releases, provisioning
from harness.releases.source_trees import SourceTree
from harness.sanitizer.device.cards import get_card
from harness.sanitizer.watch import virtual_process
from harness.store.record_files import write_record

MAX_OUTPUT_LINES = 60


def add_arguments(parser: CommandParser) -> None:
    parser.passthrough_owner = "COMMAND"
    parser.usage = (
        "unfix exec [--revert IDS] [--enable IDS] [--check] [--release R] [OPTIONS] -- COMMAND …"
    )
    options.add_directions(parser)
    kernel_checks.add_arguments(parser)
    parser.add_argument(
        "--release",
        metavar="R",
        help="a managed version, whose python the command then finds first, or 'current' "
        "(default: the SGLang of the command's own python)",
    )
    options.add_device(parser, with_virtual=True)
    parser.set_defaults(device=None)
    parser.add_argument(
        "--card", metavar="NAME", help="the card that the virtual GPU plays: H100, H200 or B200"
    )
    parser.add_argument(
        "--cuda-kernels",
        action="store_true",
        help="on the virtual GPU: run SGLang's own CUDA C++ kernels, in place of stand-ins",
    )
    parser.add_argument(
        "--attestations", type=Path, metavar="DIR", help="a folder for the attestations"
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write the command, the machine and the outcome as JSON",
    )
    options.add_toggle_folders(parser)
    options.add_json(parser)


@dataclass(frozen=True)
class ExecRequest:
    """The arguments of `unfix exec`; `words` is the command."""

    words: list[str]
    revert: list[str]
    enable: list[str]
    check: str | None
    release: str | None
    device: str | None
    card: str | None
    cuda_kernels: bool
    attestations: Path | None
    record: Path | None
    toggles: list[Path]
    json: bool
    usage: str


def run_command(arguments: argparse.Namespace) -> int:
    request = options.make_request(ExecRequest, arguments)
    if not request.words:
        raise CommandLineError(
            "exec needs a command: unfix exec --revert ID -- python -m …", request.usage
        )
    inherited_revert, inherited_enable = bootstrap.read_requested_ids()
    revert = [*request.revert, *inherited_revert]
    enable = [*request.enable, *inherited_enable]
    release, tree = _find_release(request.release, request.device or "cpu")
    if release is not None and tree is not None and (revert or enable):
        guard_runs.mend_stale_toggles([tree], request.toggles)
    environment = ChildEnvironment()
    on_virtual_device = request.device == VIRTUAL
    if release is not None:
        environment.put_python_first(release.python, release.folder)
        environment.require_release(release.python)
    command = _resolve_command(request.words, environment["PATH"])
    chosen = _check_toggles(options.load_catalogue(arguments), revert, enable, tree)
    folder = request.attestations or paths.state_folder() / "attestations" / _make_run_name()
    environment.set_toggles(revert, enable, request.toggles, folder)
    if on_virtual_device:
        environment.use_virtual_device(request.card, folder.resolve())
        if request.cuda_kernels:
            cuda_toolkit.ensure_toolkit(options.report_status)
            environment["UNFIX_CUDA_KERNELS"] = "run"
    elif request.cuda_kernels:
        raise CommandLineError("--cuda-kernels goes with --device virtual", request.usage)
    has_checks = kernel_checks.configure_environment(
        environment, request.check, request.device, folder
    )
    if revert or enable:
        release_text = f"SGLang {tree.version}" if tree else "whatever SGLang it imports"
        toggles = ", ".join(str(choice) for choice in chosen) or ", ".join(revert + enable)
        options.report_status(f"{toggles} on {release_text}; attestations in {folder}")
    started = time.monotonic()
    earlier_files = attestation.list_attestation_files(folder) if folder.is_dir() else set()
    code, output = _run_forwarding_signals(command, environment, request.record is not None)
    attestations: list[attestation.Attestation] = []
    if folder.is_dir():
        attestations = attestation.read_attestations(folder, ignored_files=earlier_files)
    checked = kernel_checks.read_reports(folder, request.check) if has_checks else None
    if request.record is not None:
        python = shutil.which("python3", path=environment["PATH"]) or sys.executable
        record = {
            "command": run_output.get_recorded_command(),
            "machine": machine.collect_machine_facts(python),
            **_describe_virtual_device(request, folder),
            "exit_code": code,
            "seconds": round(time.monotonic() - started, 1),
            **({} if checked is None else {"check": kernel_checks.to_json(checked)}),
            "output": output,
            "processes": [_attestation_to_json(one) for one in attestations],
        }
        text = json.dumps(record, indent=1)
        write_record(request.record, run_output.hide_local_paths(text) + "\n")
    if on_virtual_device:
        for line in virtual_process.read_records(folder.resolve()).describe():
            options.report_status(line)
    is_unchecked = (on_virtual_device or has_checks) and not (checked and checked.kernels)
    if code and is_unchecked and (missing := describe_missing_torch(command[0])):
        options.report_status(missing)
        return NotReadyError.exit_code
    if checked is not None:
        code = kernel_checks.print_summary(checked, code, request.json and not (revert or enable))
    if revert or enable:
        _print_summary(attestations, request.json)
        if not any(one.toggles for one in attestations):
            options.report_status(
                "no process applied a toggle: none imported SGLang, or only under a Python that "
                "ignores PYTHONPATH (-I, -E, a PYTHONPATH of its own); the outcome says nothing. "
                "--release VERSION puts a managed release's python first"
            )
            return code or NotReadyError.exit_code
    return code


def _describe_virtual_device(request: ExecRequest, folder: Path) -> dict[str, Any]:
    if request.device != VIRTUAL:
        return {}
    device_record = virtual_process.read_records(folder.resolve()).as_dict()
    return {"virtual_device": {"card": get_card(request.card).name, **device_record}}


def _make_run_name() -> str:
    return f"exec-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def _find_release(
    name: str | None, device: str
) -> tuple[managed_releases.Release | None, SourceTree | None]:
    """Return the managed release that the call names, if any; there is no default."""
    if name is None:
        return None, None
    if name == "current":
        return None, managed_releases.open_release_tree(name)
    release = added_releases.find_release(name, get_environment(device), options.report_status)
    provisioning.ensure_installed([release], options.report_status)
    return release, release.open_sources()


def _resolve_command(words: list[str], path: str) -> list[str]:
    program = shutil.which(words[0], path=path)
    if program is None:
        raise UnfixError(f"there is no command '{words[0]}'")
    return [program, *words[1:]]


def _check_toggles(
    catalogue: ToggleCatalogue, revert: list[str], enable: list[str], tree: SourceTree | None
) -> list[ToggleChoice]:
    """Refuse toggles that cannot be applied before a process starts; each process checks again."""
    if tree is None:
        catalogue.select_all([name for name in revert if not name.isdigit()] + enable)
        return []
    chosen, _ = planner.resolve_choices(catalogue, revert, enable, tree)
    make_plan(chosen, tree, str(tree.version))
    return chosen


def _run_forwarding_signals(
    command: list[str], environment: dict[str, str], keep_output: bool
) -> tuple[int, list[str]]:
    """Run the command in the foreground and forward our signals to it.

    To store the end of its output, pass it on line by line, stderr with stdout.
    """
    pipes: dict[str, Any] = (
        {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if keep_output else {}
    )
    process = subprocess.Popen(command, env=environment, **pipes)
    last_lines: deque[str] = deque(maxlen=MAX_OUTPUT_LINES)

    def forward_signal(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    # A Ctrl-C reaches the whole foreground group; this process only has to outlive the command.
    before: dict[int, Any] = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    number: int
    for number in (signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, forward_signal)
    try:
        for line in process.stdout or ():
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            last_lines.append(line.decode(errors="replace").rstrip())
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (128 - code if code < 0 else code), list(last_lines)


def _attestation_to_json(attested: attestation.Attestation) -> dict[str, Any]:
    return {
        "pid": attested.pid,
        "forked_from": attested.forked_from,
        "command": attested.command,
        "release": attested.release,
        "toggles": attested.toggles,
        "modules": attested.modules,
        "reach": {toggle: attested.reach(toggle) for toggle in attested.toggles},
    }


def _print_summary(attestations: list[attestation.Attestation], as_json: bool) -> None:
    if as_json:
        options.print_json([_attestation_to_json(a) for a in attestations])
        return
    processes = format_count(len(attestations), "process")
    patched = sum(bool(one.modules) for one in attestations)
    for toggle in sorted({toggle for one in attestations for toggle in one.toggles}):
        count = sum(one.reach(toggle) for one in attestations)
        reach = f"its code ran {format_count(count, 'time')}" if count else "its code never ran"
        options.report_status(
            f"{toggle}: in {processes}, {patched} of which loaded patched code; {reach}"
        )
