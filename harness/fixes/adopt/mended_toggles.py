"""Mends stale toggles for one run on a release that nobody looked at, and leaves their files alone.

The mended files lie in a folder of the workspace, which `UNFIX_MENDED_TOGGLES` names for this
process and those below it; the catalogue reads them in place of the files of the same toggles.
`unfix drift --mend --write` writes the same variants into the files themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.code_digest import compute_digest
from harness.core.files import write_atomically
from harness.fixes.adopt import stale_repair
from harness.fixes.adopt.stale_repair import ToggleRepair
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.registry import toggle_catalogue, toggle_reader
from harness.fixes.registry.schema import Toggle
from harness.releases.source_trees import SourceTree


@dataclass(frozen=True)
class MendedToggle:
    """A stale toggle, its repair, and the text of its file with the repair."""

    repair: ToggleRepair
    text: str

    def describe(self) -> list[str]:
        """Describe the state on each release that it was stale on; releases alike share a line."""
        names: dict[str, list[str]] = {}
        for name, proposal in self.repair.proposals.items():
            state = (
                f"stale, {proposal}"
                if isinstance(proposal, str)
                else f"{proposal.state.value}, by a mended form"
            )
            names.setdefault(state, []).append(name)
        toggle = self.repair.toggle.id
        return [f"{toggle} on {', '.join(alike)}: {state}" for state, alike in names.items()]


def repair_file(
    toggle: Toggle, path: Path, trees: Sequence[SourceTree], others: Sequence[SourceTree]
) -> MendedToggle | None:
    """Repair a toggle and its file's text; None if it is not stale on any of the trees."""
    repair = stale_repair.repair_toggle(toggle, trees, others)
    if repair is None:
        return None
    text = ""
    if repair.repaired_toggle is not None:
        lines = toggle_reader.find_variant_lines(path)
        text = stale_repair.render_repaired_file(
            path.read_text(encoding="utf-8"), toggle, repair.repaired_toggle, lines
        )
    return MendedToggle(repair, text)


def load_unmended_toggles(toggle_folders: Sequence[Path]) -> list[Toggle]:
    """Load the toggles as their own files have them, without what an earlier call mended."""
    os.environ.pop(toggle_catalogue.MENDED_VARIABLE, None)
    return list(toggle_catalogue.load_catalogue(toggle_folders))


def find_stale_toggles(toggles: Iterable[Toggle], trees: Sequence[SourceTree]) -> list[Toggle]:
    """Find the toggles that are stale on any of these trees."""
    return [
        toggle
        for toggle in toggles
        if any(find_toggle_status(toggle, tree).state is ToggleState.STALE for tree in trees)
    ]


def mend_for_this_run(
    stale: Sequence[Toggle],
    trees: Sequence[SourceTree],
    others: Sequence[SourceTree],
    toggle_folders: Sequence[Path],
    workspace: Path,
) -> list[MendedToggle]:
    """Mend toggles that are stale on these trees, for this process and those that it starts.

    `others` are the releases to port edits from.
    """
    files = toggle_catalogue.find_toggle_files(toggle_folders)
    versions = {tree.version for tree in trees}
    healthy = [tree for tree in others if tree.version not in versions]
    mended = [
        mended_toggle
        for toggle in stale
        if (mended_toggle := repair_file(toggle, files[toggle.id], trees, healthy)) is not None
    ]
    texts = {
        mended_toggle.repair.toggle.id: mended_toggle.text
        for mended_toggle in mended
        if mended_toggle.text
    }
    if texts:
        folder = workspace / compute_digest(*texts, *texts.values())
        for toggle_id, text in texts.items():
            write_atomically(folder / f"{toggle_id}.yaml", text)
        os.environ[toggle_catalogue.MENDED_VARIABLE] = str(folder)
    return mended
