"""What a launch is to its program: Triton's compiled kernel, hooks, options, prints, assertions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
from checks import check_on_cpu, launch_checked, make_numbers
from launches_to_check import (
    assert_small,
    double_numbers,
    double_tuned,
    multiply_tiles,
    print_numbers,
    store_count_of,
    store_thread_count,
)
from operations_to_check import assert_statically, use_missing_name
from triton import knobs
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.language.extra.cuda import num_threads
from triton.runtime.errors import OutOfResources

from harness import checking
from harness.checking import KernelAssertion, OutOfBounds, UncheckableKernel
from harness.sanitizer.violations.exceptions import LaunchRefused


def test_a_launch_returns_tritons_compiled_kernel() -> None:
    with check_on_cpu():
        compiled = double_numbers[(2,)](make_numbers(16), 16, BLOCK=8, num_warps=2)
        assert compiled.name == "double_numbers"
        assert compiled.metadata.num_warps == 2
        assert ".target sm_" in compiled.asm["ptx"]
        assert "tt.store" in compiled.asm["ttir"]
        assert 0 < compiled.n_regs < 256


def test_the_result_launches_the_same_kernel_again_under_check() -> None:
    x = make_numbers(16)
    with check_on_cpu() as check:
        compiled = double_numbers[(2,)](x, 16, BLOCK=8)
        compiled[(2, 1, 1)](x, 16, 8)
        assert x.tolist() == [4 * number for number in range(16)]
        assert [launch.grid for launch in check.launches] == [(2, 1, 1)] * 2
        compiled[(2, 1, 1)](x, 16)  # its constants are those that it was compiled with
        compiled[(2, 1, 1)](x, 16, 1024)
        assert x.tolist() == [16 * number for number in range(16)]
    with pytest.raises(OutOfBounds), check_on_cpu():
        compiled[(3, 1, 1)](x, 24, 8)


def test_warmup_compiles_and_launches_nothing() -> None:
    with check_on_cpu() as check:
        compiled = double_numbers.warmup(torch.int32, 16, BLOCK=8, grid=(1,))
        assert "ptx" in compiled.asm
        assert not check.launches
        x = make_numbers(16)
        compiled[(2, 1, 1)](x, 16, 8)
        assert x.tolist() == [2 * number for number in range(16)]


def test_hooks_of_loading_have_no_kernel_compiled() -> None:
    """SGLang's servers set one, and compiling takes a second for each kernel."""
    loaded: list[str] = []

    def load(module: Any, function: Any, name: str, group: Any, key: str) -> None:
        loaded.append(name)

    runtime = knobs.runtime
    hooks = (runtime.kernel_load_start_hook, runtime.kernel_load_end_hook)
    for hook in hooks:
        hook.add(load)
    try:
        with check_on_cpu():
            double_numbers[(2,)](make_numbers(16), 16, BLOCK=8, num_stages=9)
    finally:
        for hook in hooks:
            hook.remove(load)
    assert not loaded


def test_a_launch_with_another_ir_is_refused() -> None:
    with (
        check_on_cpu(),
        pytest.raises(UncheckableKernel, match=r"ir_override: other\.ttir would run"),
    ):
        double_numbers[(2,)](make_numbers(16), 16, BLOCK=8, ir_override="other.ttir")


def test_in_debug_mode_an_overflow_is_tritons_assertion() -> None:
    numbers = torch.full((8,), 2**30, dtype=torch.int32)
    with pytest.raises(KernelAssertion, match="int32 overflow detected for operation mul"):
        launch_checked(double_numbers, (1,), numbers, 8, BLOCK=8, debug=True)
    launch_checked(double_numbers, (1,), numbers, 8, BLOCK=8)
    assert numbers.tolist() == [-(2**31)] * 8
    launch_checked(double_numbers, (1,), numbers, 8, BLOCK=8, debug=True, sanitize_overflow=False)
    assert numbers.tolist() == [0] * 8


def test_launch_hooks_get_what_the_kernel_says_of_its_launch() -> None:
    seen: list[tuple[str, Any]] = []

    def enter(metadata: Any) -> None:
        seen.append(("enter", metadata.get()))

    def leave(metadata: Any) -> None:
        seen.append(("exit", metadata.get()["name"]))

    knobs.runtime.launch_enter_hook.add(enter)
    knobs.runtime.launch_exit_hook.add(leave)
    try:
        with check_on_cpu():
            double_numbers[(2,)](make_numbers(16), 16, BLOCK=8)
    finally:
        knobs.runtime.launch_enter_hook.remove(enter)
        knobs.runtime.launch_exit_hook.remove(leave)
    (_, entered), left = seen
    assert left == ("exit", "double_numbers")
    assert (entered["name"], entered["rows"], entered["grid"]) == ("double_numbers", 16, (2,))


