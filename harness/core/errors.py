"""Errors that end a command, each with the exit code that design.md gives it."""

from __future__ import annotations


class UnfixError(Exception):
    """The call is wrong: an id, a file or an argument that cannot be used as asked."""

    exit_code = 2


class CommandLineError(UnfixError):
    """Words that no command can be made of: told under the usage of the one that was called."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class NotReadyError(UnfixError):
    """The machine or a release is not ready; the message says what to do about it."""

    exit_code = 3


class ToggleFileError(UnfixError):
    """A toggle file that is not what the schema asks for; names the file and the line."""

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}")
        self.path = path
        self.line = line
        self.problem = problem


class UnknownToggleError(UnfixError):
    """An id that no toggle file has."""


class ToggleNotApplicableError(UnfixError):
    """A toggle that cannot be taken out or put in on this release, with its state there."""


class PatchConflictError(UnfixError):
    """Two toggles that want to change the same code, or one toggle both ways at once."""


class PatchError(UnfixError):
    """A patch that applies to the text and still cannot be made to run."""
