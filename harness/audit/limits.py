"""The limits file: how large what a launch is given may be, in words of models and servers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_SIDE = re.compile(r"[\w.]+\.shape\[-?[1-9]\]$")  # alone
_AS = " as "  # between an argument and its name in the kernel
OWN = Path(__file__).with_name("limits.yaml")


@dataclass(frozen=True, slots=True)
class Quantity:
    name: str
    usual: int
    largest: int
    source: str
    size: bool = False  # grows with the load, and not with the model
    setting: str = ""  # what of a server says how far


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    source: str
    values: dict[str, int] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Limits:
    quantities: dict[str, Quantity]
    models: tuple[Model, ...]
    names: tuple[tuple[re.Pattern[str], str], ...]
    held: tuple[tuple[re.Pattern[str], str, str], ...]  # what tensors of numbers hold, and as what
    text: str
    _known: dict[tuple[str, ...], Any] = field(default_factory=dict, compare=False, repr=False)

    def quantity(self, *words: str, called: str = "") -> Quantity | None:
        """Of the first words that the file knows; a side of a tensor says less than a name.

        What is known of words together, as `x.stride(1) as stride_x_token`, goes before.
        `called`: what the launching function calls that side; a letter says nothing by itself.
        """
        key = ("of", called, *words)
        if key not in self._known:
            self._known[key] = self._quantity(*words, called=called)
        return self._known[key]  # type: ignore[no-any-return]

    def content(self, *words: str) -> tuple[Quantity | None, str] | None:
        key = ("held", *words)
        if key not in self._known:
            self._known[key] = self._content(*words)
        return self._known[key]  # type: ignore[no-any-return]

    def _quantity(self, *words: str, called: str) -> Quantity | None:
        first, *names = words
        together = [f"{first}{_AS}{name}" for name in (*names, called) if name]
        alone = (*words, called) if len(called) > 1 else words
        order = sorted(alone, key=lambda one: _SIDE.match(one) is not None)
        for word in (*together, *order):
            for pattern, name in self.names:
                if (_AS in word) is (_AS in pattern.pattern) and pattern.search(word):
                    return self.quantities[name]
        return None

    def _content(self, *words: str) -> tuple[Quantity | None, str] | None:
        for word in words:
            for pattern, name, kind in self.held:
                if pattern.search(word):
                    return self.quantities.get(name), kind
        return None


def read(path: Path = OWN) -> Limits:
    text = path.read_text()
    data: dict[str, Any] = yaml.safe_load(text)
    optional = {"size": False, "setting": ""}
    quantities = {
        name: Quantity(
            name=name,
            **{key: one[key] for key in ("usual", "largest", "source")},
            **{key: one.get(key, nothing) for key, nothing in optional.items()},
        )
        for name, one in data["quantities"].items()
    }
    return Limits(
        quantities,
        tuple(Model(one["name"], one["source"], one["values"]) for one in data["models"]),
        tuple((re.compile(key, re.I), name) for key, name in data["names"].items()),
        tuple((re.compile(key, re.I), *words.split()) for key, words in data["held"].items()),
        text,
    )
