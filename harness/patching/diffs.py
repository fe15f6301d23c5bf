"""What a toggle would change on a release, as a diff."""

from __future__ import annotations

from harness.fixes.matching.nearest_code import format_diff
from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus
from harness.patching.patch_plan import Direction, PatchedModule, ToggleChoice, make_plan
from harness.releases.source_trees import SourceTree


def format_toggle_diff(status: ToggleStatus, tree: SourceTree) -> str:
    direction = {ToggleState.FIXED: Direction.REVERT, ToggleState.BUGGY: Direction.ENABLE}.get(
        status.state
    )
    if direction is None:
        return ""
    plan = make_plan([ToggleChoice(status.toggle, direction)], tree, str(tree.version))
    return "\n".join(_format_module_diff(module, tree) for module in plan.modules)


def _format_module_diff(module: PatchedModule, tree: SourceTree) -> str:
    source = tree.read(module.module)
    before = source.text if source else ""
    place = module.module.replace(".", "/") + ".py"
    return format_diff(before, module.text, f"a/{place}", f"b/{place}")
