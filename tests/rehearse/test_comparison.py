"""What changed for a deployment from one release to another."""

from __future__ import annotations

from harness.runs.rehearse.comparison import compare_deployments
from harness.store.rehearse.values import (
    DeploymentResult,
    RehearsedLaunch,
    RehearsedPhase,
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


def test_memory_that_grew_is_for_the_worse_and_a_small_difference_is_none() -> None:
    after = make_result()
    after.phases[0].peak += 1 << 20
    assert list_changes(make_result(), after) == []
    after.phases[0].peak += 1 << 30
    (change,) = compare_deployments(make_result(), after)
    assert (change.what, change.is_worse) == ("peak of decode", True)


def test_a_kernel_nearer_to_its_limit_is_for_the_worse() -> None:
    (change,) = compare_deployments(make_result(extent=1 << 28), make_result(extent=1 << 30))
    assert (change.what, change.before, change.after) == (
        "nearness of stage1",
        "12.5% of 2^31",
        "50.0% of 2^31",
    )
    assert change.is_worse
