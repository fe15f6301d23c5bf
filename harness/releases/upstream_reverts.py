"""Reads SGLang's own registry of reverts from a release's source; checks that each applies.

The registry maps a PR number to a YAML text. A revert applies if the lines of its `match`, without
indentation, occur exactly once in the target.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from harness.core.source_scopes import ModuleSource
from harness.releases.source_trees import SourceTree

REGISTRY_MODULE = "sglang.srt.debug_utils.pr_fix_toggle"


@dataclass(frozen=True, slots=True)
class UpstreamRevert:
    """One entry of the registry; `problem` is '' where it applies."""

    name: str
    problem: str


def read_upstream_reverts(tree: SourceTree) -> list[UpstreamRevert]:
    source = tree.read(REGISTRY_MODULE)
    if source is None:
        return []
    return [
        UpstreamRevert(str(n), _check_entry(tree, text))
        for n, text in sorted(_iterate_entries(source))
    ]


def read_upstream_numbers(tree: SourceTree) -> set[int]:
    source = tree.read(REGISTRY_MODULE)
    return {number for number, _ in _iterate_entries(source)} if source is not None else set()


def list_target_modules(tree: SourceTree) -> list[str]:
    """List each module name that may hold a target of the registry, there or not."""
    source = tree.read(REGISTRY_MODULE)
    texts = [text for _, text in _iterate_entries(source)] if source is not None else []
    modules = set()
    for target in re.findall(r"^\s*-?\s*target:\s*([\w.]+)", "\n".join(texts), re.MULTILINE):
        parts = target.split(".")
        modules |= {".".join(parts[:cut]) for cut in range(1, len(parts))}
    return sorted(modules)


def _iterate_entries(source: ModuleSource) -> Iterator[tuple[int, str]]:
    texts: dict[str, str] = {}
    for node in ast.parse(source.text).body:
        name = _get_assigned_name(node)
        value = getattr(node, "value", None)
        if name and isinstance(value, ast.Constant) and isinstance(value.value, str):
            texts[name] = value.value
        elif name and isinstance(value, ast.Dict):
            for key, item in zip(value.keys, value.values, strict=True):
                if not (isinstance(key, ast.Constant) and isinstance(key.value, int)):
                    continue
                if isinstance(item, ast.Name) and item.id in texts:
                    yield key.value, texts[item.id]
                elif isinstance(item, ast.Constant):
                    yield key.value, str(item.value)


def _get_assigned_name(node: ast.stmt) -> str | None:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else None


def _check_entry(tree: SourceTree, text: str) -> str:
    try:
        return _find_problem(tree, text)
    except (KeyError, TypeError, yaml.YAMLError) as error:
        return f"its entry has an unknown format: {error!r}"


def _find_problem(tree: SourceTree, text: str) -> str:
    config: dict[str, Any] = yaml.safe_load(text)
    for patch in config["patches"]:
        code = _read_target_code(tree, patch["target"])
        if code is None:
            return f"{patch['target']} does not exist"
        for edit in patch["edits"]:
            lines = _strip_lines(edit["match"])
            count = _count_occurrences(_strip_lines(code), lines)
            if count != 1:
                return f"{patch['target']}: its text occurs {count} times: {lines[0]}"
            code = _apply_edit(code, edit)
    return ""


def _read_target_code(tree: SourceTree, dotted_name: str) -> str | None:
    parts = dotted_name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        source = tree.read(".".join(parts[:cut]))
        if source is not None:
            scopes = source.find_scopes(".".join(parts[cut:]))
            return scopes[-1].text() if scopes else None
    return None


def _strip_lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def _count_occurrences(lines: list[str], block: list[str]) -> int:
    height = len(block)
    return sum(lines[i : i + height] == block for i in range(len(lines) - height + 1))


def _apply_edit(code: str, edit: dict[str, str]) -> str:
    """Return the code after an edit, for later edits of the same target."""
    lines, wanted = _strip_lines(code), _strip_lines(edit["match"])
    for start in range(len(lines) - len(wanted) + 1):
        if lines[start : start + len(wanted)] == wanted:
            replacement = _strip_lines(edit["replacement"]) if "replacement" in edit else wanted
            inserted = (
                _strip_lines(edit.get("prepend", ""))
                + replacement
                + _strip_lines(edit.get("append", ""))
            )
            return "\n".join(lines[:start] + inserted + lines[start + len(wanted) :])
    return code
