"""Measures one of the figures of README and of the docs.

    python -m bench.run                                  lists the cases
    python -m bench.run CASE [--record FILE] [options]   measures one

A case is a module of `bench/cases`. Its docstring says what it measures, and in which Python it
runs. Its function `measure_case` yields results, each of which replaces the one before, and
`add_options` adds options. A record has the date, the machine, the versions of the packages,
unfix's commit and the command beside the result. The exit code is 1 if the result is not as it
should be.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

from bench.measuring import Result
from harness.cli import run_output
from harness.core import machine
from harness.core.errors import UnfixError
from harness.store.record_files import write_record

CASES = Path(__file__).parent / "cases"


def main(words: list[str]) -> int:
    if not words or words[0] not in list_cases():
        print("\n".join(f"{name:20} {describe_case(name)}" for name in list_cases()))
        return 0 if not words else 2
    case = importlib.import_module(f"bench.cases.{words[0]}")
    options = parse_options(case, words[1:])
    result = None
    for result in case.measure_case(options):
        write_result(result, options.record, words)
    if result is None:
        raise SystemExit(f"{words[0]} measured nothing")
    print(json.dumps(result.summary or result.values, indent=1, ensure_ascii=False))
    return 0 if result.is_good else 1


def list_cases() -> list[str]:
    files = {file.stem: file.read_text() for file in sorted(CASES.glob("*.py"))}
    return [name for name, text in files.items() if "\ndef measure_case(" in text]


def describe_case(name: str) -> str:
    """Return the first line of a case's docstring, without importing what the case needs."""
    return (CASES / f"{name}.py").read_text().partition("\n")[0].strip('"')


def parse_options(case: ModuleType, words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.run {case.__name__.rpartition('.')[2]}",
        description=case.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the result there")
    if hasattr(case, "add_options"):
        case.add_options(parser)
    return parser.parse_args(words)


def write_result(result: Result, file: Path | None, words: list[str]) -> None:
    if file is None:
        return
    whole = {
        "machine": machine.collect_machine_facts(result.python),
        "command": ["python", "-m", "bench.run", *words],
        **result.values,
    }
    text = json.dumps(whole, indent=1, ensure_ascii=False)
    write_record(file, run_output.hide_local_paths(text) + "\n")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UnfixError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
