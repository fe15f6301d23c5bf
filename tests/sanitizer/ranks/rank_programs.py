"""Runs a function in virtual ranks, and reads what each of them gave."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.sanitizer.ranks.host import RankHost

Program = Callable[[int], Any]


def run_ranks(
    folder: Path, count: int, program: Program, **limits: Any
) -> tuple[list[str], list[Any]]:
    """Return the problems of a program on so many ranks, and its result on each."""

    def run_program(rank: int) -> None:
        dist.init_process_group("nccl", rank=rank, world_size=count)
        torch.cuda.set_device(rank)
        (folder / f"{rank}.json").write_text(json.dumps(program(rank)))

    problems = RankHost(count, folder, run_program, **limits).run()
    files = [folder / f"{rank}.json" for rank in range(count)]
    return problems, [json.loads(file.read_text()) if file.exists() else None for file in files]


def make_tensor(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, device="cuda", dtype=dtype)
