"""Does a review of a bad change say so, and is it quiet about a harmless one?

    python -m bench.run reviews CHECKOUT [NAME ...] [--record FILE] [-- OPTIONS of unfix pr]

CHECKOUT is a git repository of 0.5.23 with that version's files under `v0.5.23`. Each change of
`bench/cases/reviews.yaml` becomes a commit of a branch of its name there. A change was made by
reading SGLang's source and none of ours. A bad one that is green is a failure, and so is a harmless
one that is worse. Changes that are not named stay as FILE has them.
"""

from __future__ import annotations

import argparse
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bench.measuring import Result, read_record, run_unfix

CHANGES = Path(__file__).with_suffix(".yaml")
TAG = "v0.5.23"


class MadeChange(msgspec.Struct, forbid_unknown_fields=True):
    """A change of one file: its first occurrence of a text is replaced."""

    kind: str
    file: str  # from the package on
    old: str
    new: str
    harmless: bool = False
    adds: str = ""  # text that is added at the end of the next paragraph


class ReviewedChange(msgspec.Struct):
    """What a review said of a change."""

    name: str
    kind: str
    harmless: bool
    result: str
    headline: str
    found_by: list[str] = []  # items with evidence against it
    ran_by: int = 0  # items that ran its lines
    seconds: float = 0.0

    @property
    def is_as_it_should_be(self) -> bool:
        return self.result != ("worse" if self.harmless else "no difference")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkout", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--option", action="append", default=[], help="of unfix pr, such as -j1")


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    changes = msgspec.convert(yaml.safe_load(CHANGES.read_text()), dict[str, MadeChange])
    rows: dict[str, ReviewedChange] = {}
    if options.record and options.record.exists() and options.names:
        known = msgspec.convert(read_record(options.record)["changes"], list[ReviewedChange])
        rows = {one.name: one for one in known}
    for name in options.names or changes:
        commit_change(options.checkout, name, changes[name])
        rows[name] = review_change(options.checkout, name, changes[name], options.option)
        yield make_result([rows[name] for name in changes if name in rows])


def commit_change(checkout: Path, name: str, change: MadeChange) -> None:
    def run_git(*words: str) -> None:
        user = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", "-C", str(checkout), *user, *words], check=True, capture_output=True)

    run_git("checkout", "-q", "-B", name, TAG)
    file = checkout / "python" / "sglang" / change.file
    before, found, after = file.read_text().partition(change.old)
    if not found:
        raise SystemExit(f"{name}: {change.file} has no such text")
    body, gap, rest = after.partition("\n\n")
    added = f"\n\n{change.adds}" if change.adds else ""
    file.write_text(f"{before}{change.new}{body}{added}{gap}{rest}")
    run_git("commit", "-q", "-a", "-m", name)


def review_change(
    checkout: Path, name: str, change: MadeChange, options: list[str]
) -> ReviewedChange:
    run = run_unfix(["pr", str(checkout), f"{TAG}..{name}", "--json", *options])
    return read_review(run, name, change)


def read_review(run: dict[str, Any], name: str, change: MadeChange) -> ReviewedChange:
    ran = {item for one in run["functions"] for item in one["ran_by"]}
    guards = [f"guard {one['guard'].rpartition('::')[2]}" for one in run["guards"]
              if one["plain_before"] == "passed" and one["plain_after"] == "failed"]  # fmt: skip
    good, bad = ("holds", "known"), ("fails", "absent")
    rows = [f"zoo {one['architecture']}" for one in run["claims"]
            if (one["difference"] and not one["is_explained"])
            or (one["before"] in good and one["after"] in bad)]  # fmt: skip
    kernels = [f"launches of {one['kernel'].rpartition(':')[2]}" for one in run["kernels"]
               if one["answer"] in ("different", "reported")]  # fmt: skip
    found = list(dict.fromkeys([*guards, *kernels, *rows])) if run["result"] == "worse" else []
    return ReviewedChange(
        *(name, change.kind, change.harmless, run["result"], run["headline"]),
        found_by=found,
        ran_by=len(ran),
        seconds=run["seconds"],
    )


def make_result(rows: list[ReviewedChange]) -> Result:
    summary = {
        word: dict(Counter(one.result for one in rows if one.harmless is harmless))
        for word, harmless in (("bad", False), ("harmless", True))
    }
    return Result(
        {"changes": msgspec.to_builtins(rows), "counts": summary},
        is_good=all(one.is_as_it_should_be for one in rows),
        summary=summary,
    )
