"""The suite of loaders launches each loader that it names; without a toolkit it cannot run."""

from __future__ import annotations

import ast
from typing import Any

from harness.core import paths
from harness.releases import managed_releases
from harness.runs.kernels import cuda_builds


def read_loaders_of_the_suite() -> set[str]:
    """Return the loaders that `suites/cuda_loaders` names; a name may have an f-string's parts."""
    loaders: set[str] = set()
    for file in (paths.project_folder() / "suites" / "cuda_loaders").glob("test_*.py"):
        names: dict[str, Any] = {}
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(
                node.value, ast.Constant | ast.JoinedStr
            ):
                exec(ast.unparse(node), names)
            for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.loader":
                    loaders.add(f"sglang.kernels.{eval(ast.unparse(mark.args[0]), names)}")
    return loaders


def test_the_suite_of_loaders_names_loaders_of_the_release() -> None:
    loaders = read_loaders_of_the_suite()
    release = managed_releases.get_release("0.5.23").open_sources()
    assert len(loaders) > 100
    assert loaders <= set(cuda_builds.list_loaders(release))
