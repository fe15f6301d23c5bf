"""A run that goes on is about what it began with: the same sources, the same two commits."""

from __future__ import annotations

import json
import subprocess

import msgspec
import pytest
from checkouts import Checkout
from small import made
from test_mutating import all_gone, wait_for_fates
from toy_release import CODE, HANGS, Mutate

from harness.store.database import Store
from harness.store.mutate.values import FaultOutcome, FaultResult, MutationRun


def begin(mutate: Mutate, *words: str) -> MutationRun:
    """A run that was killed at its second fault of three."""
    mutate.fault("width", "rows * topk", "rows")
    mutate.fault("width", "return rows", HANGS + "return rows")
    mutate.patience = (1.0, (3.0, 2.0))
    mutate.fault("total", "range(count)", "range(count - 1)")
    running = subprocess.Popen(
        mutate.command(*words),
        cwd=mutate.package.parent,
        env=mutate.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for_fates(mutate, 1)
    running.kill()
    running.communicate()
    assert all_gone(mutate)
    store = Store(mutate.root / ".unfix" / "runs.sqlite")
    newest = store.mutate.load_newest()
    assert newest is not None
    assert len(newest.ids) == newest.planned == 3
    return newest


def test_changed_sources_are_noticed(mutate: Mutate) -> None:
    run = begin(mutate)
    mutate.file.write_text(CODE.replace("ROOM = 7", "ROOM = 8"))
    done = mutate.call("--resume")
    assert done.returncode == 2
    assert f"the sources of SGLang 0.5.99 have changed since {run.id} was stopped" in done.stderr


def test_a_diff_goes_on_between_the_commits_that_it_was(mutate: Mutate) -> None:
    checkout = Checkout(mutate.package.parent, root="")
    first = checkout.commit({"srt/sizes.py": CODE.replace("topk", "k")})
    second = checkout.commit({"srt/sizes.py": CODE})
    run = begin(mutate, "--diff", "HEAD~1..HEAD")
    assert run.settings["diff"] == "HEAD~1..HEAD"
    assert run.settings["between"] == f"{first}..{second}"
    (checkout.folder / "README").write_text("nothing of SGLang's\n")
    checkout.git("add", "-A")
    checkout.git("commit", "-q", "-m", "elsewhere")
    done = mutate.call("--resume", "--json")
    again = json.loads(done.stdout)
    assert again["status"] == "finished"
    assert [fated["fault"]["id"] for fated in again["fates"]] == run.ids
    assert again["problems"] == []


@pytest.mark.parametrize(("done", "told"), [("ab", []), ("ax", ["1 fault is not tried yet"])])
def test_what_is_not_looked_at_is_counted_by_its_id(done: str, told: list[str]) -> None:
    """Another fault in its place is not it."""
    (fault,) = made("def f(n, m):\n    a = cdiv(n, m)\n", "round-down").faults
    run = MutationRun("r", "t", "0.5.23", "finished", made=2, planned=2, ids=["a", "b"])
    for name in done:
        run.fates.append(FaultResult(msgspec.structs.replace(fault, id=name), FaultOutcome.KILLED))
    assert run.problems == told
