"""`unfix`: runs a command by name. A call imports only the module of its command."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from harness import __version__
from harness.cli import options
from harness.cli.command_parser import CommandParser
from harness.cli.commands import COMMANDS
from harness.core import paths, preloading
from harness.core.errors import CommandLineError, NotReadyError, UnfixError
from harness.core.files import describe_os_error
from harness.releases import checkouts


def build_parser(name: str | None) -> CommandParser:
    parser = CommandParser(
        prog="unfix",
        description="Revert a fix in a real SGLang and see which tests detect it.",
        epilog="Exit codes: 0 success, 1 a verdict failed, 2 the call is wrong, "
        "3 the machine or a release is not ready.",
    )
    parser.add_argument("--version", action="version", version=f"unfix {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS.values():
        sub = commands.add_parser(command.name, help=command.summary, description=command.summary)
        if command.name == name:
            importlib.import_module(command.module_name).add_arguments(sub)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    preloading.raise_gc_thresholds()
    if str(paths.project_folder()) not in sys.path:
        # `reports` lies beside the toggles; a project may have a package of that name, too.
        sys.path.insert(0, str(paths.project_folder()))
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
        module = importlib.import_module(COMMANDS[parsed.command].module_name)
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
