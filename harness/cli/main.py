"""`unfix`: runs a command by name. A call imports only the module of its command."""

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
from harness.core.files import describe_os_error
from harness.releases import checkouts

# The summary of each command; `COMMAND_MODULES` has those whose module has another name.
COMMANDS = {
    "prove": "the proof: every guard with its fix applied, and with it reverted",
    "lifecycle": "every guard on every unpatched release: the lifetime of each bug",
    "bisect": "the fix that a symptom is about, over toggles, releases or commits",
    "fuzz": "suites for a budget of time: each failure shrunk, stored, replayable anywhere",
    "mutate": "mutation testing: faults of the known kinds, planted anywhere in SGLang",
    "audit": "static analysis of every kernel of a release: int32 overflow in addresses",
    "zoo": "every model architecture, tiny, on the virtual GPU, compared with transformers",
    "rehearse": "a deployment at full size without a GPU: its memory, launches, overflows",
    "kernels": "every kernel of a release: who launches it under check, and what would",
    "pr": "what a change of SGLang does: toggles, suites, audit, kernels, faults, zoo",
    "eval": "accuracy, end to end: a real server's answers compared with a baseline's",
    "matrix": "the configuration matrix: plan, run and shard combinations of options",
    "report": "stored runs: table, page, JUnit, Markdown, JSON",
    "list": "the registry, with each toggle's state on a release",
    "show": "one toggle: its story, its state, its patch as a diff",
    "adopt": "a toggle from a fix: a diff, a commit, or the changes between two releases",
    "drift": "every toggle on every release: fixed, buggy, absent or stale",
    "exec": "any command under toggles: unfix exec --revert ID -- COMMAND",
    "releases": "list, add and remove managed releases",
    "doctor": "what this machine has, what it lacks, and the stand-ins",
    "test": "this project's own tests",
}


COMMAND_MODULES = {"lifecycle": "prove.command"} | {
    name: f"{name}.command"
    for name in (
        *("adopt", "audit", "bisect", "eval", "fuzz", "kernels", "matrix", "mutate", "pr"),
        *("prove", "rehearse", "report", "test", "zoo"),
    )
}


def _get_module_name(command: str) -> str:
    return f"harness.cli.{COMMAND_MODULES.get(command, command)}"


def build_parser(name: str | None) -> CommandParser:
    parser = CommandParser(
        prog="unfix",
        description="Revert a fix in a real SGLang and see which tests detect it.",
        epilog="Exit codes: 0 success, 1 a verdict failed, 2 the call is wrong, "
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
    if str(paths.project_folder()) not in sys.path:
        sys.path.append(str(paths.project_folder()))  # `reports` lies beside the toggles
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = next((word for word in words if not word.startswith("-")), None)
    try:
        # The words behind `--` belong to another program; `test` passes all of its words to pytest.
        own, passthrough = words, []
        if name == "test" and not {"-h", "--help"} & set(words):
            start = words.index("test") + 1
            own, passthrough = words[:start], [word for word in words[start:] if word != "--"]
        elif "--" in words:
            start = words.index("--")
            own, passthrough = words[:start], words[start + 1 :]
        parsed = build_parser(name).parse_args(own)
        parsed.words = passthrough
        # Child processes use the engine of this checkout, whatever the environment names.
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
        # The reader of our output is gone, as with `| head`: a report would be in vain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # A full disk, a read-only folder.
        print(f"unfix: {describe_os_error(error)}", file=sys.stderr)
        return NotReadyError.exit_code
    except KeyboardInterrupt:
        print("unfix: stopped", file=sys.stderr)
        return 130
