"""A scheduler on a CPU: its functions under `torch.compile` run as they are written."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from harness.workers.servers import adaptations


@pytest.mark.parametrize("names", [[], [adaptations.CHECKED_KERNELS]])
def test_a_scheduler_compiles_none_of_its_functions(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    compiled = []

    def record_compilation(graph: Any, _: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    @torch.compile(backend=record_compilation)  # type: ignore[untyped-decorator]
    def double(values: torch.Tensor) -> torch.Tensor:
        return values * 2

    class Scheduler:
        def __init__(self) -> None:
            self.answers = [double(torch.ones(3)).tolist()]

        def event_loop_normal(self) -> None:
            self.answers.append(double(torch.ones(3)).tolist())

    fake = ModuleType("scheduler")
    fake.Scheduler = Scheduler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.scheduler", fake)
    adaptations.apply_adaptations(names)
    scheduler = Scheduler()
    scheduler.event_loop_normal()
    assert scheduler.answers == [[2, 2, 2], [2, 2, 2]]
    assert not compiled
    with torch._dynamo.config.patch(disable=False):
        double(torch.ones(3))
    assert compiled  # elsewhere the function is compiled
