"""Writing a toggle file, in the manner of those that are written by hand."""

from __future__ import annotations

import contextlib
import tempfile
import textwrap
from pathlib import Path

import msgspec
import yaml

from harness.errors import UnfixError, UnknownToggle
from harness.registry.catalogue import Catalogue
from harness.registry.files import read_toggle
from harness.registry.schema import Slug, Toggle, Variant

WIDTH = 96


def check_id(name: str) -> None:
    """Refuse what the registry would not take as a toggle's id, nor a folder as a file's name."""
    try:
        msgspec.convert(name, Slug)
    except msgspec.ValidationError as error:
        raise UnfixError(
            f"'{name}' is no toggle's id: an id is a slug of small letters, digits and '-'"
        ) from error


def check_free(name: str, known: Catalogue) -> None:
    """Refuse an id that a toggle has, or a group of them."""
    check_id(name)
    with contextlib.suppress(UnknownToggle):
        taken = ", ".join(other.id for other in known.select(name))
        raise UnfixError(f"'{name}' already stands for {taken}: --as names another toggle")


def write(toggle: Toggle, folder: Path, known: Catalogue) -> Path:
    """A toggle's file, once the registry has read it, where no other has its name."""
    check_free(toggle.id, known)
    with tempfile.TemporaryDirectory(prefix="unfix-") as aside:
        draft = Path(aside) / f"{toggle.id}.yaml"
        draft.write_text(as_yaml(toggle), encoding="utf-8")
        read_toggle(draft)
    file = folder / draft.name
    try:
        with open(file, "x", encoding="utf-8") as new:
            new.write(as_yaml(toggle))
    except FileExistsError as error:
        raise UnfixError(f"{file} is there already: --as names another toggle") from error
    return file


def as_yaml(toggle: Toggle) -> str:
    """The text of a toggle's file."""
    lines = [
        f"id: {_scalar(toggle.id)}",
        f"title: {_scalar(toggle.title)}",
        f"family: {toggle.family}",
        f"symptom: {toggle.symptom.value}",
        *([f"upstream: [{', '.join(map(str, toggle.upstream))}]"] if toggle.upstream else []),
        f"devices: [{', '.join(device.value for device in toggle.devices)}]",
        *(["why: >-", *_wrapped(toggle.why)] if toggle.why else []),
        *(["unguarded: >-", *_wrapped(toggle.unguarded)] if toggle.unguarded else []),
        "variants:",
    ]
    for variant in toggle.variants:
        lines += variant_lines(variant)
    return "\n".join(lines) + "\n"


def variant_lines(variant: Variant) -> list[str]:
    lines = [f'  - releases: "{variant.releases}"']
    if variant.target:
        lines.append(f"    target: {variant.target}")
    lines.append("    edits:")
    for edit in variant.edits:
        first = [f"      - target: {edit.target}"] if edit.target else []
        key = "        fixed:" if edit.target else "      - fixed:"
        lines += first + _block(key, edit.fixed) + _block("        buggy:", edit.buggy)
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )


def _block(key: str, code: str) -> list[str]:
    if "\n" not in code:
        return [f"{key} {_scalar(code)}"]
    return [f"{key} |-", *(f"          {line}".rstrip() for line in code.split("\n"))]


def _scalar(text: str) -> str:
    """A word as it is, where YAML reads it as that word; else quoted."""
    try:
        if yaml.safe_load(f"- {text}\n") == [text] and "\n" not in text:
            return text
    except yaml.YAMLError:
        pass
    quoted: str = yaml.safe_dump(text, default_style='"', width=10**6, allow_unicode=True)
    return quoted.strip()
