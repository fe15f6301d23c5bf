"""Checked kernels of TorchInductor: their launches and their reports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import inductor_on_cpu
import pytest
import torch
import triton
import triton.language as tl
from cpu_runs import find_violations, run_on_cpu  # noqa: F401
from torch._inductor.runtime import triton_heuristics as heuristics
from torch._inductor.runtime.hints import DeviceProperties

from harness.sanitizer.gpu import inductor
from harness.sanitizer.gpu.checked_launches import CheckedLauncher
from harness.sanitizer.violations.exceptions import KernelAssertion, OutOfBounds

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning"
)  # its own

ROWS, WIDTH = 5, 4


# As Inductor writes them; a row has `ks0` columns.
@triton.jit
def triton_poi_fused_index_put_0(in_ptr0, out_ptr0, ks0, xnumel, XBLOCK: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tmp0 = tl.load(in_ptr0 + (xindex), xmask)
    tl.device_assert((tmp0 >= 0) & (tmp0 < 20) | ~(xmask), "index out of bounds: 0 <= tmp0 < 20")
    tl.store(out_ptr0 + (tmp0 + ks0 * xindex), 1.0, xmask)


SIGNATURE = {
    "in_ptr0": "*i64",
    "out_ptr0": "*fp32",
    "ks0": "i64",
    "xnumel": "i32",
    "XBLOCK": "constexpr",
}


def make_tuner(**inductor_meta: Any) -> Any:
    """Return a tuner as Inductor has it after compiling, with one stand-in launcher."""
    props = DeviceProperties("cuda", 0, 132, 90, warp_size=32, max_threads_per_block=1024)
    meta = {"signature": SIGNATURE, "device": props, "constants": {}, "configs": [{}]}
    config = triton.Config({"XBLOCK": 8}, num_warps=2, num_stages=1)
    tuner = heuristics.CachingAutotuner(
        triton_poi_fused_index_put_0,
        triton_meta=meta,
        configs=[config],
        save_cache_hook=None,
        mutated_arg_names=["out_ptr0"],
        optimize_mem=True,
        heuristic_type=heuristics.HeuristicType.POINTWISE,
        inductor_meta={"grid_type": "Grid1D", "kernel_name": "its_name", **inductor_meta},
    )
    launched = []

    def launcher(*args: Any, stream: Any) -> None:
        launched.append(args)

    launcher.config, launcher.store_cubin, launcher.cache_hash = config, False, ""  # type: ignore[attr-defined]
    tuner.launchers, tuner.launched = [launcher], launched
    return tuner


def make_arguments(places: list[int]) -> tuple[Any, ...]:
    return torch.tensor(places), torch.zeros(ROWS * WIDTH), WIDTH, len(places)


def test_a_launch_of_inductors_is_one_of_tritons() -> None:
    tuner, args = make_tuner(), make_arguments([0] * 9)
    launch = inductor.to_triton_launch(tuner, args, {})
    assert launch.grid == (2, 1, 1)
    own = {"in_ptr0": args[0], "out_ptr0": args[1], "ks0": WIDTH, "xnumel": 9}
    assert {name: launch.options[name] for name in own} == own
    chosen = {"XBLOCK": 8, "num_warps": 2, "num_stages": 1, "debug": True}
    assert {name: launch.options[name] for name in chosen} == chosen
    kinds = {parameter.name: parameter.annotation_type for parameter in launch.kernel.params}
    assert (kinds["ks0"], kinds["xnumel"], kinds["in_ptr0"]) == ("i64", "i32", "")
    assert (
        inductor.to_triton_launch(tuner, args, {}).kernel is launch.kernel
    )  # and is compiled once


def find_launch_violations(tuner: Any, args: tuple[Any, ...]) -> list[Any]:
    """Run a launch on this machine; return its violations."""
    launch = inductor.to_triton_launch(tuner, args, {})
    own = {name: value for name, value in launch.options.items() if name in launch.kernel.arg_names}
    return find_violations(launch.kernel, grid=launch.grid, debug=launch.options["debug"], **own)


def check_launch(places: list[int]) -> list[Any]:
    return find_launch_violations(make_tuner(), make_arguments(places))


def test_an_access_out_of_bounds_is_reported_with_its_line() -> None:
    assert check_launch([0, 1, 2, 3, 3]) == []
    [found] = check_launch([0, 1, 2, 3, 4])
    assert isinstance(found, OutOfBounds)
    assert "wrote 4 bytes past the end of out_ptr0" in found.headline
    assert found.location is not None
    assert found.location.text == "tl.store(out_ptr0 + (tmp0 + ks0 * xindex), 1.0, xmask)"


def test_its_own_assertion_is_reported_and_so_is_the_access_behind_it() -> None:
    kinds = {type(violation): violation for violation in check_launch([0, 1, 2, 3, 20])}
    assert set(kinds) == {KernelAssertion, OutOfBounds}
    words = "its own assertion fails: index out of bounds: 0 <= tmp0 < 20"
    assert words in kinds[KernelAssertion].headline


def put_rows(pool: Any, rows: Any, values: Any) -> Any:
    pool[rows] = values * 2
    return pool


NUMBERS = torch.Generator().manual_seed(0)
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "rows put": (put_rows, (torch.zeros(8, 40), torch.tensor([1, 7, -2]), torch.ones(3, 40))),
    "rows taken": (
        lambda table, rows: table[rows] + 1,
        (torch.rand(9, 40, generator=NUMBERS), torch.tensor([8, 0])),
    ),
    "a softmax": (lambda x: torch.softmax(x, -1), (torch.rand(5, 70, generator=NUMBERS),)),
    "a norm": (
        lambda x, w: x / (x.pow(2).mean(-1, keepdim=True) + 1) * w,
        (torch.rand(6, 300, generator=NUMBERS), torch.rand(300, generator=NUMBERS)),
    ),
    "a sum": (lambda x: x.sum() + 1, (torch.rand(40, 7, generator=NUMBERS),)),
    "turned": (
        lambda x: x.transpose(0, 1).contiguous().to(torch.float16),
        (torch.rand(33, 20, generator=NUMBERS),),
    ),
    "a mask": (lambda x: torch.where((x >= 3) & (x < 9), x - 3, 0), (torch.arange(11),)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_inductor_writes_does_with_checks_what_it_does_without(
    name: str, dynamic: bool, tmp_path: Path
) -> None:
    function, args = FUNCTIONS[name]
    expected = function(*(tensor.clone() for tensor in args))
    found: list[Any] = []
    with inductor_on_cpu.observe_launches(
        tmp_path, lambda *launch: found.append(find_launch_violations(*launch))
    ):
        result = torch.compile(function, dynamic=dynamic)(*(tensor.clone() for tensor in args))
    assert found
    assert found == [[]] * len(found)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("row", [9, -9])
def test_a_missing_row_is_reported_twice(row: int, tmp_path: Path) -> None:
    found: list[Any] = []
    called: list[str] = []

    def check_and_note(tuner: Any, args: tuple[Any, ...]) -> None:
        called.append(inductor.find_compiled_function())
        found.extend(find_launch_violations(tuner, args))

    pool, values = torch.zeros(8, 40), torch.ones(2, 40)
    with inductor_on_cpu.observe_launches(tmp_path, check_and_note):
        torch.compile(put_rows, dynamic=True)(pool, torch.tensor([3, row]), values)
    assert {type(violation) for violation in found} == {KernelAssertion, OutOfBounds}
    assert all("triton_poi_fused_index_put_mul" in violation.headline for violation in found)
    [place] = set(called)
    assert place.startswith("put_rows (tests/sanitizer/compiled/test_inductor.py:")
    assert pool[3].eq(2).all()
    assert pool.sum() == 80


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A launcher without its native half: it records its arguments."""
    reached: list[Any] = []
    monkeypatch.setattr(
        CheckedLauncher,
        "_run_checked",
        lambda self, kernel, args, grid, options, plain, whole, whence: reached.append(
            (grid, whole)
        ),
    )
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    checked_launcher: Any = CheckedLauncher()
    checked_launcher.start_inductor()
    checked_launcher.reached = reached
    yield checked_launcher
    inductor.replace_inductor_run(checked_launcher._original_inductor_run)


