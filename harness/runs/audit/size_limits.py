"""The limits file: the largest sizes and contents of a launch, by models and server settings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_SHAPE_SIDE = re.compile(r"[\w.]+\.shape\[-?[1-9]\]$")  # any side but the first
_ALIAS = " as "  # between an argument and its name in the kernel
DEFAULT_LIMITS = Path(__file__).with_name("limits.yaml")  # SGLang's
GENERAL_LIMITS = Path(__file__).with_name("general_limits.yaml")  # of any other package


@dataclass(frozen=True, slots=True)
class SizeQuantity:
    name: str
    usual: int
    largest: int
    source: str
    size: bool = False  # True if it grows with the load, not with the model
    setting: str = ""  # the server setting that limits it


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
    # The limits of integer tensors' contents: name, quantity, type.
    content_patterns: tuple[tuple[re.Pattern[str], str, str], ...]
    text: str
    _cache: dict[tuple[str, ...], Any] = field(default_factory=dict, compare=False, repr=False)

    def find_quantity(self, *words: str, side_name: str = "") -> SizeQuantity | None:
        """Find the quantity of the first word that a pattern matches; names before tensor sides.

        Patterns for an argument with its parameter, as `x.stride(1) as stride_x_token`, come first.
        `side_name` is the launching function's name for the side; a single letter is not matched.
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
        pairs = [f"{first}{_ALIAS}{name}" for name in (*names, side_name) if name]
        singles = (*words, side_name) if len(side_name) > 1 else words
        ordered = sorted(singles, key=lambda word: _SHAPE_SIDE.match(word) is not None)
        for word in (*pairs, *ordered):
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
            **{key: entry[key] for key in ("usual", "largest", "source")},
            **{key: entry.get(key, default) for key, default in optional.items()},
        )
        for name, entry in data["quantities"].items()
    }
    return SizeLimits(
        quantities,
        tuple(ModelShape(each["name"], each["source"], each["values"]) for each in data["models"]),
        tuple((re.compile(key, re.I), name) for key, name in data["names"].items()),
        tuple((re.compile(key, re.I), *words.split()) for key, words in data["held"].items()),
        text,
    )
