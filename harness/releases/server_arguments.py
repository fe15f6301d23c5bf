"""The arguments of a release's server, read from its sources: SGLang need not be imported."""

from __future__ import annotations

import re
from collections.abc import Iterable

from harness.core.errors import UnfixError
from harness.core.source_scopes import ReleaseSources
from harness.core.wording import find_nearest_word

_MODULES = ("sglang.srt.server_args", "sglang.srt.arg_groups")
_ARGUMENT = re.compile(r"--[a-z][\w-]+")
_FIELD = re.compile(r"^    ([a-z]\w+) *[:=]", re.MULTILINE)  # an argument by its field's name


def refuse_unknown_arguments(words: Iterable[str], sources: ReleaseSources) -> None:
    """Raise an error for an argument that a server of the release does not have.

    As for argparse, the beginning of an argument will do.
    """
    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    known = list_arguments(sources) if given else set()
    for name in given:
        if known and not any(argument.startswith(name) for argument in known):
            near = find_nearest_word(name, known)
            hint = f"; near it: {near}" if near else ""
            raise UnfixError(f"a server of SGLang {sources.version} has no argument {name}{hint}")


def list_arguments(sources: ReleaseSources) -> set[str]:
    """List the arguments, and some names that are none; nothing if they lie elsewhere."""
    found: set[str] = set()
    for module in sources.modules():
        if module.startswith(_MODULES) and (source := sources.read(module)):
            found.update(_ARGUMENT.findall(source.text))
            found.update(f"--{name.replace('_', '-')}" for name in _FIELD.findall(source.text))
    return found
