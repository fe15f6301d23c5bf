"""A resumed run has the sources and the two commits of its beginning."""

from __future__ import annotations

import msgspec
import pytest
from checkouts import SglangCheckout
from small import make_faults
from toy_release import CODE, Mutate

from harness.core.outcomes import RunStatus, Verdict
from harness.store.mutate.values import FaultResult, MutationRun


def test_changed_sources_are_noticed(mutate: Mutate) -> None:
    mutate.add_interrupted_faults()
    run = mutate.kill_run()
    mutate.file.write_text(CODE.replace("ROOM = 7", "ROOM = 8"))
    done = mutate.call("--resume")
    assert done.returncode == 2
    assert f"the sources of SGLang 0.5.99 have changed since {run.id} was stopped" in done.stderr


def test_a_killed_run_goes_on_between_the_commits_of_its_diff(mutate: Mutate) -> None:
    checkout = SglangCheckout(mutate.package.parent, root="")
    first = checkout.commit({"srt/sizes.py": CODE.replace("topk", "k")})
    second = checkout.commit({"srt/sizes.py": CODE})
    ids = mutate.add_interrupted_faults()
    run = mutate.kill_run("--diff", "HEAD~1..HEAD")
    assert mutate.file.read_text() == CODE
    assert run.ids == ids
    assert run.settings["diff"] == "HEAD~1..HEAD"
    assert run.settings["between"] == f"{first}..{second}"
    (checkout.folder / "README").write_text("nothing of SGLang's\n")
    checkout.git("add", "-A")
    checkout.git("commit", "-q", "-m", "elsewhere")
    resumed = mutate.run("--resume")
    assert resumed["status"] == RunStatus.FINISHED
    assert [fated["fault"]["id"] for fated in resumed["fates"]] == ids
    assert resumed["problems"] == []
    assert not (mutate.root / ".unfix" / "runs" / run.id).exists()


@pytest.mark.parametrize(("done", "problems"), [("ab", []), ("ax", ["1 fault is not tried yet"])])
def test_what_is_not_looked_at_is_counted_by_its_id(done: str, problems: list[str]) -> None:
    """Another fault in its place is a different one."""
    (fault,) = make_faults("def f(n, m):\n    a = cdiv(n, m)\n", "round-down").faults
    run = MutationRun(
        "r", "t", "0.5.23", RunStatus.FINISHED, fault_count=2, planned=2, ids=["a", "b"]
    )
    for name in done:
        run.fates.append(FaultResult(msgspec.structs.replace(fault, id=name), Verdict.KILLED))
    assert run.problems == problems
