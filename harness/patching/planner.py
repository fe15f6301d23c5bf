"""The planner as a process of its own: a request on stdin, a plan or an error on stdout.

Patched processes call it, so that what parses and matches needs to be installed only once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harness.errors import UnfixError
from harness.patching import boot
from harness.patching.plan import Choice, Direction, make
from harness.registry import catalogue
from harness.registry.catalogue import Catalogue
from harness.releases import upstream
from harness.releases.sources import FolderTree, SourceTree

boot.engine()  # the one that is imported here: a plan of today's is no plan of tomorrow's


def choices(
    toggles: Catalogue, revert: list[str], enable: list[str], tree: SourceTree
) -> tuple[list[Choice], list[str]]:
    """What was asked for, and the numbers that SGLang's own registry alone knows."""
    known_upstream = {str(number) for number in upstream.numbers(tree)}
    theirs: list[str] = []
    ours: list[str] = []
    for name in revert:
        own = name in known_upstream and not any(
            t.id == name or t.id.startswith(f"{name}-") for t in toggles
        )
        (theirs if own else ours).append(name)
    chosen = [Choice(t, Direction.REVERT) for t in toggles.select_all(ours)]
    chosen += [Choice(t, Direction.ENABLE) for t in toggles.select_all(enable)]
    return chosen, theirs


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        tree = FolderTree(Path(request["root"]), request["root"])
        release = str(tree.version or "of unknown version")
        toggles = catalogue.load(map(Path, request["folders"]))
        chosen, theirs = choices(toggles, request["revert"], request["enable"], tree)
        if len(theirs) > 1:
            raise UnfixError(
                f"SGLang's own registry reverts one number at a time, not {', '.join(theirs)}"
            )
        plan = make(chosen, tree, release)
    except UnfixError as error:
        return {"error": str(error), "exit_code": error.exit_code}
    return {
        "plan": plan.as_data(),
        "ours": [c.toggle.id for c in chosen if c.direction is Direction.REVERT],
        "upstream": theirs[0] if theirs else "",
        "read": [{"path": path} for path in tree.paths_read()],
    }


def ahead(root: Path, revert: list[str], enable: list[str], environment: dict[str, str]) -> None:
    """Make the plan that a process of this environment will ask for, where all is imported."""
    if revert or enable:
        request = {"root": str(root), "revert": revert, "enable": enable}
        boot.plan({**request, "folders": boot.folders(environment)}, answer)


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))))
