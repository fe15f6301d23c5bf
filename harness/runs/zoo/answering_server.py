"""A server in this process, as features need it; `fixtures/zoo/answering_server.py` makes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from harness.workers.fixture_modules import import_fixture


class ServerAnswer(Protocol):
    tokens: list[int]
    endings: list[str]
    logprobs: list[
        list[float]
    ]  # of each token, all of the vocabulary by number; none if not asked for


class AnsweringServer(Protocol):
    settings: Any  # SGLang's ServerArgs

    def update_weights(self, model: Path, source: str, prompt: list[int]) -> None: ...

    def answer(
        self, prompts: Sequence[list[int]], count: int, tokens_alone: bool
    ) -> Sequence[ServerAnswer]: ...


def start_server(words: Sequence[str]) -> AnsweringServer:
    """Build SGLang's scheduler from a server's words."""
    server: AnsweringServer = import_fixture("zoo.answering_server").start_server(words)
    return server


def preload_server() -> None:
    """Import what every server needs, for the forks of this process."""
    import_fixture("zoo.answering_server")
    import_fixture("loaded_model").import_one_batch()
