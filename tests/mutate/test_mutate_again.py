"""The commands that a report suggests for a survivor: they have the run's settings."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

import pytest
from small import make_faults

from harness.cli.mutate import command
from harness.core.outcomes import Verdict
from harness.runs.mutate.request import RESUMED_SETTINGS
from harness.store.mutate.values import FaultResult, MutationRun

(FAULT,) = make_faults("def f(n, m):\n    a = cdiv(n, m)\n", "round-down").faults
HEAD = "unfix mutate m:f --release"


def make_commands(**settings: Any) -> tuple[str, str]:
    """Return the two commands of a run with these settings."""
    from reports.mutate import view

    run = MutationRun("r", "t", "0.5.99", settings=settings)
    fated = FaultResult(FAULT, Verdict.SURVIVED)
    return view.make_replay_command(run, fated), view.make_keep_command(run, fated)


@pytest.mark.parametrize(
    ("settings", "again", "keep"),
    [
        ({}, "0.5.99", "0.5.99"),
        ({"release": "current"}, "current", "current"),
        ({"release": "0.5.23", "operators": "round-down,off-by-one"},
         "0.5.23 --operators round-down,off-by-one", "0.5.23 --operators round-down,off-by-one"),
        (
            {"suite": ["kv_indices", "my suites/test_a.py"], "profile": "smoke", "examples": 1},
            "0.5.99 --suite kv_indices --suite 'my suites/test_a.py' --profile smoke --examples 1",
            "0.5.99",
        ),
        ({"toggles": ["/further"], "diff": "a..b", "limit": 40, "seed": 1, "fault": []},
         "0.5.99 --toggles /further", "0.5.99 --toggles /further"),
    ],
)  # fmt: skip
def test_a_fault_is_asked_for_again_as_it_was(
    settings: dict[str, Any], again: str, keep: str
) -> None:
    assert make_commands(**settings) == (
        f"{HEAD} {again} --fault {FAULT.id}",
        f"{HEAD} {keep} --keep {FAULT.id}",
    )


def test_what_is_left_out_is_what_a_call_means_anyway() -> None:
    from reports.mutate import view

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    arguments = parser.parse_args(shlex.split(make_commands(release="0.5.23")[0])[2:])
    usual = {name: getattr(arguments, name) for name in view.DEFAULT_SETTINGS}
    assert usual == view.DEFAULT_SETTINGS
    assert (arguments.release, arguments.fault, arguments.targets) == (
        "0.5.23",
        [FAULT.id],
        ["m:f"],
    )
    assert set(view.DEFAULT_SETTINGS) <= {*RESUMED_SETTINGS, "toggles"}
