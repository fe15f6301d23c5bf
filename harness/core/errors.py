"""Errors that end a command, each with its exit code."""

from __future__ import annotations


class UnfixError(Exception):
    """An invalid call: an id, a file or an argument that cannot be used."""

    exit_code = 2


class CommandLineError(UnfixError):
    """A command line that does not parse; the message is printed under the usage of its command."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class NotReadyError(UnfixError):
    """A machine or a release that is not ready; the message names the command that prepares it."""

    exit_code = 3


class UnknownToggleError(UnfixError):
    """An id that no toggle has."""


class ToggleNotApplicableError(UnfixError):
    """A toggle that this release can neither revert nor enable; the message gives its state."""


class PatchConflictError(UnfixError):
    """Two toggles that change the same code, or one toggle requested in both directions."""


class PatchError(UnfixError):
    """A patch that matches the source text but cannot be applied to the process."""
