"""What a toggle would change on a release, as a diff."""

from __future__ import annotations

from harness.matching.nearest import diff
from harness.matching.states import Finding, State
from harness.patching.plan import Choice, Direction, PatchedModule, make
from harness.releases.sources import SourceTree


def of(finding: Finding, tree: SourceTree) -> str:
    direction = {State.FIXED: Direction.REVERT, State.BUGGY: Direction.ENABLE}.get(finding.state)
    if direction is None:
        return ""
    plan = make([Choice(finding.toggle, direction)], tree, str(tree.version))
    return "\n".join(_module(module, tree) for module in plan.modules)


def _module(module: PatchedModule, tree: SourceTree) -> str:
    source = tree.read(module.module)
    before = source.text if source else ""
    place = module.module.replace(".", "/") + ".py"
    return diff(before, module.text, f"a/{place}", f"b/{place}")