class _Pointer:
    """What Triton takes for a pointer: an object with an address and a type."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype, self._tensor = tensor.dtype, tensor

    def data_ptr(self) -> int:
        return int(self._tensor.data_ptr())


def test_an_object_with_an_address_is_a_pointer_into_the_memory_there() -> None:
    x = make_numbers(16)
    with check_on_cpu() as check:
        check.register_tensor(x, "x")
        double_numbers[(2,)](_Pointer(x), 16, BLOCK=8)
        assert x.tolist() == [2 * number for number in range(16)]
        with pytest.raises(OutOfBounds):
            double_numbers[(3,)](_Pointer(x), 24, BLOCK=8)
        check.discard_errors()


@pytest.mark.parametrize("warps", [8, 4])
def test_a_kernel_has_the_threads_that_its_launch_asks_for(warps: int) -> None:
    x = make_numbers(1)
    with check_on_cpu():
        store_thread_count[(1,)](x, num_warps=warps)
        store_count_of[(1,)](y := make_numbers(1), num_threads, num_warps=warps)
    assert x.tolist() == y.tolist() == [32 * warps]


def test_a_launch_may_ask_for_what_its_card_has() -> None:
    x = make_numbers(16)
    with check_on_cpu():
        double_numbers[(2,)](x, 16, BLOCK=8, num_ctas=2)  # from sm_90 on
    assert x.tolist() == [2 * number for number in range(16)]


def test_an_option_that_triton_does_not_know_is_its_error() -> None:
    with pytest.raises(KeyError, match="Keyword argument WARPS"), check_on_cpu():
        store_thread_count[(1,)](make_numbers(1), WARPS=8)


def test_a_tuned_kernel_is_benchmarked_with_quantiles_and_the_first_configuration_wins() -> None:
    asked: list[Any] = []

    def prune(configs: Any, named: Any, **options: Any) -> Any:
        asked.append(named["count"])
        return configs

    tuned = triton.autotune(double_tuned.configs, key=[], prune_configs_by={
        "early_config_prune": prune, "perf_model": lambda **options: -options["BLOCK"], "top_k": 2,
    })(double_tuned.fn)  # fmt: skip
    with check_on_cpu():
        tuned[lambda meta: (16 // meta["BLOCK"],)](make_numbers(16), 16)
    assert asked == [16]
    assert tuned.best_config.kwargs == {"BLOCK": 16}
    assert {tuple(times) for times in tuned.configs_timings.values()} == {(1.0, 1.0, 1.0)}


def test_prints_of_a_kernel_are_tritons(capfd: pytest.CaptureFixture[str]) -> None:
    with check_on_cpu():
        print_numbers[(1,)](make_numbers(16), BLOCK=16)
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 17
    assert lines[3] == "pid (0, 0, 0) idx ( 3) value: 3"
    assert lines[16] == "pid (0, 0, 0) idx () of: 24.000000"


def test_an_assertion_that_a_card_skips_says_so() -> None:
    with pytest.raises(KernelAssertion, match="too large") as caught, check_on_cpu():
        assert_small[(1,)](make_numbers(9)[8:])
    assert "a card skips it: neither debug=True nor TRITON_DEBUG=1" in str(caught.value)
    with pytest.raises(KernelAssertion, match="too large") as caught, check_on_cpu():
        assert_small[(1,)](make_numbers(9)[8:], debug=True)
    assert "a card skips it" not in str(caught.value)


def test_an_error_of_tritons_compiler_stays_its_own_and_counts_no_launch() -> None:
    with check_on_cpu() as check:
        with pytest.raises(CompileTimeAssertionFailure, match="N is too small"):
            assert_statically[(1,)](make_numbers(1), N=8)
        with pytest.raises(CompilationError, match="nothing_of_this_name is not defined"):
            use_missing_name[(1,)](make_numbers(1))
        assert not check.launches


@pytest.mark.parametrize(
    ("kind", "grid", "options", "words"),
    [
        (
            RuntimeError,
            (1, 70_000),
            {},
            r"Triton Error \[CUDA\]: invalid argument: a grid of \(1, 70000, 1\): at most",
        ),
        (
            OutOfResources,
            (1,),
            {"num_warps": 64},
            "out of resource: threads, Required: 2048, Hardware limit: 1024",
        ),
        (AssertionError, (1,), {"num_warps": 5}, "num_warps must be a power of 2"),
        (
            RuntimeError,
            (600,),
            {"num_warps": 32, "launch_cooperative_grid": True},
            "600 programs in a cooperative launch, and 264 run at once at most",
        ),
    ],
)
def test_what_a_card_refuses_is_the_error_of_tritons_with_its_numbers(
    kind: type[Exception], grid: tuple[int, ...], options: dict[str, int], words: str
) -> None:
    with pytest.raises(kind, match=words), check_on_cpu():
        double_numbers[grid](make_numbers(16), 16, BLOCK=8, **options)
    with check_on_cpu() as check:
        with pytest.raises(kind):  # a program that expects it goes on
            double_numbers[grid](make_numbers(16), 16, BLOCK=8, **options)
        double_numbers[(2,)](make_numbers(16), 16, BLOCK=8)
        assert [launch.grid for launch in check.launches] == [(2, 1, 1)]


def test_a_tile_that_no_card_has_shared_memory_for_is_refused() -> None:
    x, y = (torch.ones(64, 1024, dtype=torch.bfloat16), torch.ones(1024, 128, dtype=torch.bfloat16))
    out = torch.zeros(64, 128)
    message = "out of resource: shared memory, Required: 393216, Hardware limit: 232448, of a block"
    with pytest.raises(LaunchRefused, match=message), check_on_cpu():
        multiply_tiles[(1,)](x, y, out, K=1024, num_warps=16)
    with check_on_cpu():
        multiply_tiles[(1,)](x, y, out, K=64)


def test_a_pointer_reaches_its_storage_where_the_session_says_so() -> None:
    storage = torch.arange(16, dtype=torch.int32)
    with pytest.raises(OutOfBounds, match="which is larger: `bounds=storage` allows it"):
        launch_checked(double_numbers, (2,), storage[:12], 16, BLOCK=8)
    storage = torch.arange(16, dtype=torch.int32)
    with checking.checked("cpu", bounds="storage"):
        double_numbers[(2,)](storage[:12], 16, BLOCK=8)
    assert storage.tolist() == [2 * number for number in range(16)]
    with pytest.raises(OutOfBounds), checking.checked("cpu", bounds="storage"):
        double_numbers[(3,)](storage[:12], 24, BLOCK=8)
