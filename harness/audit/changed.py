"""What of a release is as it was in an earlier one, wherever it stands in either.

A kernel with the same text, helpers, constants and launches has no finding that it had not before:
it is not read. Of one that has changed, what is found now is held against what was found then.
"""

from __future__ import annotations

import ast
import hashlib
from collections import defaultdict
from functools import cached_property
from pathlib import Path

from harness.audit.collecting import Kernel, collected
from harness.audit.host import Launch
from harness.audit.loading import World
from harness.kernels.kept import kept

_CODE = "".join(file.read_text() for file in sorted(Path(__file__).parent.glob("*.py")))
_UNKNOWN = ""  # it does not become a kernel here: nobody knows whether it is the same


class Kernels:
    """The kernels of a release by their names; kept by its sources."""

    def __init__(self, place: Path, sources: str) -> None:
        self.world = World(place)
        self._key = hashlib.sha256(f"{_CODE}\0{place}\0{sources}".encode()).hexdigest()
        self.all: list[Kernel] = kept("kernels", self._key, lambda: collected(self.world))
        self._named: dict[str, list[int]] = defaultdict(list)
        for number, one in enumerate(self.all):
            self._named[one.name].append(number)

    @cached_property
    def digests(self) -> list[tuple[str, str]]:
        """Of each its text, and what it asks of others."""
        return kept("digests", self._key, lambda: list(map(self._digests, self.all)))

    def named(self, name: str) -> list[Kernel]:
        return [self.all[number] for number in self._named[name] if not self.all[number].is_helper]

    def changed_since(self, before: Kernels) -> list[Kernel]:
        """Those that the earlier release has not.

        Of helpers only their text counts, since their callers change with the rest.
        """
        return [
            one
            for one, (text, asked) in zip(self.all, self.digests, strict=True)
            if not any(
                text == then and (one.is_helper or _UNKNOWN != asked == before.digests[number][1])
                for number in before._named[one.name]
                for then in before.digests[number][:1]
            )
        ]

    def _digests(self, kernel: Kernel) -> tuple[str, str]:
        """Code that it calls, constants, whoever launches it."""
        text = _digest(ast.unparse(kernel.node))
        launches = "\0".join(map(_launched, kernel.launches))
        try:
            return text, _digest(self.world.text(kernel.module, kernel.name), launches)
        except Exception:
            return text, _UNKNOWN


def _launched(one: Launch) -> str:
    """What it hands over, and what the sides of tensors in that are called there."""
    given = repr((one.function, one.arguments, one.grid, one.demands))
    called = sorted((side, name) for side, name in one.called.items() if side in given)
    return f"{given} {called}"


def lines_of(text: str) -> set[str]:
    """Each without its white space, as findings have them."""
    return {" ".join(line.split()) for line in text.splitlines()}


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()
