"""What the zoo needs of SGLang's model of a folder, which `fixtures/zoo/served_model.py` makes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from harness.runs.zoo.adapters import Adapter
from harness.runs.zoo.prompts import Prompt
from harness.workers.fixture_modules import import_fixture


class ServedModel(Protocol):
    """A loaded model of SGLang, driven without a scheduler."""

    runner: Any  # SGLang's ModelRunner

    @property
    def model_class(self) -> str: ...

    @property
    def vocabulary(self) -> int: ...

    def compute_logits(self, prompts: list[Prompt], chunk: int = 0) -> list[torch.Tensor]: ...

    def compute_logits_in_turn(
        self, prompts: list[Prompt], chunk: int, before: int, after: int
    ) -> list[torch.Tensor]: ...

    def compute_logits_behind_cache(self, prompt: Prompt, cached: int) -> list[torch.Tensor]: ...

    def without_graphs(self) -> contextlib.AbstractContextManager[None]: ...


def serve_model(
    folder: Path,
    dtype: str,
    arguments: list[str],
    graphs: bool,
    adapters: Sequence[Adapter],
    rank: int = 0,
) -> ServedModel:
    """Have SGLang load the model of a folder, or a rank's share of it."""
    module = import_fixture("zoo.served_model")
    model: ServedModel = module.serve_model(folder, dtype, arguments, graphs, adapters, rank)
    return model


def preload_serving() -> None:
    """Import what loads every model, for the forks of this process."""
    import_fixture("loaded_model").import_one_batch()


@contextlib.contextmanager
def count_graph_replays() -> Iterator[list[Any]]:
    """Yield a list to which each replayed graph is added."""
    replays: list[Any] = []
    graph_class: Any = torch.cuda.CUDAGraph
    replay = graph_class.replay

    def count_replay(graph: Any) -> Any:
        replays.append(graph)
        return replay(graph)

    graph_class.replay = count_replay
    try:
        yield replays
    finally:
        graph_class.replay = replay
