"""Errors that end a command, each with its exit code."""

from __future__ import annotations


class UnfixError(Exception):
    """The call is wrong: an id, a file or an argument that cannot be used."""

    exit_code = 2


class CommandLineError(UnfixError):
    """A command line that does not parse; the message is printed under the usage of its command."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class NotReadyError(UnfixError):
    """The machine or a release is not ready; the message says which command makes it ready."""

    exit_code = 3


class UnknownToggleError(UnfixError):
    """No toggle has this id."""


class ToggleNotApplicableError(UnfixError):
    """A toggle that this release can neither revert nor enable; the message gives its state."""


class PatchConflictError(UnfixError):
    """Two toggles change the same code, or one toggle is requested in both directions."""


class PatchError(UnfixError):
    """A patch that matches the source text but cannot be applied to the process."""
