"""The limits file: how large what a launch is given may be, in words of models and servers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_SHAPE_SIDE = re.compile(r"[\w.]+\.shape\[-?[1-9]\]$")  # alone
_ALIAS = " as "  # between an argument and its name in the kernel
DEFAULT_LIMITS = Path(__file__).with_name("limits.yaml")


@dataclass(frozen=True, slots=True)
class SizeQuantity:
    name: str
    usual: int
    largest: int
    source: str
    size: bool = False  # grows with the load, and not with the model
    setting: str = ""  # what of a server says how far


@dataclass(frozen=True, slots=True)
class ModelShape:
    name: str
    source: str
    values: dict[str, int] = field(hash=False)


@dataclass(frozen=True, slots=True)
class SizeLimits:
    quantities: dict[str, SizeQuantity]
    models: tuple[ModelShape, ...]
    name_patterns: tuple[tuple[re.Pattern[str], str], ...]
    content_patterns: tuple[
        tuple[re.Pattern[str], str, str], ...
    ]  # what tensors of numbers hold, and as what
    text: str
    _cache: dict[tuple[str, ...], Any] = field(default_factory=dict, compare=False, repr=False)

    def find_quantity(self, *words: str, side_name: str = "") -> SizeQuantity | None:
        """Of the first words that the file knows; a side of a tensor says less than a name.

        What is known of words together, as `x.stride(1) as stride_x_token`, goes before.
        `called`: what the launching function calls that side; a letter says nothing by itself.
        """
        key = ("of", side_name, *words)
        if key not in self._cache:
            self._cache[key] = self._match_quantity(*words, side_name=side_name)
        return self._cache[key]  # type: ignore[no-any-return]

    def find_content(self, *words: str) -> tuple[SizeQuantity | None, str] | None:
        key = ("held", *words)
        if key not in self._cache:
            self._cache[key] = self._match_content(*words)
        return self._cache[key]  # type: ignore[no-any-return]

    def _match_quantity(self, *words: str, side_name: str) -> SizeQuantity | None:
        first, *names = words
        together = [f"{first}{_ALIAS}{name}" for name in (*names, side_name) if name]
        alone = (*words, side_name) if len(side_name) > 1 else words
        order = sorted(alone, key=lambda one: _SHAPE_SIDE.match(one) is not None)
        for word in (*together, *order):
            for pattern, name in self.name_patterns:
                if (_ALIAS in word) is (_ALIAS in pattern.pattern) and pattern.search(word):
                    return self.quantities[name]
        return None

    def _match_content(self, *words: str) -> tuple[SizeQuantity | None, str] | None:
        for word in words:
            for pattern, name, kind in self.content_patterns:
                if pattern.search(word):
                    return self.quantities.get(name), kind
        return None


def read_limits(path: Path = DEFAULT_LIMITS) -> SizeLimits:
    text = path.read_text()
    data: dict[str, Any] = yaml.safe_load(text)
    optional = {"size": False, "setting": ""}
    quantities = {
        name: SizeQuantity(
            name=name,
            **{key: one[key] for key in ("usual", "largest", "source")},
            **{key: one.get(key, nothing) for key, nothing in optional.items()},
        )
        for name, one in data["quantities"].items()
    }
    return SizeLimits(
        quantities,
        tuple(ModelShape(one["name"], one["source"], one["values"]) for one in data["models"]),
        tuple((re.compile(key, re.I), name) for key, name in data["names"].items()),
        tuple((re.compile(key, re.I), *words.split()) for key, words in data["held"].items()),
        text,
    )
