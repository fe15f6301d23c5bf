"""`unfix`: the commands by name; only the one that is called is imported."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from harness import __version__
from harness.cli import options
from harness.cli.command_parser import CommandParser
from harness.core import paths, preloading
from harness.core.errors import CommandLineError, NotReadyError, UnfixError
from harness.releases import checkouts

# What a command is, and where it lives if not in the module of its name.
COMMANDS = {
    "prove": "the proof: every guard with its fix in, and with it out",
    "lifecycle": "every guard on every release with nothing toggled: when each bug lived",
    "bisect": "which fix a symptom is about, over toggles, releases or commits",
    "fuzz": "suites for as long as a budget lasts: each failure shrunk, kept, replayed anywhere",
    "mutate": "faults of the known kinds, made anywhere: how strong are the suites",
    "audit": "every kernel of a release: where an integer wraps on its way into an address",
    "eval": "accuracy, end to end: a real server's answers, paired against a baseline's",
    "matrix": "the configuration matrix: plan, run and split combinations of options",
    "report": "any stored run again: table, page, JUnit, Markdown, JSON",
    "list": "the registry, with each toggle's state on a release",
    "show": "one toggle: its story, its state, its patch as a diff",
    "adopt": "a toggle from a fix: a diff, a commit, or what changed between two releases",
    "drift": "every toggle on every release: fixed, buggy, absent or stale",
    "exec": "any command under toggles: unfix exec --revert ID -- COMMAND",
    "releases": "list, add and remove managed releases",
    "doctor": "what this machine has, what is missing, what stands in for it",
    "test": "this project's own tests",
}


COMMAND_MODULES = {"lifecycle": "prove.lifecycle"} | {
    name: f"{name}.command"
    for name in ("prove", "bisect", "fuzz", "mutate", "audit", "eval", "matrix", "report", "test")
}


def _get_module_name(command: str) -> str:
    return f"harness.cli.{COMMAND_MODULES.get(command, command)}"


def build_parser(name: str | None) -> CommandParser:
    parser = CommandParser(
        prog="unfix",
        description="Take a fix back out of a real SGLang and see which tests notice.",
        epilog="Exit codes: 0 all is well, 1 a verdict says no, 2 the call is wrong, "
        "3 the machine or a release is not ready.",
    )
    parser.add_argument("--version", action="version", version=f"unfix {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, summary in COMMANDS.items():
        sub = commands.add_parser(command, help=summary, description=summary)
        if command == name:
            importlib.import_module(_get_module_name(command)).add_arguments(sub)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    preloading.raise_gc_thresholds()
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = next((word for word in words if not word.startswith("-")), None)
    try:
        # Everything behind `--` is somebody else's command line.
        own, command = words, []
        if "--" in words:
            cut = words.index("--")
            own, command = words[:cut], words[cut + 1 :]
        if name == "test" and not {"-h", "--help"} & set(words):
            own, command = words[: words.index("test") + 1], words[words.index("test") + 1 :]
        parsed = build_parser(name).parse_args(own)
        parsed.words = [word for word in command if word != "--"] if name == "test" else command
        # Whatever is started uses this checkout's engine, and none that another one left there.
        os.environ |= {
            checkouts.HARNESS_VARIABLE: str(paths.HARNESS_FOLDER),
            "UNFIX_PLANNER": sys.executable,
        }
        module = importlib.import_module(_get_module_name(parsed.command))
        code: int = module.run_command(parsed)
        return code
    except CommandLineError as error:
        print(f"{error.usage}\nunfix: {error}", file=sys.stderr)
        return error.exit_code
    except UnfixError as error:
        print(f"unfix: {error}", file=sys.stderr)
        options.report_notes(error)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # A disk that is full, a folder that cannot be written: the error names it.
        print(f"unfix: {error}", file=sys.stderr)
        return NotReadyError.exit_code
    except KeyboardInterrupt:
        print("unfix: stopped", file=sys.stderr)
        return 130
