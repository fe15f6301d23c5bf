"""Writes a new guard for a toggle from a template; its author adds the invariant."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from harness.core import paths
from harness.core.cpp_tokens import is_cpp_path
from harness.core.errors import UnfixError
from harness.fixes.matching.toggle_status import find_toggle_status
from harness.fixes.patch_plan import FLIP_DIRECTIONS
from harness.fixes.registry.schema import CodeTarget, Toggle
from harness.releases.source_trees import SourceTree

ADAPTER_IMPORT = re.compile(r"^from fixtures import \w+(?: as adapter)?$", re.MULTILINE)
LAUNCH_IMPORT = "from fixtures.kernel_launches import launch_kernel"


def write_guard(toggle: Toggle, trees: Sequence[SourceTree]) -> Path:
    """Write a guard that fails until its author states what must hold."""
    folder = paths.project_folder() / "suites" / toggle.family
    file = folder / f"test_{toggle.id.replace('-', '_')}.py"
    named = [suite for suite in folder.glob("*.py") if f'"{toggle.id}"' in suite.read_text("utf-8")]
    if file.exists() or named:
        raise UnfixError(f"{(named or [file])[0]} is a guard of {toggle.id} already")
    text = render_guard(toggle, trees, folder)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def render_guard(toggle: Toggle, trees: Sequence[SourceTree], folder: Path) -> str:
    target, node, kernel = _find_changed_function(toggle, trees)
    names = [
        argument.arg
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    ]
    parameters = [f"{name}=...," for name in names if name not in ("self", "cls")]
    if kernel:
        fixture = LAUNCH_IMPORT
        call = [
            f'launch_kernel(check, "{node.name}", (1,),',
            *(f"    {parameter}" for parameter in parameters),
            ")",
        ]
        comment = f"# The kernel is found by the toggle's target, here in {target.module}."
    else:
        fixture = _find_fixture_import(folder)
        takes = ", ".join(parameter.rstrip(",") for parameter in parameters)
        call = [f"adapter.{node.name}(check, value)  # {target.qualname}({takes})"]
        comment = "# The fixture builds the real object small, and calls its own method."
    body = textwrap.indent("\n".join([comment, *call]), " " * 8)
    return f'''"""{toggle.title}: what holds instead.

THE INVARIANTS IN PLAIN WORDS
- …
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

{fixture}
from harness import checking


@pytest.mark.guards("{toggle.id}")
@given(value=st.integers(1, 8))
def test_{toggle.id.replace("-", "_")}(value: int) -> None:
    with checking.checked() as check:
{body}
    pytest.fail("state here what must hold")
'''


def _find_fixture_import(folder: Path) -> str:
    """Find the import of the fixture that the family's other guards use."""
    for suite_file in sorted(folder.glob("test_*.py")):
        found = ADAPTER_IMPORT.search(suite_file.read_text("utf-8"))
        if found:
            return found[0]
    return f"from fixtures import {folder.name} as adapter  # to be written"


def _find_changed_function(
    toggle: Toggle, trees: Sequence[SourceTree]
) -> tuple[CodeTarget, ast.FunctionDef | ast.AsyncFunctionDef, bool]:
    """Find the function that a toggle changes in the newest release; True if it is a kernel."""
    for tree in reversed(trees):
        found = find_toggle_status(toggle, tree)
        if found.state not in FLIP_DIRECTIONS or found.variant is None:
            continue
        target = found.variant.targets[0]
        if is_cpp_path(target.module):
            raise UnfixError(
                f"{toggle.id} changes {target}: a guard of a CUDA source calls SGLang's Python "
                "function in `checking.checked_cuda()`, as those of suites/cuda_kernels do"
            )
        source = tree.read(target.module)
        name = target.qualname.rpartition(".")[2]
        for node in ast.walk(ast.parse(source.text if source else "")):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                marks = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
                return target, node, "triton" in marks
    raise UnfixError(f"no installed release has a function that {toggle.id} changes")
