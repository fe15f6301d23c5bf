"""Reads toggle files: safe YAML into the strict schema, with file and line in every error."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from harness.core.located_yaml import SafeYamlFile
from harness.fixes.forms import matches_code, normalize_form, parse_form
from harness.fixes.patterns import ANONYMOUS_METAVARIABLE, PatternError, find_metavariables
from harness.fixes.registry.schema import DeviceKind, Symptom, Toggle, ToggleEdit, ToggleVariant

# Terminals obey control characters, and characters that change the direction hide what is read.
HIDDEN_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)


class ToggleFile(SafeYamlFile):
    """A toggle file; its errors say what a value should be."""

    def explain_problem(self, path: str, problem: str) -> str:
        last = re.sub(r"\[\d+\]$", "", path).rpartition(".")[2]
        if "enum value" in problem:
            words = {"symptom": Symptom, "devices": DeviceKind}[last]
            return f"{problem}; it is one of {', '.join(word.value for word in words)}"
        if "Expected `array`" in problem:
            return f"{problem}: each item begins with '- '"
        if "matching regex" not in problem:
            return problem
        return {
            "id": "an id is a PR number or a slug of small letters, digits and '-'",
            "target": "a target is 'module', 'module:qualified.name', or a C++ source's path in "
            "both places, such as 'sglang/kernels/jit/csrc/elementwise/rope.cuh:kernel'",
            "family": "a family is a folder name in snake_case",
        }.get(last, "empty" if "\\S" in problem else problem)


def read_toggle(path: Path) -> Toggle:
    """Read one toggle file, with every check that needs no release."""
    document = ToggleFile(path)
    if not isinstance(document.values, dict):
        raise document.make_error(1, "a toggle file is a mapping with an id")
    if type(document.values.get("id")) is int:  # a PR number: `id: 27460`
        document.values["id"] = str(document.values["id"])
    toggle = document.convert_to(Toggle)
    if toggle.id != path.stem:
        problem = f"the id '{toggle.id}' is not the file's name '{path.stem}'"
        raise document.make_error_at(problem, "id")
    for key, text in (("title", toggle.title), ("why", toggle.why)):
        if match := HIDDEN_CHARACTERS.search(text):
            raise document.make_error_at(f"{key}: the hidden character {match[0]!a}", key)
    for number, variant in enumerate(toggle.variants):
        _check_variant(document, number, variant)
    _check_variant_overlap(document, toggle)
    return toggle


def find_variant_lines(path: Path) -> list[int]:
    """Find the lines, from 1, on which the variants of a toggle file begin."""
    document = SafeYamlFile(path)
    return [document.find_line("variants", n) for n, _ in enumerate(document.values["variants"])]


def _check_variant(document: SafeYamlFile, number: int, variant: ToggleVariant) -> None:
    variant_path = ("variants", number)
    try:
        specifiers = SpecifierSet(variant.releases)
        for specifier in specifiers:
            Version(specifier.version.removesuffix(".*"))
    except (InvalidSpecifier, InvalidVersion) as error:
        problem = f"releases: {error}; write it like '>=0.5.9,<0.5.13'"
        raise document.make_error_at(problem, *variant_path, "releases") from error
    if not specifiers:
        raise document.make_error_at("releases: names no release", *variant_path, "releases")
    for index, edit in enumerate(variant.edits):
        place = (*variant_path, "edits", index)
        if not (edit.target or variant.target):
            problem = "an edit needs a target, its own or its variant's"
            raise document.make_error_at(problem, *place)
        try:
            problem = find_edit_problem(edit, variant.get_target(edit).module)
        except PatternError as error:
            problem = str(error)
        except RuntimeError as error:
            problem = f"ast-grep refuses the pattern: {error}"
        if problem:
            raise document.make_error_at(problem, *place)


def find_edit_problem(edit: ToggleEdit, module: str) -> str:
    """Explain why the two forms of an edit cannot be distinguished or rendered; '' if they can.

    `module` is the edit's target, whose language the forms are in.
    """
    fixed, buggy = parse_form(edit.fixed, module), parse_form(edit.buggy, module)
    for text in (edit.fixed, edit.buggy):
        if ANONYMOUS_METAVARIABLE.search(text):
            return "a metavariable needs a name: '$$$' and '$_' cannot be written back"
    _ = fixed.statements, buggy.statements
    if normalize_form(edit.fixed, module) == normalize_form(edit.buggy, module):
        return "the fixed and the buggy form are the same"
    if find_metavariables(edit.fixed) != find_metavariables(edit.buggy):
        odd = sorted(find_metavariables(edit.fixed) ^ find_metavariables(edit.buggy))
        return f"both forms must have the same metavariables; only one has {', '.join(odd)}"
    left_open = [getattr(form, "unpaired_brackets", "") for form in (fixed, buggy)]
    if left_open[0] != left_open[1]:
        in_fixed, in_buggy = (f"'{brackets}'" if brackets else "none" for brackets in left_open)
        return f"the forms leave other brackets unpaired: {in_fixed} in fixed, {in_buggy} in buggy"
    for name, pattern, other_name, other_form in (
        ("fixed", fixed, "buggy", edit.buggy),
        ("buggy", buggy, "fixed", edit.fixed),
    ):
        if matches_code(pattern, other_form):
            return f"the {name} form also matches the {other_name} form's code"
    return ""


def _check_variant_overlap(document: SafeYamlFile, toggle: Toggle) -> None:
    for later, variant in enumerate(toggle.variants):
        for earlier, earlier_variant in enumerate(toggle.variants[:later]):
            shared_version = next(
                (
                    v
                    for v in list_boundary_versions(toggle)
                    if _includes_version(variant, v) and _includes_version(earlier_variant, v)
                ),
                None,
            )
            if shared_version is not None:
                problem = (
                    f"variants {earlier + 1} and {later + 1} overlap: both hold {shared_version}"
                )
                raise document.make_error_at(problem, "variants", later, "releases")


def _includes_version(variant: ToggleVariant, version: Version) -> bool:
    return variant.specifier.contains(version)


def list_boundary_versions(toggle: Toggle) -> list[Version]:
    """List versions that distinguish any two ranges: each boundary and its successor."""
    named = {
        re.sub(r"\.\*$", "", spec.version) for v in toggle.variants for spec in v.specifier
    } | {"0", "9999"}
    return sorted(Version(n) for name in named for n in (name, f"{Version(name).base_version}.0.1"))
