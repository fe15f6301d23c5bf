"""Calls of CUDA modules in a rehearsal, without SGLang and nvcc: their modules are no builds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from harness.core.errors import PatchError, UnfixError
from harness.patching import cuda_modules
from harness.patching.cuda_modules import PatchableModule
from harness.patching.cuda_sources import PATCHES, make_patched_source
from harness.runs.rehearse import cuda_launches
from harness.runs.rehearse.cuda_launches import CudaCalls
from harness.runs.rehearse.sampled_launches import SampledLauncher
from harness.sanitizer.cuda.host_calls import HostCall
from harness.sanitizer.device import memory
from harness.sanitizer.device.stand_ins import JitBuild
from harness.sanitizer.ptx.launch import CudaLaunch
from harness.sanitizer.violations.exceptions import LaunchRefused, UncheckableKernel
from harness.store.rehearse.values import DeploymentResult, UncheckedCause

COMPILER_ERROR = (
    "Failed to build JIT module m in /home/me/builds\nstdout:\nFAILED: m.o\n"
    "/home/me/sglang/kernels/m.cuh(3): error: identifier row is undefined\n"
)


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> SampledLauncher:
    monkeypatch.setattr(cuda_launches._prepared, "obstacle", None)
    launcher = SampledLauncher()
    launcher.is_recording, launcher.phase = True, "decode"
    return launcher


def call_module(
    calls: CudaCalls,
    function: Callable[..., Any],
    *args: Any,
    load: Callable[[], Any] | None = None,
    **options: Any,
) -> None:
    """Call an export f of a module m, whose own host code is this function."""
    build = JitBuild(("m",), "k", "f", load or (lambda: SimpleNamespace(f=function)))
    calls._observe("jit:m.f", build, args, options)


class LaunchedModule:
    """A module of PTX whose launches end as they are told to."""

    last_memory = SimpleNamespace(
        extents=np.zeros(1, int),
        lowered=SimpleNamespace(sites=[SimpleNamespace(source=SimpleNamespace(line_key=("f", 1)))]),
    )

    def __init__(self, calls: CudaCalls, ends: dict[str, Exception]) -> None:
        self._calls, self._ends = calls, ends
        self.ran: list[str] = []
        self.name = ""

    def launch(self, name: str) -> None:
        self.name = name
        call = HostCall(name, {}, (), file="x/sglang/a.cuh")
        sizes = (100, 1, 1), (32, 1, 1)
        launch = CudaLaunch(name, name, *sizes, 0, b"", (), lambda _: None)
        self._calls.run(self, launch, call)  # type: ignore[arg-type]

    def run(self, launch: CudaLaunch, checks: Any) -> list[Exception]:
        end = self._ends.get(self.name)
        if isinstance(end, UncheckableKernel):
            raise end
        self.ran.append(self.name)
        return [] if end is None else [end]


def collect_result(launcher: SampledLauncher) -> DeploymentResult:
    return DeploymentResult(
        *("d", "m", "H100", 1),
        launches=list(launcher.launches.values()),
        operators=launcher.cuda.list_unchecked(),
        calls=launcher.cuda.count_calls(),
    )


# What is one call


def test_calls_run_again_if_alignment_a_type_or_an_integer_differs(
    launcher: SampledLauncher,
) -> None:
    ran: list[Any] = []
    values = torch.zeros(64, dtype=torch.int32, device="cuda")
    for args in (
        (values[:8],),
        (values[4:12],),  # as aligned as the first
        (values[1:9],),
        (values[:8], torch.float16),
        (values[:8], torch.float32),
        (values[:8], 3),
        (values[:8], 4),
    ):
        call_module(launcher.cuda, lambda *arguments: ran.append(arguments), *args)
    assert [(len(arguments), arguments[0].data_ptr() % 16) for arguments in ran] == [
        *((1, 0), (1, 4), (2, 0), (2, 0), (2, 0), (2, 0))
    ]
    assert launcher.cuda.count_calls() == {"jit:m.f": 7}
    assert launcher.cuda.list_unchecked() == []


def test_a_call_by_keyword_is_not_taken_for_one_without(launcher: SampledLauncher) -> None:
    values = torch.zeros(8, device="cuda")
    for options in ({}, {"flag": True}, {}):
        call_module(launcher.cuda, lambda tensor: None, values, **options)
    [unchecked] = launcher.cuda.list_unchecked()
    assert (unchecked.calls, unchecked.cause) == (1, UncheckedCause.KEYWORDS)
    assert launcher.cuda.count_calls() == {"jit:m.f": 3}


# What a check leaves


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        *((4, torch.float32), (4, torch.bfloat16), (4, torch.bool), (4, torch.int64)),
        *((1 << 18, torch.float32), ((1 << 22) + 1, torch.int32)),
    ],
)
def test_a_check_leaves_values_as_they_were(
    launcher: SampledLauncher, size: int, dtype: torch.dtype
) -> None:
    values = torch.zeros(size, dtype=dtype, device="cuda")
    call_module(launcher.cuda, lambda tensor: memory.to_host(tensor).fill_(1), values)
    assert not memory.to_host(values).any()


def test_a_check_leaves_values_of_expanded_and_strided_tensors_and_nan(
    launcher: SampledLauncher,
) -> None:
    values = torch.full((4, 4), float("nan"), device="cuda")
    views = values[:1].expand(8, 4), values[:, 1]
    call_module(launcher.cuda, lambda *_: memory.to_host(values).fill_(1), *views)
    left = memory.to_host(values)
    assert left[0].isnan().all()
    assert left[:, 1].isnan().all()


# What does not run


def fail_with(error: Exception) -> Callable[[], Any]:
    def load() -> Any:
        raise error

    return load


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (COMPILER_ERROR, "m.cuh(3): error: identifier row is undefined"),
        ("Cannot find flashinfer package. Please", "Cannot find flashinfer package. Please"),
        ("aiter C++ headers not found under /opt/a/include;",) * 2,
    ],
)
def test_a_module_that_lacks_headers_is_listed_without_folders_and_loaded_once(
    launcher: SampledLauncher, message: str, reason: str
) -> None:
    loaded: list[int] = []

    def load() -> Any:
        loaded.append(1)
        raise RuntimeError(message)

    for size in (4, 8):
        call_module(launcher.cuda, print, torch.zeros(size, device="cuda"), load=load)
    [unchecked] = launcher.cuda.list_unchecked()
    assert (unchecked.calls, unchecked.cause) == (2, UncheckedCause.NOT_BUILT)
    assert unchecked.reason == reason.replace("/opt/a/", "")
    assert len(loaded) == 1


@pytest.mark.parametrize(
    "error",
    [
        UnfixError("toggle 123: error: stale"),
        RuntimeError("ninja: error: No space left on device"),
        FileNotFoundError("ninja"),
        AttributeError("load"),
    ],
)
def test_any_other_failure_of_a_module_ends_the_batch(
    launcher: SampledLauncher, error: Exception
) -> None:
    with pytest.raises(type(error)):
        call_module(launcher.cuda, print, torch.zeros(4, device="cuda"), load=fail_with(error))
    assert launcher.cuda.list_unchecked() == []


@pytest.fixture
def toggle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A toggle that patches a source of the module."""
    path = "sglang/kernels/m.cuh"
    monkeypatch.setattr(PatchableModule, "_list_included", lambda self: frozenset({path}))
    monkeypatch.setattr(PatchableModule, "_load", lambda self, sources: fail_with_words())
    monkeypatch.setattr(cuda_modules, "announce_preparation", lambda: pytest.MonkeyPatch.context())
    PATCHES.set(path, make_patched_source(path, "0", "row", [(0, 1, 1)], lambda slot: None))
    yield
    PATCHES.set(path, None)


