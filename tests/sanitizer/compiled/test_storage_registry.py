"""The registry of storages, for pointers that come from tables."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import torch
from cpu_runs import int32_zeros

from harness.core import paths
from harness.sanitizer.gpu.storage_registry import StorageRegistry


def test_what_is_freed_is_forgotten_when_something_else_lies_there() -> None:
    memory = StorageRegistry()
    whole = torch.zeros(64, dtype=torch.int32)
    memory.register(whole)
    [row] = [row for row in memory.to_table().tolist() if row[0] == whole.data_ptr()]
    assert row[1] - row[0] == 256
    assert memory.find_starting_at(row[0]) is not None
    del whole
    assert memory.find_starting_at(row[0]) is None
    parts = torch.zeros(8, dtype=torch.int32)
    start = parts.data_ptr() - 8
    memory._storages[start] = replace(*memory._storages.values(), start=start, end=start + 256)
    memory._starts = [start]
    memory.register(parts)
    assert [list(row) for row in memory.to_table().tolist()[1:3]] == [
        [parts.data_ptr(), parts.data_ptr() + 32],
        [(1 << 63) - 1] * 2,
    ]


def test_of_more_storages_than_a_table_holds_the_living_ones_stay() -> None:
    memory = StorageRegistry()
    freed = [int32_zeros(1) for _ in range(4000)]
    for tensor in freed:
        memory.register(tensor)
    del freed, tensor
    living = [int32_zeros(1 << 16) for _ in range(200)]  # elsewhere, since it is large
    for tensor in living:
        memory.register(tensor)
    starts = memory.to_table()[:, 0].tolist()
    assert starts == sorted(starts)
    assert {tensor.data_ptr() for tensor in living} <= set(starts)


WATCHED = """
import torch
from harness.sanitizer.watch import activation
activation.install_checks()
import triton.runtime.jit
from harness.sanitizer.gpu.storage_registry import STORAGE_REGISTRY
pool = torch.zeros(8)
heard = []
STORAGE_REGISTRY.register = lambda tensor: heard.append(tensor.shape)
assert torch.zeros(4).data_ptr() and not heard  # it is on a CPU
STORAGE_REGISTRY.observe_address_request(type("Tensor", (), {"is_cuda": True, "shape": (8,)})())
print(torch.Tensor.data_ptr.by_unfix, heard)
"""


def test_a_watched_process_hears_what_addresses_are_asked_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED],
        env={**os.environ, "UNFIX_CHECK": "bounds", "PYTHONPATH": str(paths.project_folder())},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "True [(8,)]", done.stderr
