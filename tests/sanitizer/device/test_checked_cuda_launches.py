"""Launches of CUDA kernels with checks, on the virtual GPU: the executor runs what a card would."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from harness.sanitizer.check.gpu_facts import violation_from_record
from harness.sanitizer.cuda import checked_launches, checked_modules
from harness.sanitizer.cuda.checked_launches import CheckedCudaLaunches
from harness.sanitizer.cuda.checked_toolchain import CheckedToolkit
from harness.sanitizer.gpu import ALL_CHECKS, DEFAULT_CHECKS, empty_memory
from harness.sanitizer.gpu.allocator_blocks import AllocatorBlocks
from harness.sanitizer.gpu.kernel_summaries import NO_SHADOW_MEMORY, KernelSummaries
from harness.sanitizer.gpu.process_reports import PROCESS_REPORTS
from harness.sanitizer.gpu.shadow_entries import SLOTS_PER_TABLE, ShadowTable
from harness.sanitizer.ptx.executor import load_module
from harness.sanitizer.ptx.instrumentation import InstrumentedPtx, instrument_module
from harness.sanitizer.ptx.instrumented_kernel import MARKER, write_kernels
from harness.sanitizer.ptx.launch import Allocation, CudaLaunch, ExecutorChecks
from harness.sanitizer.violations.exceptions import (
    DataRace,
    OutOfBounds,
    UninitializedMemory,
    Violation,
)

_FILL = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry _Z4fillPii(.param .u64 out, .param .u32 count)
{
.reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [out];
ld.param.u32 %r2, [count];
mov.u32 %r1, %tid.x;
setp.ge.u32 %p, %r1, %r2;
@%p bra END;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd3, %rd1, %rd2;
st.global.u32 [%rd3], %r1;
END: ret;
}
"""
_ENTRY, _THREADS, _STREAM = b"_Z4fillPii", 32, 77


class CardOnCpu:
    """Launches as a checked module makes them; the kernels run on this CPU."""

    def __init__(
        self,
        folder: Path,
        text: str = _FILL,
        checks: tuple[str, ...] = DEFAULT_CHECKS,
        number_launch: Callable[[int], tuple[int, int] | None] | None = None,
    ) -> None:
        self.module: InstrumentedPtx = instrument_module(text, checks)
        self.grid = (1, 1, 1)
        toolkit = CheckedToolkit(folder)
        write_kernels(toolkit.kernels / f"{self.module.key}.json", self.module.kernels)
        self.summaries = KernelSummaries()
        self.launches = CheckedCudaLaunches(toolkit, self.summaries, number_launch=number_launch)
        self.set_version(1)

    def set_version(self, version: int) -> None:
        """Make the image, with the version that a fatbin's header has."""
        image = f"\x7fELF {MARKER}{self.module.key}".encode()
        head = struct.pack("<IHHQ", 0, version, 16, len(image))
        self.fatbin = ctypes.create_string_buffer(head + image)

    def call(self, out: Any, count: int) -> int:
        """Call the host function `fill(out, count)`; return the hook's answer."""
        with self.launches.note_call("module.fill", ("out", "count"), (out, count)):
            return self.launch(out.data_ptr(), count)

    def launch(self, address: int, count: int, entry: bytes = _ENTRY) -> int:
        own = struct.pack("<QI", address, count)
        values = ctypes.c_uint64(address), ctypes.c_uint32(count)
        arguments = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
        checks = ctypes.create_string_buffer(32768)
        answer = self.launches._fill(
            entry, ctypes.addressof(self.fatbin), arguments, None, ctypes.addressof(checks), _STREAM
        )
        if answer >= 0:
            size = self.module.kernels[entry.decode()].check_bytes
            self._run(own + bytes(4) + checks.raw[:size])
        return answer

    def _run(self, parameters: bytes) -> None:
        name = _ENTRY.decode()
        block = (_THREADS, 1, 1)
        launch = CudaLaunch(name, name, self.grid, block, 0, parameters, (), _find_any_memory)
        checks = ExecutorChecks(overflow=False, uninitialized=False, races=False)
        for error in load_module(self.module.text).run(launch, checks):
            raise error

    def read_reports(self) -> list[Violation | None]:
        found = list(PROCESS_REPORTS.read_new_reports())
        return [violation_from_record(report, launch) for report, launch in found]


def _find_any_memory(_: int) -> Allocation:
    return Allocation("memory", 1 << 32, 1 << 47)


@pytest.fixture
def card(tmp_path: Path) -> CardOnCpu:
    return CardOnCpu(tmp_path)