def fail_with_words() -> Any:
    raise RuntimeError(COMPILER_ERROR)


@pytest.mark.usefixtures("toggle")
def test_a_toggle_whose_module_does_not_build_ends_the_batch(launcher: SampledLauncher) -> None:
    def load() -> Any:
        return PatchableModule(None, print, (), {})

    with pytest.raises(PatchError, match=r"jit:m.f is not built with its toggles: m.cuh.3.: error"):
        call_module(launcher.cuda, print, torch.zeros(4, device="cuda"), load=load)
    assert launcher.cuda.list_unchecked() == []


def test_a_package_that_nothing_builds_is_listed_by_its_calls(launcher: SampledLauncher) -> None:
    for _ in range(2):
        launcher.cuda._observe("deep_gemm.fp8_gemm", None, (), {})
    [unchecked] = launcher.cuda.list_unchecked()
    assert (unchecked.calls, unchecked.cause) == (2, UncheckedCause.NO_SOURCE)


@pytest.mark.parametrize(
    ("end", "followed"),
    [
        (UncheckableKernel("k2: not checked: wgmma"), "it follows k2, which is not checked"),
        (LaunchRefused("k2: a grid of 0"), "it follows k2, whose check ended at a violation"),
    ],
)
def test_what_follows_a_kernel_that_does_not_end_is_counted_as_not_checked(
    launcher: SampledLauncher, end: Exception, followed: str
) -> None:
    module = LaunchedModule(launcher.cuda, {"k2": end})

    def launch_three(values: torch.Tensor) -> None:
        for name in ("k1", "k2", "k3"):
            module.launch(name)

    for _ in range(10):
        call_module(launcher.cuda, launch_three, torch.zeros(4, device="cuda"))
    result = collect_result(launcher)
    assert module.ran == (["k1"] if isinstance(end, UncheckableKernel) else ["k1", "k2"])
    assert [(one.kernel[-2:], one.count) for one in result.launches] == [
        *(("k1", 10), ("k2", 10), ("k3", 10))
    ]
    assert result.launches[0].refusal == ""
    assert result.launches[2].refusal == followed
    is_refused = isinstance(end, UncheckableKernel)
    assert result.unchecked_launches == (20 if is_refused else 10)
    assert len(launcher.findings) == (0 if is_refused else 1)


def test_a_probe_checks_these_kernels_alone_and_counts_nothing(launcher: SampledLauncher) -> None:
    module = LaunchedModule(launcher.cuda, {})
    values = torch.zeros(4, device="cuda")
    call_module(launcher.cuda, lambda tensor: module.launch("k1"), values)
    kernel = next(iter(launcher.launches.values())).kernel
    for kernels, count in ((frozenset({kernel}), 2), (frozenset({"other"}), 2)):
        with launcher.probe(kernels):
            launcher.is_recording = True
            call_module(launcher.cuda, lambda tensor: module.launch("k1"), values)
        assert len(module.ran) == count
    assert launcher.cuda.count_calls() == {"jit:m.f": 1}
