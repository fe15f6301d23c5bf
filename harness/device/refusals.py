"""Names that the virtual device does not answer: the error that each access raises."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

REFUSALS: Counter[str] = Counter()  # every refusal of this process, by its message
_OWN_FOLDER = str(Path(__file__).parents[1])  # the checks of kernels call operators, too
_BETWEEN = ("/torch/", "/triton/runtime/", "<frozen")  # what stands between a caller and us


class UnansweredName(NotImplementedError):
    """A name of torch.cuda or of a CUDA package that the virtual device has no answer for.

    It is no AttributeError and no ImportError, which SGLang would take for another machine. Each
    one is counted, for the program may catch it and go on another way.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        REFUSALS[message] += 1


def iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all errors that led to it, those of groups included."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        cause = waiting.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        waiting += [cause.__cause__, cause.__context__]
        if isinstance(cause, BaseExceptionGroup):
            waiting += cause.exceptions


def find_caller() -> str:
    """Return the file and line that called: not our own, torch's or Triton's."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_OWN_FOLDER) and not any(part in file for part in _BETWEEN):
            return f"{file}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "an unknown line"
