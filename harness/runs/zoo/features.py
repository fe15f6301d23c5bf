"""What users switch on, as axes of `suites/zoo/features.yaml`, and the combinations that cover it.

A combination is a set of features, at most one of an axis; axes without one have their first value,
the plain server's. Example: of the axes pages (1, 16, 64) and loop (in turn, overlap) two
combinations have each feature once, {page 16, overlap} and {page 64}; pairs take three.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from harness.core import paths
from harness.core.errors import UnfixError
from harness.core.located_yaml import SafeYamlFile
from harness.core.yaml_document import suggest_nearest
from harness.matrices import constraint_rules
from harness.matrices.covering import covering_array
from harness.matrices.schema import AxisConstraint, MatrixFile
from harness.runs.zoo.architecture import ZOO_FOLDER, Architecture, KnownFailure
from harness.store.zoo.values import ZooClaim

STRENGTHS = {"each": 1, "pairs": 2}  # by the word of a request
MODEL_WORD = "MODEL"  # the folder of the row's checkpoint

Combination = frozenset[str]


class Feature(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One value of an axis: what a server's command line has, and how it is judged."""

    words: str = ""
    update: Literal["", "disk", "tensors"] = ""  # of weights, while it serves: it starts without
    known: list[KnownFailure] = []  # by the words of the failure, on whichever row
    claims: list[ZooClaim] = []  # of the row, whose known failures it repeats
    tolerance: float = 0.0  # of the largest log-probability, where it rounds otherwise
    needs: str = ""  # a key that the row's configuration has
    unless: dict[str, str] = {}  # why rows whose configuration has a key cannot have it here
    tokens_alone: bool = False  # SGLang does without it where log-probabilities are asked for
    replays: bool = False  # graphs are replayed with it
    absent: str = ""  # why it cannot run on the virtual GPU


class FeatureFile(msgspec.Struct, forbid_unknown_fields=True):
    axes: dict[str, dict[str, Feature]]
    together: dict[str, str] = {}  # "page 16, FP8 cache": why SGLang refuses them on every row


