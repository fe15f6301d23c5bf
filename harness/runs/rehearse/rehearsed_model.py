"""What a rehearsal needs of a deployment that SGLang has loaded; `fixtures/rehearse` makes it."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol, runtime_checkable

from harness.workers.fixture_modules import import_fixture

SPARE_TOKENS = 8  # a request ends before its context does


class RehearsedModel(Protocol):
    """A loaded deployment, what its settings allow, and the batches that SGLang makes of it."""

    runner: Any  # SGLang's ModelRunner

    @property
    def slots(self) -> int: ...

    def load_adapters(self) -> None: ...

    def read_limits(self) -> dict[str, int]: ...

    def measure_parts(self) -> dict[str, int]: ...

    def measure_slot(self) -> float: ...

    def find_tracked_length(self, length: int) -> int: ...

    def find_longest_context(self) -> int: ...

    def use_smaller_pool(self, slots: int) -> contextlib.AbstractContextManager[None]: ...

    def begin_recording(self) -> None: ...

    def extend_chunk(self, length: int) -> None: ...

    def extend_behind_prefix(self, prefix: int, length: int) -> None: ...

    def decode(self, count: int, length: int) -> None: ...


@runtime_checkable
class ScheduledModel(RehearsedModel, Protocol):
    """A deployment with SGLang's scheduler, which makes some of the batches."""

    def begin_part(self, name: str) -> None: ...

    def extend_scheduled_chunk(self, length: int) -> None: ...

    def extend_scheduled_behind_prefix(self, prefix: int, length: int) -> None: ...

    def mix(self, count: int, length: int, chunk: int) -> None: ...

    def speculate(self, count: int, length: int) -> None: ...


def load_deployment(words: list[str], is_scheduled: bool) -> RehearsedModel:
    """Have SGLang load a deployment from the words of a server's command line."""
    module = import_fixture("rehearse.scheduled_batches")
    model: RehearsedModel = module.load_deployment(words, is_scheduled)
    return model


def preload_loading() -> None:
    """Import what loads every deployment, for the forks of this process."""
    import_fixture("loaded_model").import_one_batch()
