"""Which stored rehearsal the audit ranks by."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.core.outcomes import RunStatus
from harness.store.database import Store
from harness.store.rehearse.table import RehearsalTable
from harness.store.rehearse.values import DeploymentResult, RehearsalRun
from reports.rehearse.view import describe_card, describe_run

NAMES = ["lite", "large"]


def make_run(run_id: str, started: str, **changes: object) -> RehearsalRun:
    deployments = [DeploymentResult(name, "m", "H200", 8) for name in NAMES]
    run = RehearsalRun(
        id=run_id,
        started=started,
        release="0.5.23",
        status=RunStatus.FINISHED,
        planned=NAMES,
        deployments=deployments,
    )
    return msgspec.structs.replace(run, **changes)


def test_it_is_the_newest_of_the_release_that_is_whole_and_without_toggles(tmp_path: Path) -> None:
    table = RehearsalTable(Store(tmp_path / "runs.sqlite"))
    for run in (
        make_run("old", "2026-01-01T00:00:00+00:00"),
        make_run("newest", "2026-01-02T00:00:00+00:00"),
        make_run("toggled", "2026-01-03T00:00:00+00:00", toggles=["-28788-stage2"]),
        make_run("other-release", "2026-01-04T00:00:00+00:00", release="0.5.18"),
        make_run("some", "2026-01-05T00:00:00+00:00", planned=["lite"]),
        make_run("stopped", "2026-01-06T00:00:00+00:00", status=RunStatus.STOPPED),
        make_run("unsearched", "2026-01-07T00:00:00+00:00", has_thresholds=False),
    ):
        table.begin(run)
        for number, result in enumerate(run.deployments):
            table.save_result(run.id, number, result)
        table.save(run)
    found = table.find_newest_whole("0.5.23", NAMES)
    assert found is not None
    assert (found.id, [deployment.name for deployment in found.deployments]) == ("newest", NAMES)
    assert table.find_newest_whole("0.5.20", NAMES) is None
    unsearched = table.find_newest_whole("0.5.23", NAMES, has_thresholds=False)
    assert unsearched is not None
    assert unsearched.id == "unsearched"


def test_it_is_none_in_which_a_deployment_was_cut_short_or_has_no_result(tmp_path: Path) -> None:
    table = RehearsalTable(Store(tmp_path / "runs.sqlite"))
    lite = DeploymentResult("lite", "m", "H200", 8)
    refused = DeploymentResult("large", "m", "H200", 8, refusal="ValueError: no", card_memory=9)
    late = DeploymentResult("large", "m", "H200", 8, refusal="it did not end within 600 s")
    for run in (
        make_run("refused", "2026-01-01T00:00:00+00:00", deployments=[lite, refused]),
        make_run("late", "2026-01-02T00:00:00+00:00", deployments=[lite, late]),
        make_run("missing", "2026-01-03T00:00:00+00:00", deployments=[lite]),
    ):
        table.begin(run)
        for number, result in enumerate(run.deployments):
            table.save_result(run.id, number, result)
        table.save(run)
    found = table.find_newest_whole("0.5.23", NAMES)
    assert found is not None
    assert found.id == "refused"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "H200"),
        (["--tp", "1"], "H200"),
        (["--tp-size=4", "--page-size", "64"], "4 x H200"),
        (["--tensor-parallel-size", "8"], "8 x H200"),
    ],
)
def test_a_report_names_the_cards_that_serve(arguments: list[str], words: str) -> None:
    """The host has eight, whatever the model takes of them."""
    assert describe_card(DeploymentResult("n", "m", "H200", 8, arguments)) == words


def test_a_run_that_launched_nothing_says_nothing_of_launches() -> None:
    assert "launch" not in describe_run(make_run("stopped", "2026-01-06T00:00:00+00:00"))
