"""What changed for a deployment from one release to another."""

from __future__ import annotations

from harness.runs.rehearse.comparison import compare_deployments
from harness.store.rehearse.values import (
    DeploymentResult,
    RehearsalFinding,
    RehearsedLaunch,
    RehearsedPhase,
    UncheckedCause,
    UncheckedOperator,
)

KERNEL = "sglang.kernels.decode:stage1"


def make_result(module: str = "decode", **launch: object) -> DeploymentResult:
    values = {"grid": (8, 8, 1), "arguments": {"scratch": "float32[64]", "BLOCK": "32"}, **launch}
    return DeploymentResult(
        *("llama", "llama", "H200", 8),
        memory={"pools": 100 << 30},
        phases=[RehearsedPhase("decode", "8 requests", peak=110 << 30)],
        launches=[RehearsedLaunch(f"sglang.{module}:stage1", "decode", **values)],  # type: ignore[arg-type]
        operators=[UncheckedOperator("jit:rope", 32)],
    )


def list_changes(before: DeploymentResult, after: DeploymentResult) -> list[tuple[str, str, str]]:
    return [(one.what, one.before, one.after) for one in compare_deployments(before, after)]


def test_a_kernel_that_moved_to_another_module_did_not_change() -> None:
    assert list_changes(make_result(), make_result("kernels.attention")) == []


def test_a_launch_with_another_grid_or_another_shape_is_a_change() -> None:
    after = make_result(grid=(8, 16, 1), arguments={"scratch": "float32[128]", "BLOCK": "32"})
    assert list_changes(make_result(), after) == [
        ("grid of stage1 of decode", "8 x 8 x 1", "8 x 16 x 1"),
        ("scratch of stage1 of decode", "float32[64]", "float32[128]"),
    ]


def test_more_launches_are_a_change_also_where_a_batch_launches_in_two_ways() -> None:
    before, after = make_result(count=32), make_result(count=32)
    after.launches.append(RehearsedLaunch(KERNEL, "decode", (1, 1, 1), {}))
    assert list_changes(before, after) == [("launches of stage1 of decode", "32", "33")]


def test_a_kernel_that_a_batch_launches_no_more_has_no_launches_there() -> None:
    """Another batch launches it still, so the kernel itself is not gone."""
    before, after = make_result(), make_result()
    before.phases.append(RehearsedPhase("chunk", ""))
    after.phases.append(RehearsedPhase("chunk", ""))
    before.launches.append(RehearsedLaunch(KERNEL, "chunk: draft", (1, 1, 1), {}, count=32))
    assert list_changes(before, after) == [("launches of stage1 of chunk: draft", "32", "0")]
    assert list_changes(after, before) == [("launches of stage1 of chunk: draft", "0", "32")]


def test_a_kernel_that_one_run_alone_launches_is_one_change() -> None:
    after = make_result()
    after.launches += [
        RehearsedLaunch("sglang.memory:copy", phase, (1, 1, 1), {}, count=count)
        for phase, count in (("decode", 2), ("chunk", 32))
    ]
    (change,) = list_changes(make_result(), after)
    assert change == ("kernel copy", "not launched", "34 launches: decode, chunk")
    assert list_changes(after, make_result()) == [(change[0], change[2], change[1])]


def test_the_launches_of_a_batch_of_one_run_alone_are_no_change() -> None:
    after = make_result()
    after.phases.append(RehearsedPhase("graph", ""))
    after.launches.append(RehearsedLaunch(KERNEL, "graph", (1, 1, 1), {}, count=32))
    assert list_changes(make_result(), after) == []


def test_an_operator_that_is_new_or_called_more_often_is_a_change() -> None:
    after = make_result()
    after.operators = [UncheckedOperator("jit:rope", 64), UncheckedOperator("jit:tree", 1)]
    changes = list_changes(make_result(), after)
    assert changes == [("calls of jit:rope", "32", "64"), ("calls of jit:tree", "0", "1")]


