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

from harness import machine, paths
from harness.cli import checks, options, pages
from harness.cli.parsing import Parser
from harness.errors import NotReady, UnfixError, WrongCall
from harness.patching import attestation, boot, planner
from harness.patching import environment as under
from harness.patching.plan import Choice, make
from harness.releases import having, managed
from harness.releases.sources import SourceTree

KEPT_LINES = 60


def add_arguments(parser: Parser) -> None:
    parser.behind = "COMMAND"
    parser.usage = (
        "unfix exec [--revert IDS] [--enable IDS] [--check] [--release R] [OPTIONS] -- COMMAND …"
    )
    options.add_directions(parser)
    checks.add_arguments(parser)
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


def run(arguments: argparse.Namespace) -> int:
    if not arguments.words:
        raise WrongCall(
            "exec needs a command: unfix exec --revert ID -- python -m …", arguments.usage
        )
    revert, enable = (_split(ids) for ids in (arguments.revert, arguments.enable))
    for option, ids in (("revert", revert), ("enable", enable)):
        if getattr(arguments, option) and not ids:
            raise UnfixError(f"--{option} names no toggle")
    inherited = boot.asked_for()
    revert += inherited[0]
    enable += inherited[1]
    release, tree = _release(arguments.release, arguments.device)
    environment = dict(os.environ)
    if release is not None:
        under.find_first(environment, release.python, release.folder)
    command = _resolve(arguments.words, environment["PATH"])
    chosen = _check(arguments, revert, enable, tree)
    folder = arguments.attestations or paths.state() / "attestations" / _run_name()
    under.put_in(environment, revert, enable, arguments.toggles, folder)
    asked = checks.put_in(environment, arguments.check, folder)
    if revert or enable:
        on = f"SGLang {tree.version}" if tree else "whatever SGLang it imports"
        what = ", ".join(str(choice) for choice in chosen) or ", ".join(revert + enable)
        options.say(f"{what} on {on}; attestations in {folder}")
    started = time.monotonic()
    before = attestation.files(folder) if folder.is_dir() else set()
    code, output = _run(command, environment, keep=arguments.record is not None)
    found = attestation.read(folder, ignoring=before) if folder.is_dir() else []
    checked = checks.read(folder) if asked else None
    if arguments.record is not None:
        run: dict[str, Any] = {
            "exit_code": code,
            "seconds": round(time.monotonic() - started, 1),
        }
        if checked is not None:
            run["check"] = checks.as_data(checked)
        python = shutil.which("python3", path=environment["PATH"]) or sys.executable
        _record(arguments.record, {**run, "output": output}, found, machine.facts(python))
    if checked is not None:
        code = checks.shown(checked, code, arguments.json and not (revert or enable))
    if revert or enable:
        _summary(found, arguments.json)
        if not any(a.toggles for a in found):
            options.say(
                "no process applied a toggle: none imported SGLang, or only under a Python that "
                "ignores PYTHONPATH (-I, -E, a PYTHONPATH of its own); the outcome says nothing. "
                "--release VERSION puts a managed release's python first"
            )
            return code or NotReady.exit_code
    return code


def _split(values: list[str]) -> list[str]:
    return [word for value in values for word in boot.split(value)]


def _run_name() -> str:
    return f"exec-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def _release(name: str | None, device: str) -> tuple[managed.Release | None, SourceTree | None]:
    """The managed release to run under, if one was named; nothing is chosen by itself."""
    if name is None:
        return None, None
    if name == "current":
        return None, managed.tree(name)
    release = managed.get(name, device)
    having.ready([release], options.say)
    return release, release.sources()


def _resolve(words: list[str], path: str) -> list[str]:
    found = shutil.which(words[0], path=path)
    if found is None:
        raise UnfixError(f"there is no command '{words[0]}'")
    return [found, *words[1:]]


def _check(
    arguments: argparse.Namespace, revert: list[str], enable: list[str], tree: SourceTree | None
) -> list[Choice]:
    """Refuse what cannot work before anything is started; each process checks for itself again."""
    catalogue = options.catalogue(arguments)
    if tree is None:
        known = [name for name in revert if not name.isdigit()] + enable
        catalogue.select_all(known)
        return []
    chosen, _ = planner.choices(catalogue, revert, enable, tree)
    make(chosen, tree, str(tree.version))
    return chosen


def _run(command: list[str], environment: dict[str, str], keep: bool) -> tuple[int, list[str]]:
    """Run the command in the foreground; signals sent to us are sent on to it.

    To keep its output, it is read and passed on line by line, stderr with stdout.
    """
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if keep else {}
    process = subprocess.Popen(command, env=environment, **pipes)
    last: deque[str] = deque(maxlen=KEPT_LINES)

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


def _record(
    path: Path,
    run: dict[str, Any],
    found: list[attestation.Attestation],
    made_on: dict[str, Any],
) -> None:
    """A recorded result: the command, the machine, the outcome and the attestations."""
    record = {
        "command": pages.command(),
        "machine": made_on,
        **run,
        "processes": [_as_data(a) for a in found],
    }
    # Where the project lies on that machine is nobody's business in a recorded result.
    text = json.dumps(record, indent=1).replace(str(paths.project()), ".")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def _as_data(found: attestation.Attestation) -> dict[str, Any]:
    return {
        "pid": found.pid,
        "forked_from": found.forked_from,
        "command": found.command,
        "release": found.release,
        "toggles": found.toggles,
        "modules": found.modules,
        "reach": {toggle: found.reach(toggle) for toggle in found.toggles},
    }


def _summary(found: list[attestation.Attestation], as_json: bool) -> None:
    if as_json:
        options.print_json([_as_data(a) for a in found])
        return
    toggles = {toggle for a in found for toggle in a.toggles}
    for toggle in sorted(toggles):
        count = sum(a.reach(toggle) for a in found)
        loaded = sum(bool(a.modules) for a in found)
        ran = f"its code ran {count} time{'s' * (count != 1)}" if count else "its code never ran"
        where = f"in {len(found)} process{'es' * (len(found) != 1)}"
        options.say(f"{toggle}: {where}, {loaded} of which loaded patched code; {ran}")
