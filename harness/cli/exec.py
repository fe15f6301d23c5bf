"""`unfix exec -- COMMAND`: any command, and every process below it, under toggles and checks."""

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
from pathlib import Path
from types import FrameType
from typing import Any

from harness.cli import gpu_checks, options, run_output
from harness.cli.command_parser import CommandParser
from harness.core import machine, paths
from harness.core.errors import CommandLineError, NotReadyError, UnfixError
from harness.patching import attestation, bootstrap, planner
from harness.patching import toggle_environment as under
from harness.patching.patch_plan import ToggleChoice, make_plan
from harness.releases import managed_releases, provisioning
from harness.releases.source_trees import SourceTree

MAX_OUTPUT_LINES = 60


def add_arguments(parser: CommandParser) -> None:
    parser.passthrough_owner = "COMMAND"
    parser.usage = (
        "unfix exec [--revert IDS] [--enable IDS] [--check] [--release R] [OPTIONS] -- COMMAND …"
    )
    options.add_directions(parser)
    gpu_checks.add_arguments(parser)
    parser.add_argument(
        "--release",
        metavar="R",
        help="a managed version, whose python the command then finds first, or 'current' "
        "(default: whatever SGLang the command's own python has)",
    )
    options.add_device(parser)
    parser.add_argument("--attestations", type=Path, metavar="DIR", help="where they are left")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write what was run, where, and what it showed"
    )
    options.add_toggle_folders(parser)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    if not arguments.words:
        raise CommandLineError(
            "exec needs a command: unfix exec --revert ID -- python -m …", arguments.usage
        )
    revert, enable = (_split_ids(ids) for ids in (arguments.revert, arguments.enable))
    for option, ids in (("revert", revert), ("enable", enable)):
        if getattr(arguments, option) and not ids:
            raise UnfixError(f"--{option} names no toggle")
    inherited = bootstrap.read_requested_ids()
    revert += inherited[0]
    enable += inherited[1]
    release, tree = _find_release(arguments.release, arguments.device)
    environment = dict(os.environ)
    if release is not None:
        under.put_python_first(environment, release.python, release.folder)
    command = _resolve_command(arguments.words, environment["PATH"])
    chosen = _check_toggles(arguments, revert, enable, tree)
    folder = arguments.attestations or paths.state_folder() / "attestations" / _make_run_name()
    under.set_toggle_variables(environment, revert, enable, arguments.toggles, folder)
    asked = gpu_checks.configure_environment(environment, arguments.check, folder)
    if revert or enable:
        on = f"SGLang {tree.version}" if tree else "whatever SGLang it imports"
        what = ", ".join(str(choice) for choice in chosen) or ", ".join(revert + enable)
        options.report_status(f"{what} on {on}; attestations in {folder}")
    started = time.monotonic()
    before = attestation.list_attestation_files(folder) if folder.is_dir() else set()
    code, output = _run_forwarding_signals(
        command, environment, keep_output=arguments.record is not None
    )
    found = attestation.read_attestations(folder, ignored_files=before) if folder.is_dir() else []
    checked = gpu_checks.read_reports(folder) if asked else None
    if arguments.record is not None:
        run: dict[str, Any] = {
            "exit_code": code,
            "seconds": round(time.monotonic() - started, 1),
        }
        if checked is not None:
            run["check"] = gpu_checks.to_json(checked)
        python = shutil.which("python3", path=environment["PATH"]) or sys.executable
        _write_record(
            arguments.record,
            {**run, "output": output},
            found,
            machine.collect_machine_facts(python),
        )
    if checked is not None:
        code = gpu_checks.print_summary(checked, code, arguments.json and not (revert or enable))
    if revert or enable:
        _print_summary(found, arguments.json)
        if not any(a.toggles for a in found):
            options.report_status(
                "no process applied a toggle: none imported SGLang, or only under a Python that "
                "ignores PYTHONPATH (-I, -E, a PYTHONPATH of its own); the outcome says nothing. "
                "--release VERSION puts a managed release's python first"
            )
            return code or NotReadyError.exit_code
    return code


def _split_ids(values: list[str]) -> list[str]:
    return [word for value in values for word in bootstrap.split_ids(value)]


def _make_run_name() -> str:
    return f"exec-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def _find_release(
    name: str | None, device: str
) -> tuple[managed_releases.Release | None, SourceTree | None]:
    """The managed release to run under, if one was named; nothing is chosen by itself."""
    if name is None:
        return None, None
    if name == "current":
        return None, managed_releases.open_release_tree(name)
    release = managed_releases.get_release(name, device)
    provisioning.ensure_installed([release], options.report_status)
    return release, release.open_sources()


def _resolve_command(words: list[str], path: str) -> list[str]:
    found = shutil.which(words[0], path=path)
    if found is None:
        raise UnfixError(f"there is no command '{words[0]}'")
    return [found, *words[1:]]


def _check_toggles(
    arguments: argparse.Namespace, revert: list[str], enable: list[str], tree: SourceTree | None
) -> list[ToggleChoice]:
    """Refuse what cannot work before anything is started; each process checks for itself again."""
    catalogue = options.load_catalogue(arguments)
    if tree is None:
        known = [name for name in revert if not name.isdigit()] + enable
        catalogue.select_all(known)
        return []
    chosen, _ = planner.resolve_choices(catalogue, revert, enable, tree)
    make_plan(chosen, tree, str(tree.version))
    return chosen


def _run_forwarding_signals(
    command: list[str], environment: dict[str, str], keep_output: bool
) -> tuple[int, list[str]]:
    """Run the command in the foreground; signals sent to us are sent on to it.

    To keep its output, it is read and passed on line by line, stderr with stdout.
    """
    pipes: dict[str, Any] = (
        {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if keep_output else {}
    )
    process = subprocess.Popen(command, env=environment, **pipes)
    last: deque[str] = deque(maxlen=MAX_OUTPUT_LINES)

    def send_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    # A Ctrl-C reaches the whole foreground group by itself: we only have to outlive it.
    before: dict[int, Any] = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    number: int
    for number in (signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, send_on)
    try:
        for line in process.stdout or ():
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            last.append(line.decode(errors="replace").rstrip())
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (128 - code if code < 0 else code), list(last)


def _write_record(
    path: Path,
    run: dict[str, Any],
    attestations: list[attestation.Attestation],
    machine_facts: dict[str, Any],
) -> None:
    """A recorded result: the command, the machine, the outcome and the attestations."""
    record = {
        "command": run_output.get_recorded_command(),
        "machine": machine_facts,
        **run,
        "processes": [_attestation_to_json(a) for a in attestations],
    }
    # Where the project lies on that machine is nobody's business in a recorded result.
    text = json.dumps(record, indent=1).replace(str(paths.project_folder()), ".")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


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
    toggles = {toggle for a in attestations for toggle in a.toggles}
    for toggle in sorted(toggles):
        count = sum(a.reach(toggle) for a in attestations)
        loaded = sum(bool(a.modules) for a in attestations)
        ran = f"its code ran {count} time{'s' * (count != 1)}" if count else "its code never ran"
        where = f"in {len(attestations)} process{'es' * (len(attestations) != 1)}"
        options.report_status(f"{toggle}: {where}, {loaded} of which loaded patched code; {ran}")