def test_while_a_launcher_is_there_inductors_launches_are_its_own(launcher: Any) -> None:
    tuner = make_tuner()
    tuner.run(*make_arguments([0] * 9), stream=0)
    assert launcher.reached == [((2, 1, 1), True)]
    assert tuner.launched == []
    tuner.run(*make_arguments([0]), stream=0, benchmark_run=True)  # of a copy, for timing
    assert len(tuner.launched) == 1
    assert list(launcher.summaries) == []


def test_no_configuration_is_tuned_without_checks(launcher: Any) -> None:
    tuner = make_tuner(coordinate_descent_tuning=True)
    tuner.launchers = [*tuner.launchers, *make_tuner().launchers]
    tuner.run(*make_arguments([0] * 9), stream=0)
    assert launcher.reached == [((2, 1, 1), True)]
    assert tuner.launched == []
    assert len(tuner.launchers) == 2


def test_an_unsupported_launch_runs_unchecked_and_is_listed(launcher: Any) -> None:
    tuner = make_tuner()
    tuner.fn = SimpleNamespace(fn=None, __name__="gone")
    with pytest.raises(TypeError):  # the stand-in rejects that name: Inductor's own run was called
        tuner.run(*make_arguments([0]), stream=0, more=1)
    tuner.run(*make_arguments([0]), stream=0)
    assert launcher.reached == []
    assert len(tuner.launched) == 1
    [summary] = launcher.summaries
    assert (summary.name, summary.launches, summary.checked_launches) == ("its_name", 2, 0)
    assert summary.refusals == {
        "Inductor passes arguments by name": 1,
        "Inductor no longer has its source": 1,
    }
    other = make_tuner(kernel_name="of another Inductor", grid_type="GridOfTomorrow")
    other.run(*make_arguments([0]), stream=0)
    assert len(other.launched) == 1
    assert [*launcher.summaries][1].refusals == {"KeyError: 'GridOfTomorrow'": 1}


def test_a_launcher_that_stops_leaves_inductor_as_it_was() -> None:
    before = heuristics.CachingAutotuner.run
    checked_launcher = CheckedLauncher()
    checked_launcher.start_inductor()
    assert heuristics.CachingAutotuner.run is not before
    checked_launcher.start_inductor()  # once is enough
    inductor.replace_inductor_run(checked_launcher._original_inductor_run)
    assert heuristics.CachingAutotuner.run is before


def test_where_inductor_is_not_loaded_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, inductor.INDUCTOR_MODULE)
    assert inductor.replace_inductor_run(lambda: None) is None
