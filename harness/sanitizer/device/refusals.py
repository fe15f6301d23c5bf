"""Names that the virtual device does not answer: the error that each access raises."""

from __future__ import annotations

from collections.abc import Iterator

from harness.sanitizer.device.record import RECORD


class UnansweredName(NotImplementedError):
    """A name of torch.cuda or of a CUDA package that the virtual device has no answer for.

    It is no AttributeError and no ImportError, which a program would take for another machine. Each
    one is counted, for the program may catch it and go on another way.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        RECORD.count_refusal(message)


def iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all errors that led to it, those of groups included."""
    waiting: list[BaseException | None] = [error]
    visited: set[int] = set()
    while waiting:
        cause = waiting.pop()
        if cause is None or id(cause) in visited:
            continue
        visited.add(id(cause))
        yield cause
        waiting += [cause.__cause__, cause.__context__]
        if isinstance(cause, BaseExceptionGroup):
            waiting += cause.exceptions
