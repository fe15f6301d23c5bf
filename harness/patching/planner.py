"""The planner as a process: a request on stdin, a plan or an error on stdout.

Patched processes call it, so that the parsers need to be installed only in unfix's environment.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ast_grep_py
import msgspec

from harness.core.errors import UnfixError
from harness.fixes.patch_plan import Direction, ToggleChoice, make_plan
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.patching import bootstrap
from harness.releases import upstream_reverts
from harness.releases.source_trees import FolderSourceTree, SourceTree

# Files of the packages and the Python that plans are made with: a new version has others.
_DEPENDENCIES = [
    str(Path(file).resolve())
    for file in (ast_grep_py.ast_grep_py.__file__, msgspec._core.__file__, sys.executable)
]


def resolve_choices(
    toggles: ToggleCatalogue, revert: list[str], enable: list[str], tree: SourceTree
) -> tuple[list[ToggleChoice], list[str]]:
    """Return the requested toggles, and the numbers that only SGLang's own registry knows."""
    known_upstream = {str(number) for number in upstream_reverts.read_upstream_numbers(tree)}
    upstream_ids: list[str] = []
    own_ids: list[str] = []
    for name in revert:
        own = name in known_upstream and not any(
            t.id == name or t.id.startswith(f"{name}-") for t in toggles
        )
        (upstream_ids if own else own_ids).append(name)
    chosen = [ToggleChoice(t, Direction.REVERT) for t in toggles.select_all(own_ids)]
    chosen += [ToggleChoice(t, Direction.ENABLE) for t in toggles.select_all(enable)]
    return chosen, upstream_ids


def answer_request(request: dict[str, Any]) -> dict[str, Any]:
    try:
        tree = FolderSourceTree(Path(request["root"]), request["root"])
        release = str(tree.version or "of unknown version")
        toggles = toggle_catalogue.load_catalogue(map(Path, request["folders"]))
        chosen, upstream_ids = resolve_choices(toggles, request["revert"], request["enable"], tree)
        if len(upstream_ids) > 1:
            raise UnfixError(
                f"SGLang's own registry reverts one number at a time, not {', '.join(upstream_ids)}"
            )
        plan = make_plan(chosen, tree, release)
    except UnfixError as error:
        return {"error": str(error), "exit_code": error.exit_code}
    return {
        "plan": plan.as_data(),
        "ours": [c.toggle.id for c in chosen if c.direction is Direction.REVERT],
        "upstream": upstream_ids[0] if upstream_ids else "",
        "read": [{"path": path} for path in (*tree.list_read_paths(), *_DEPENDENCIES)],
    }


def plan_ahead(
    root: Path, revert: list[str], enable: list[str], environment: dict[str, str]
) -> None:
    """Make and cache the plan that a process of this environment will request."""
    if revert or enable:
        request = {"root": str(root), "revert": revert, "enable": enable}
        bootstrap.fetch_plan(
            {**request, "folders": bootstrap.read_toggle_folders(environment)}, answer_request
        )


if __name__ == "__main__":
    print(json.dumps(answer_request(json.load(sys.stdin))))
