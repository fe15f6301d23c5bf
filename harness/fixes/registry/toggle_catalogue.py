"""The catalogue of all toggles, which selects by id, PR number, family or glob."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
import packaging
import yaml

from harness.core import paths
from harness.core.cache import DiskCache
from harness.core.code_digest import compute_digest, digest_code
from harness.core.errors import UnfixError, UnknownToggleError
from harness.core.wording import format_count
from harness.fixes.patterns import AST_GREP_STAMP
from harness.fixes.registry.schema import CodeTarget, Toggle
from harness.fixes.registry.toggle_reader import read_toggle

# A folder of toggle files with variants for the releases of a run; child processes inherit it.
MENDED_VARIABLE = "UNFIX_MENDED_TOGGLES"
# The code and the third-party versions that every cached toggle and status depends on.
FIXES_CODE_DIGEST = compute_digest(
    digest_code("fixes"),
    *(sys.version, yaml.__version__, msgspec.__version__, packaging.__version__, AST_GREP_STAMP),
)


class ToggleCatalogue:
    """All loaded toggles, by id; a proposed one is selected by its id alone."""

    def __init__(self, toggles: Iterable[Toggle], proposed: Iterable[Toggle] = ()) -> None:
        self._by_id = {toggle.id: toggle for toggle in toggles}
        self.proposed = {toggle.id: toggle for toggle in proposed}

    def __iter__(self) -> Iterator[Toggle]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def has_match(self, name: str) -> bool:
        return bool(self._match_name(name))

    def describe_match(self, name: str) -> str:
        """Describe what a word names: a toggle, a PR, a family, a glob; '' if it is nothing."""
        chosen = self._match_name(name)
        count = format_count(len(chosen), "toggle")
        if not chosen or name in self._by_id or name in self.proposed:
            return "a toggle" if chosen else ""
        if any(toggle.family == name for toggle in chosen):
            return f"a family of {count}"
        return f"a PR with {count}" if name.isdigit() else f"a glob for {count}"

    def select(self, name: str) -> list[Toggle]:
        """Select toggles by a word: an id, a PR with several toggles, a family, a glob."""
        chosen = self._match_name(name)
        if not chosen:
            raise UnknownToggleError(self._describe_unknown(name))
        return chosen

    def _match_name(self, name: str) -> list[Toggle]:
        for known in (self._by_id, self.proposed):
            if name in known:
                return [known[name]]
        parts = [t for t in self if t.id.startswith(f"{name}-")] if name.isdigit() else []
        return parts or [t for t in self if t.family == name or fnmatchcase(t.id, name)]

    def select_all(self, names: Iterable[str]) -> list[Toggle]:
        return list(dict.fromkeys(toggle for name in names for toggle in self.select(name)))

    def select_or_all(self, names: Sequence[str]) -> list[Toggle]:
        return self.select_all(names) if names else list(self)

    def guess_family(self, targets: Sequence[CodeTarget]) -> str:
        """Guess the family: that of a toggle of the function or module, or the module's name."""
        known = [(t, toggle.family) for toggle in self for v in toggle.variants for t in v.targets]
        for target in targets:
            for known_target, family in known:
                if target == known_target:
                    return family
        modules = {target.module for target in targets}
        for known_target, family in known:
            if known_target.module in modules:
                return family
        return re.sub(r"\W+", "_", targets[-1].module.rpartition(".")[2].strip("_").lower())

    def _describe_unknown(self, name: str) -> str:
        known = dict.fromkeys([*self._by_id, *self.proposed, *(toggle.family for toggle in self)])
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"; near it: {', '.join(near)}" if near else ""
        return (
            f"no toggle is called '{name}'{hint}; one is named by its id, its PR, its family or a "
            f"glob, and `unfix list` shows all {len(self)}"
        )


def load_catalogue(folders: Iterable[Path] = ()) -> ToggleCatalogue:
    """Load the project's own toggles and those of the folders named on the command line.

    The cache is keyed by a file's bytes: parsing one file takes milliseconds, and most processes
    of a run load the whole registry.
    """
    cache: DiskCache[Toggle] = DiskCache("registry", Toggle, FIXES_CODE_DIGEST)
    toggles, proposed_ids = [], find_proposed_files()
    for path in find_toggle_files(folders).values():
        key = compute_digest(path.stem, path.read_bytes())
        toggles.append(cache.get(key) or cache.put(key, read_toggle(path)))
    cache.save()
    proposed = [toggle for toggle in toggles if toggle.id in proposed_ids]
    return ToggleCatalogue((t for t in toggles if t.id not in proposed_ids), proposed)


def find_proposed_files() -> dict[str, Path]:
    """Find the files of the project's proposed toggles, by id."""
    return {path.stem: path for path in sorted(paths.proposed_folder().glob("*.yaml"))}


def find_toggle_files(folders: Iterable[Path] = ()) -> dict[str, Path]:
    """Find the file of each toggle, by its id."""
    found: dict[str, Path] = {}
    proposed = [paths.proposed_folder()] if paths.proposed_folder().is_dir() else []
    own = [paths.toggles_folder(), *proposed]
    further = [one for one in folders if one.resolve() not in {folder.resolve() for folder in own}]
    for folder in (*own, *further):
        if not folder.is_dir():
            raise UnfixError(f"there is no folder of toggles at {folder}")
        for stray in folder.glob("*.yml"):
            raise UnfixError(f"{stray} would not be read: a toggle file ends in .yaml")
        for path in sorted(folder.glob("*.yaml"), key=_make_natural_key):
            if not path.is_file():  # a named pipe would be waited for
                raise UnfixError(f"{path} is no file")
            if path.stem in found:
                raise UnfixError(f"two files hold toggle '{path.stem}': {found[path.stem]}, {path}")
            found[path.stem] = path
    return found | {path.stem: path for path in list_mended_files() if path.stem in found}


def list_mended_files() -> list[Path]:
    """List the files that replace those of toggles that are stale on a release of this run."""
    folder = os.environ.get(MENDED_VARIABLE)
    return sorted(Path(folder).glob("*.yaml")) if folder else []


def _make_natural_key(path: Path) -> tuple[int, str]:
    number = path.stem.partition("-")[0]
    return (int(number) if number.isdigit() else 10**9, path.stem)