@dataclass
class FeatureAxes:
    """The axes of one row: those features that it can have."""

    axes: dict[str, dict[str, Feature]]  # the first value of each is the plain server's
    refused: dict[Combination, str] = field(default_factory=dict)  # and why

    @classmethod
    def read(cls) -> FeatureAxes:
        document = SafeYamlFile(paths.project_folder() / ZOO_FOLDER / "features.yaml")
        try:
            file = msgspec.convert(document.values, FeatureFile)
        except msgspec.ValidationError as error:
            raise document.make_error(1, str(error)) from error
        found = cls(file.axes)
        if any(not known.says for one in found.features.values() for known in one.known):
            raise document.make_error(1, "a known failure of a feature has `says`")
        for names, reason in file.together.items():
            together = frozenset(names.split(", "))
            if stray := together - set(found.features):
                raise document.make_error_at(f"no feature is called {min(stray)}", "together")
            found.refused[together] = reason
        return found

    @property
    def features(self) -> dict[str, Feature]:
        return {
            name: feature
            for values in self.axes.values()
            for name, feature in itertools.islice(values.items(), 1, None)
        }

    def select_for(self, architecture: Architecture) -> FeatureAxes:
        """Return the axes with the features that a row can have."""
        axes = {
            axis: {
                name: feature
                for number, (name, feature) in enumerate(values.items())
                if not number or not explain_absence(feature, architecture)
            }
            for axis, values in self.axes.items()
        }
        return FeatureAxes(axes, dict(self.refused))

    def list_words(self, combination: Collection[str], model: str) -> list[str]:
        """List the server's words of a combination."""
        words = []
        for values in self.axes.values():
            chosen = next((name for name in values if name in combination), next(iter(values)))
            words += shlex.split(values[chosen].words)
        return [model if word == MODEL_WORD else word for word in words]

    def plan_combinations(self, strength: int) -> list[Combination]:
        """Plan few combinations that have each allowed tuple of features, without refused ones.

        A feature that rounds otherwise hides small errors of the others: they meet without it too.
        """
        rounding = [name for name, feature in self.features.items() if feature.tolerance]
        plan = self._cover_rows({*rounding}, strength)
        for name in rounding:
            rest = (
                self._cover_rows({*rounding} - {name}, strength - 1, name) if strength > 1 else []
            )
            plan += [row | {name} for row in rest or [frozenset()]]
        return list(dict.fromkeys(plan))

    def _cover_rows(
        self, left_out: Collection[str], strength: int, fixed: str = ""
    ) -> list[Combination]:
        """Cover the tuples of features without some, beside one that every row has."""
        names = {
            axis: kept
            for axis, values in self.axes.items()
            if len(kept := [name for name in values if name not in left_out]) > 1
            and fixed not in values
        }
        axis_of = {name: axis for axis, values in names.items() for name in values}
        rules = [
            AxisConstraint(because="refused", never={axis_of[name]: name for name in others})
            for refused in self.refused
            if (others := refused - {fixed}) and all(name in axis_of for name in others)
        ]
        matrix = MatrixFile(name="features", axes=dict(names), constraints=rules)
        space = constraint_rules.compile_constraints(matrix)
        groups = [(range(len(names)), min(strength, len(names)))]
        rows = covering_array.build_covering_rows(space, groups, [], matrix.seed).rows
        encoding = constraint_rules.BitEncoding(matrix, space)
        features = self.features
        return [
            frozenset(name for name in encoding.to_values(row).values() if name in features)
            for row in rows
        ]

    def list_covered(self, combination: Combination, strength: int) -> list[Combination]:
        """List the tuples that a combination tells about: with rounding features, theirs alone."""
        rounding = {name for name in combination if self.features[name].tolerance}
        sizes = range(1, strength + 1)
        tuples = (
            frozenset(names)
            for size in sizes
            for names in itertools.combinations(sorted(combination), size)
        )
        return [names for names in tuples if rounding <= names]


def explain_absence(feature: Feature, architecture: Architecture) -> str:
    """Explain why a row cannot have a feature; '' if it can."""
    keys = {*_list_keys(architecture.config), *_list_keys(architecture.sglang_config)}
    if feature.needs and feature.needs not in keys:
        return f"the row has no {feature.needs}"
    return feature.absent or next((why for key, why in feature.unless.items() if key in keys), "")


def choose_combinations(text: str) -> list[Combination]:
    """Read the combinations that a user names: `page 16 + LoRA, overlap` are two."""
    known = FeatureAxes.read().features
    combinations = [frozenset(part.strip().split(" + ")) for part in text.split(",")]
    for name in sorted(set().union(*combinations) - known.keys()):
        raise UnfixError(
            f"--features takes {', '.join(STRENGTHS)}, or features such as 'page 16 + LoRA'; none "
            f"is called {name}{suggest_nearest(name, known)}"
        )
    return combinations


def _list_keys(config: object) -> list[str]:
    """List the keys with a value, at any depth."""
    if not isinstance(config, dict):
        return []
    own = [str(key) for key, value in config.items() if value not in (None, {}, [])]
    return own + [key for value in config.values() for key in _list_keys(value)]


def find_ignored_words(settings: object, words: Iterable[str]) -> list[str]:
    """Find the words that a server took back: `--page-size 16`, and its `page_size` is 1."""
    ignored = []
    for group in re.split(r"(?:^|\s)--", " ".join(words))[1:]:
        name, *values = group.split()
        actual = getattr(settings, name.replace("-", "_"))
        wanted = values if len(values) > 1 else (values or ["True"])[0]
        shown = list(map(str, actual)) if isinstance(wanted, list) else str(actual)
        if shown != wanted:
            ignored.append(f"--{group} is {actual} on the server")
    return ignored
