"""All toggles of the folders that were named, found by id, PR number, family or glob."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
import packaging
import yaml

from harness import lined_yaml, paths
from harness.errors import UnfixError, UnknownToggle
from harness.registry import files as reading
from harness.registry import schema
from harness.registry.files import read_toggle
from harness.registry.schema import Target, Toggle
from harness.remembered import Remembered, code_of, digest
from harness.syntax import patterns, scopes

READ_BY = code_of(
    *(reading, lined_yaml, schema, patterns, scopes),
    versions=(yaml.__version__, msgspec.__version__, packaging.__version__, patterns.MATCHER),
)


class Catalogue:
    """The toggles at hand, by id."""

    def __init__(self, toggles: Iterable[Toggle]) -> None:
        self._by_id = {toggle.id: toggle for toggle in toggles}

    def __iter__(self) -> Iterator[Toggle]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def knows(self, name: str) -> bool:
        return bool(self._chosen(name))

    def select(self, name: str) -> list[Toggle]:
        """The toggles a word stands for: an id, a PR made of several parts, a family, a glob."""
        chosen = self._chosen(name)
        if not chosen:
            raise UnknownToggle(self._unknown(name))
        return chosen

    def _chosen(self, name: str) -> list[Toggle]:
        if name in self._by_id:
            return [self._by_id[name]]
        parts = [t for t in self if t.id.startswith(f"{name}-")] if name.isdigit() else []
        return parts or [t for t in self if t.family == name or fnmatchcase(t.id, name)]

    def select_all(self, names: Iterable[str]) -> list[Toggle]:
        return list(dict.fromkeys(toggle for name in names for toggle in self.select(name)))

    def select_or_all(self, names: Sequence[str]) -> list[Toggle]:
        return self.select_all(names) if names else list(self)

    def family_of(self, targets: Sequence[Target]) -> str:
        """The family of the toggles of that function, or of that module; else the module's name."""
        known = [(t, toggle.family) for toggle in self for v in toggle.variants for t in v.targets]
        for target in targets:
            for other, family in known:
                if target == other:
                    return family
        modules = {target.module for target in targets}
        for other, family in known:
            if other.module in modules:
                return family
        return re.sub(r"\W+", "_", targets[-1].module.rpartition(".")[2].strip("_").lower())

    def _unknown(self, name: str) -> str:
        known = dict.fromkeys([*self._by_id, *(toggle.family for toggle in self)])
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"; near it: {', '.join(near)}" if near else ""
        return (
            f"no toggle is called '{name}'{hint}; one is named by its id, its PR, its family or a "
            f"glob, and `unfix list` shows all {len(self)}"
        )


def load(folders: Iterable[Path] = ()) -> Catalogue:
    """The project's own toggles and those of the folders named on the command line.

    A file that was read before is known by its bytes: parsing it takes milliseconds, and most of
    the processes of a run want the whole registry.
    """
    known: Remembered[Toggle] = Remembered("registry", Toggle, READ_BY)
    toggles = []
    for path in files(folders).values():
        key = digest(path.stem, path.read_bytes())
        toggles.append(known.get(key) or known.put(key, read_toggle(path)))
    known.keep()
    return Catalogue(toggles)


def files(folders: Iterable[Path] = ()) -> dict[str, Path]:
    """The file of each toggle, by its id."""
    found: dict[str, Path] = {}
    for folder in (paths.toggles(), *folders):
        if not folder.is_dir():
            raise UnfixError(f"there is no folder of toggles at {folder}")
        for stray in folder.glob("*.yml"):
            raise UnfixError(f"{stray} would not be read: a toggle file ends in .yaml")
        for path in sorted(folder.glob("*.yaml"), key=_natural):
            if path.stem in found:
                raise UnfixError(f"two files hold toggle '{path.stem}': {found[path.stem]}, {path}")
            found[path.stem] = path
    return found


def _natural(path: Path) -> tuple[int, str]:
    number = path.stem.partition("-")[0]
    return (int(number) if number.isdigit() else 10**9, path.stem)