def test_calls_that_became_checked_are_no_fewer_calls() -> None:
    before, after = make_result(), make_result()
    before.operators = [UncheckedOperator("jit:rope", 32, cause=UncheckedCause.NO_TOOLKIT)]
    after.operators, before.calls, after.calls = [], {"jit:rope": 32}, {"jit:rope": 32}
    causes = ("not checked: no CUDA toolkit", "checked")
    assert list_changes(before, after) == [("checks of jit:rope", *causes)]
    before.calls = {}  # of an older record, whose calls are those that are not checked
    assert list_changes(before, after) == []
    before.calls = {"jit:rope": 32}
    after.operators = [UncheckedOperator("jit:rope", 2, "no jit.h", UncheckedCause.NOT_BUILT)]
    [change] = list_changes(before, after)
    assert change == ("checks of jit:rope", causes[0], "not checked: its module is not built")


def test_memory_that_grew_is_for_the_worse_and_a_small_difference_is_none() -> None:
    after = make_result()
    after.phases[0].peak += 1 << 20
    assert list_changes(make_result(), after) == []
    after.phases[0].peak += 1 << 30
    after.memory["pools"] //= 2
    changes = {one.what: one.is_worse for one in compare_deployments(make_result(), after)}
    assert changes == {"peak of decode": True, "memory of pools": False}


def test_a_kernel_nearer_to_its_limit_is_for_the_worse() -> None:
    (change,) = compare_deployments(make_result(extent=1 << 28), make_result(extent=1 << 30))
    assert (change.what, change.before, change.after) == (
        "nearness of stage1",
        "12.5% of 2^31",
        "50.0% of 2^31",
    )
    assert change.is_worse


def make_finding(kernel: str, text: str, headline: str, kind: str) -> RehearsalFinding:
    return RehearsalFinding(kind, "decode", kernel, headline, "a.py", 3, text)


def test_a_finding_in_a_kernel_that_moved_is_the_same_and_in_another_kernel_a_new_one() -> None:
    before, after = make_result(), make_result()
    before.findings = [make_finding("ops.gemm:expand", "s + row", "wraps at 5", "IntegerOverflow")]
    after.findings = [make_finding("ops.lora:expand", "s + row", "wraps at 6", "IntegerOverflow")]
    assert list_changes(before, after) == []
    after.findings[0].kernel = "ops.lora:shrink"
    assert {one.is_worse for one in compare_deployments(before, after)} == {True, False}


def test_another_tensor_that_is_the_first_not_to_fit_is_no_new_finding() -> None:
    before, after = make_result(), make_result()
    before.findings = [make_finding("", "k = empty(n)", "84.6 GB does not fit", "OutOfMemory")]
    after.findings = [make_finding("", "c = empty(m)", "9.4 GB does not fit", "OutOfMemory")]
    assert list_changes(before, after) == []
    after.findings[0].phase = "chunk"
    assert {one.is_worse for one in compare_deployments(before, after)} == {True, False}


def test_what_a_batch_launches_that_ended_early_is_not_compared() -> None:
    """Its kernels, launches and calls are not all that it makes."""
    before, after = make_result(count=4), make_result(count=61)
    before.phases[0].failure = "KeyError: 'rows'"
    after.launches.append(RehearsedLaunch("m:sum", "decode: verify", (1, 1, 1), {}))
    after.operators = [UncheckedOperator("jit:rope", 64)]
    assert list_changes(before, after) == [
        ("calls of CUDA operators", "not compared", "an error ended decode early"),
        ("batch decode", "KeyError: 'rows'", "runs"),
    ]
    for result in (before, after):
        result.phases.append(RehearsedPhase("chunk", ""))
    after.launches.append(RehearsedLaunch("m:cut", "chunk", (1, 1, 1), {}))
    assert ("kernel cut", "not launched", "1 launch: chunk") in list_changes(before, after)