def test_a_launch_inside_of_its_tensor_is_no_report(card: CardOnCpu) -> None:
    out = torch.zeros(20, dtype=torch.int32, device="cuda")
    assert card.call(out, 20) == 2  # its own parameters
    assert out.tolist() == list(range(20))
    assert card.read_reports() == []
    [summary] = card.summaries
    assert (summary.launches, summary.checked_launches, summary.unchecked) == (1, 1, {})


def test_a_launch_past_the_end_names_the_argument_and_the_call(card: CardOnCpu) -> None:
    whole = torch.full((24,), -1, dtype=torch.int32, device="cuda")
    assert card.call(whole[:20], 22) == 2
    first, second = card.read_reports()
    assert isinstance(first, OutOfBounds)
    assert "fill wrote 4 bytes past the end of out (its index 20, and it is int32 [20])" in str(
        first
    )
    assert "launched by module.fill with out (int32 [20])" in str(first)
    assert first.location is not None
    assert first.location.thread == (20, 0, 0)
    assert second is not None
    assert whole.tolist() == [*range(20), -1, -1, -1, -1]


def test_a_module_that_tvm_ffi_loads_notes_the_tensors_of_its_calls(
    card: CardOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(out: Any, count: int) -> int:
        return card.launch(out.data_ptr(), count)

    loader: Any = ModuleType("loader")
    loader.load_module = lambda path: SimpleNamespace(fill=fill, version="1")
    monkeypatch.setitem(sys.modules, "loader", loader)
    monkeypatch.setattr(checked_modules, "_started", [card.launches])
    checked_modules._wrap_load_module(loader)
    module = loader.load_module("/builds/page.so")
    assert module.version == "1"
    assert module.fill(torch.zeros(20, dtype=torch.int32, device="cuda"), 21) == 2
    [report] = card.read_reports()
    assert "past the end of argument 0 (its index 20" in str(report)
    assert "launched by page.fill with argument 0 (int32 [20])" in str(report)


def test_whole_storages_let_a_view_be_filled_further(card: CardOnCpu, tmp_path: Path) -> None:
    card.launches = CheckedCudaLaunches(
        CheckedToolkit(tmp_path), card.summaries, whole_storages=True
    )
    whole = torch.full((24,), -1, dtype=torch.int32, device="cuda")
    assert card.call(whole[:20], 22) == 2
    assert card.read_reports() == []
    assert card.call(whole[:20], 25) == 2
    assert len(card.read_reports()) == 1


def test_a_launch_outside_of_every_call_is_counted_as_unbounded(card: CardOnCpu) -> None:
    out = torch.zeros(32, dtype=torch.int32, device="cuda")
    address = out.untyped_storage().data_ptr()
    assert card.launch(address, 32) == 2
    assert card.read_reports() == []
    [summary] = card.summaries
    assert summary.unchecked == {"its pointer is in no memory that is known here": 1}


def test_a_kernel_without_checks_is_launched_as_it_is_and_counted(card: CardOnCpu) -> None:
    assert card.launch(0, 0, b"_Z5otherv") == -1
    [summary] = card.summaries
    assert summary.refusals == {"its module was built without checks": 1}


def test_an_entry_that_differs_between_architectures_is_refused_by_name(card: CardOnCpu) -> None:
    other = instrument_module(_FILL.replace("st.global.u32", "st.global.u16"), ("bounds",))
    kernels = card.launches._toolkit.kernels
    write_kernels(kernels / f"{other.key}.json", other.kernels)
    image = f"{MARKER}{card.module.key} {MARKER}{other.key}".encode()
    card.fatbin = ctypes.create_string_buffer(struct.pack("<IHHQ", 0, 1, 16, len(image)) + image)
    out = torch.zeros(4, dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match="has other checks in each architecture"):
        card.call(out, 4)


class LaunchNumbers:
    """What a small kernel in front of each launch does on a card."""

    def __init__(self) -> None:
        self.number = np.zeros(1, np.int64)
        self.tables = np.zeros(len(ShadowTable) * SLOTS_PER_TABLE, np.int64)
        self.streams: list[int] = []

    def next(self, stream: int) -> tuple[int, int]:
        self.streams.append(stream)
        self.number += 1
        return self.number.ctypes.data, self.tables.ctypes.data


def test_blocks_that_meet_in_one_launch_are_reported(tmp_path: Path) -> None:
    numbers = LaunchNumbers()
    store = "mov.u32 %r3, %ctaid.x; st.global.u32 [%rd3], %r3;"
    text = _FILL.replace("st.global.u32 [%rd3], %r1;", store)
    card = CardOnCpu(tmp_path, text, ALL_CHECKS, numbers.next)
    out = torch.zeros(20, dtype=torch.int32, device="cuda")
    assert card.call(out, 20) == 2
    assert card.read_reports() == []
    card.grid = (2, 1, 1)
    assert card.call(out, 20) == 2
    found = card.read_reports()
    assert {type(one) for one in found} == {DataRace}
    words = "block (0, 0, 0) and block (1, 0, 0) write different values to out, index 0"
    assert words in str(found[0])
    assert numbers.streams == [_STREAM] * 2


def test_blocks_of_two_launches_are_no_race(tmp_path: Path) -> None:
    of_last_block = (
        "mov.u32 %r1, %ctaid.x; mov.u32 %r3, %nctaid.x; sub.u32 %r3, %r3, 1;"
        "setp.ne.u32 %p, %r1, %r3; @%p bra END; ld.global.u32 %r2, [%rd3];"
        "add.u32 %r1, %r1, 7; st.global.u32 [%rd3], %r1;"
    )
    text = _FILL.replace("st.global.u32 [%rd3], %r1;", of_last_block)
    card = CardOnCpu(tmp_path, text, ALL_CHECKS, LaunchNumbers().next)
    out = torch.zeros(20, dtype=torch.int32, device="cuda")
    for blocks in (1, 2):
        card.grid = (blocks, 1, 1)
        assert card.call(out, 20) == 2
    assert out.tolist() == [8] * 20
    assert card.read_reports() == []


def test_a_launch_without_shadow_memory_is_counted(tmp_path: Path) -> None:
    card = CardOnCpu(tmp_path, _FILL, ALL_CHECKS, lambda _: None)
    out = torch.zeros(20, dtype=torch.int32, device="cuda")
    assert card.call(out, 20) == 2
    assert card.read_reports() == []
    [summary] = card.summaries
    assert summary.skipped_checks == {NO_SHADOW_MEMORY: 1}


def test_a_read_of_memory_that_torch_left_empty_is_reported(tmp_path: Path) -> None:
    text = _FILL.replace("st.global.u32 [%rd3], %r1;", "ld.global.u32 %r3, [%rd3];")
    card = CardOnCpu(tmp_path, text, ALL_CHECKS)
    out = torch.zeros(20, dtype=torch.int32, device="cuda")
    out.fill_(-0x04040405)  # the bytes of the pattern, as values
    assert card.call(out, 20) == 2
    assert card.read_reports() == []
    empty_memory.fill_with_poison(out)
    PROCESS_REPORTS.reset()
    assert card.call(out, 20) == 2
    first = card.read_reports()[0]
    assert isinstance(first, UninitializedMemory)
    assert "fill read uninitialized memory: out, index 0" in str(first)


def test_a_pointer_that_the_driver_gets_is_bounded_by_the_memory_of_the_allocator(
    card: CardOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = torch.zeros(24, dtype=torch.int32, device="cuda")
    address = whole.untyped_storage().data_ptr()
    blocks = [{"address": address, "requested_size": 80, "state": "active_allocated"}]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: [{"blocks": blocks}], raising=False)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: {}, raising=False)
    monkeypatch.setattr(checked_launches, "ALLOCATOR_BLOCKS", AllocatorBlocks())
    monkeypatch.setattr(checked_launches.STORAGE_REGISTRY, "find_containing", lambda _: None)
    assert card.launch(address, 21) == 2
    assert card.read_reports() == []  # a module's own host code may move pointers
    card.set_version(0)
    assert card.launch(address, 21) == 2
    [report] = card.read_reports()
    assert "fill wrote 4 bytes past the end of a tensor" in str(report)


def test_blocks_are_read_again_when_memory_was_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"allocation.all.allocated": 1, "allocation.all.freed": 0}
    blocks = [
        {"address": 4096, "requested_size": 80, "state": "active_allocated"},
        {"address": 8192, "requested_size": 80, "state": "inactive"},
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: [{"blocks": blocks}], raising=False)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: dict(stats), raising=False)
    found = AllocatorBlocks()
    assert found.find_containing(4175) == (4096, 80)
    assert found.find_containing(4176) is None
    assert found.find_containing(8192) is None
    blocks[1]["state"] = "active_allocated"
    assert found.find_containing(8192) is None
    stats["allocation.all.allocated"] = 2
    assert found.find_containing(8192) == (8192, 80)
