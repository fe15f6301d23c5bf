"""A fuzzing run on a terminal, and the replays of its failures."""

from __future__ import annotations

from rich.console import Console

from harness.runs.fuzz.failure_replay import ReplayResult
from harness.store.fuzz.values import FuzzRun
from reports.fuzz import view
from reports.shared.terminal import print_ending, print_tables, to_plain_text


def print_run(run: FuzzRun, console: Console) -> None:
    print_tables([view.make_test_table(run), view.make_coverage_table(run)], console)
    for line in view.list_left_out(run):
        console.print(to_plain_text(line), soft_wrap=True)
    for failure in run.failures:
        head, lines = view.describe_failure(failure)
        console.print(to_plain_text(head, "yellow" if failure.known else "red"), soft_wrap=True)
        for line in lines:
            console.print(to_plain_text(f"    {line}"), soft_wrap=True)
    if stand_ins := view.describe_stand_ins(run):
        console.print(to_plain_text(stand_ins, "dim"), soft_wrap=True)
    sentence = f"seed {run.seed}; {view.describe_run(run)}"
    print_ending(console, run.green, sentence, run.problems, run.id)


def print_replays(replays: list[ReplayResult], console: Console) -> None:
    for replay in replays:
        verdict, style = ("fails", "red") if replay.fails else ("passes", "green")
        head = to_plain_text(f"{verdict} on SGLang {replay.release}: {replay.test}")
        head.stylize(style, 0, len(verdict))
        console.print(head, soft_wrap=True)
        for line in ([replay.headline] if replay.fails else []) + replay.arguments:
            console.print(to_plain_text(f"    {line}"), soft_wrap=True)
