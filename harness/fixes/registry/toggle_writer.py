"""Writes a toggle file in the layout of the handwritten ones."""

from __future__ import annotations

import contextlib
import tempfile
import textwrap
from pathlib import Path

import msgspec
import yaml

from harness.core.errors import UnfixError, UnknownToggleError
from harness.fixes.registry.schema import Slug, Toggle, ToggleVariant
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.fixes.registry.toggle_reader import read_toggle

WRAP_COLUMNS = 96


def check_id(name: str) -> None:
    """Raise for a word that is not a valid toggle id."""
    try:
        msgspec.convert(name, Slug)
    except msgspec.ValidationError as error:
        raise UnfixError(
            f"'{name}' is no toggle's id: an id is a slug of small letters, digits and '-'"
        ) from error


def check_unused_id(name: str, existing_toggles: ToggleCatalogue) -> None:
    """Raise for an id that selects existing toggles."""
    check_id(name)
    with contextlib.suppress(UnknownToggleError):
        taken = ", ".join(namesake.id for namesake in existing_toggles.select(name))
        raise UnfixError(f"'{name}' already stands for {taken}: --as names another toggle")


def write_toggle_file(toggle: Toggle, folder: Path, existing_toggles: ToggleCatalogue) -> Path:
    """Write a toggle's file, after a draft has been read back; never overwrites a file."""
    check_unused_id(toggle.id, existing_toggles)
    with tempfile.TemporaryDirectory(prefix="unfix-") as aside:
        draft = Path(aside) / f"{toggle.id}.yaml"
        draft.write_text(format_toggle(toggle), encoding="utf-8")
        read_toggle(draft)
    file = folder / draft.name
    try:
        with open(file, "x", encoding="utf-8") as new:
            new.write(format_toggle(toggle))
    except FileExistsError as error:
        raise UnfixError(f"{file} is there already: --as names another toggle") from error
    return file


def format_toggle(toggle: Toggle) -> str:
    """Format the text of a toggle's file."""
    lines = [
        f"id: {_format_scalar(toggle.id)}",
        f"title: {_format_scalar(toggle.title)}",
        f"family: {toggle.family}",
        f"symptom: {toggle.symptom.value}",
        *([f"upstream: [{', '.join(map(str, toggle.upstream))}]"] if toggle.upstream else []),
        f"devices: [{', '.join(device.value for device in toggle.devices)}]",
        *(["why: >-", *_wrap_text(toggle.why)] if toggle.why else []),
        "variants:",
    ]
    for variant in toggle.variants:
        lines += format_variant(variant)
    return "\n".join(lines) + "\n"


def format_variant(variant: ToggleVariant) -> list[str]:
    lines = [f'  - releases: "{variant.releases}"']
    if variant.target:
        lines.append(f"    target: {variant.target}")
    lines.append("    edits:")
    for edit in variant.edits:
        first = [f"      - target: {edit.target}"] if edit.target else []
        key = "        fixed:" if edit.target else "      - fixed:"
        lines += (
            first + _format_block(key, edit.fixed) + _format_block("        buggy:", edit.buggy)
        )
    return lines


def _wrap_text(text: str) -> list[str]:
    return textwrap.wrap(
        text, WRAP_COLUMNS, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )


def _format_block(key: str, code: str) -> list[str]:
    if "\n" not in code:
        return [f"{key} {_format_scalar(code)}"]
    return [f"{key} |-", *(f"          {line}".rstrip() for line in code.split("\n"))]


def _format_scalar(text: str) -> str:
    """Quote a text if YAML would not read it as that text."""
    try:
        if yaml.safe_load(f"- {text}\n") == [text] and "\n" not in text:
            return text
    except yaml.YAMLError:
        pass
    quoted: str = yaml.safe_dump(text, default_style='"', width=10**6, allow_unicode=True)
    return quoted.strip()
