"""Toggles in CUDA sources: patched copies of them, and which modules include a patched one.

SGLang's files stay as they are. All C++ sources of its kernels are copied into a folder of
`.releases/cuda-builds/sources` that is named by their digest, with the patched texts in place of
the originals; a module whose sources include one of these is built from the copy. Any other module
is built from SGLang's own files, so it keeps its build.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core import paths
from harness.core.code_digest import compute_digest
from harness.core.cpp_tokens import CPP_SUFFIXES

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"]+)[>\"]", re.MULTILINE)
_PACKAGE = "sglang/"
_KERNELS = "sglang/kernels"
CountRun = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class CudaSite:
    """The place of a toggle in a patched text, and its counter."""

    first_line: int
    last_line: int
    slot: int


@dataclass(frozen=True)
class PatchedCudaSource:
    """One source under toggles; `path` begins with the package: 'sglang/kernels/jit/csrc/…'."""

    path: str
    digest: str  # of the original text
    text: str
    sites: tuple[CudaSite, ...]
    count_run: CountRun


def make_patched_source(
    path: str, digest: str, text: str, sites: Iterable[tuple[int, int, int]], count_run: CountRun
) -> PatchedCudaSource:
    """Make one of a plan's values; a site is its counter, its first and its last line."""
    placed = tuple(CudaSite(first, last, slot) for slot, first, last in sites)
    return PatchedCudaSource(path, digest, text, placed, count_run)


def attest_patched_source(module: Any, recorder: Any) -> PatchedCudaSource:
    """Make a source of a plan's patched module, whose edits the recorder counts by launches."""
    sites = []
    for site in module.sites:
        slot = recorder.assign_slot(site.toggle, site.direction, site.target)
        recorder.record_count_kinds({slot: "launches"})
        sites.append((slot, site.line, site.end_line))
    return make_patched_source(module.module, module.digest, module.text, sites, recorder.count_run)


class CudaSourcePatches:
    """The patched sources of this process; `generation` changes with them."""

    def __init__(self) -> None:
        self._sources: dict[str, PatchedCudaSource] = {}
        self.generation = 0

    def get(self, path: str) -> PatchedCudaSource | None:
        return self._sources.get(path)

    def set(self, path: str, source: PatchedCudaSource | None) -> None:
        if source is None:
            self._sources.pop(path, None)
        else:
            self._sources[path] = source
        self.generation += 1

    def select(self, included: Iterable[str]) -> tuple[PatchedCudaSource, ...]:
        """Return the patched ones among these paths, in order."""
        names = set(included) & self._sources.keys()
        return tuple(self._sources[name] for name in sorted(names))

    def __bool__(self) -> bool:
        return bool(self._sources)


PATCHES = CudaSourcePatches()


@dataclass(slots=True)
class CudaSourcePatch:
    """A patched source as a live patch: reads and writes its entry in PATCHES."""

    path: str
    new_state: Any

    @property
    def key(self) -> tuple[Any, ...]:
        return ("cuda source", self.path)

    def read(self) -> Any:
        return PATCHES.get(self.path)

    def write(self, state: Any) -> None:
        PATCHES.set(self.path, state)


def find_package_path(file: str) -> str:
    """Return a source's path from the package on; '' for one that is not SGLang's.

    A compiler names the file that it read, in site-packages or in a patched copy.
    """
    _, found, rest = file.rpartition(f"/{_PACKAGE}")
    return f"{_PACKAGE}{rest}" if found else ""


def find_included_files(files: Iterable[Path], folders: Iterable[Path]) -> set[Path]:
    """Find all files that these include, and themselves; folders are searched in order.

    Conditions of the preprocessor are not evaluated: both branches count.
    """
    searched = list(folders)
    waiting, found = [file.resolve() for file in files], set[Path]()
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        for name in _INCLUDE.findall(file.read_text(errors="replace")):
            candidates = [file.parent / name, *(folder / name for folder in searched)]
            existing = next((one for one in candidates if one.is_file()), None)
            if existing is not None:
                waiting.append(existing.resolve())
    return found


def make_patched_tree(site_packages: Path, sources: Iterable[PatchedCudaSource]) -> Path:
    """Return a folder with all C++ sources of SGLang's kernels, some of them patched."""
    texts = {source.path: source.text for source in sources}
    # A link to `.releases` is resolved: checkouts that share it build a toggled module once.
    builds = paths.cuda_builds_folder().resolve()
    folder = builds / "sources" / _digest_tree(site_packages, texts)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    copy = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".copy-"))
    try:
        for name, content in _read_sources(site_packages).items():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        for path, text in texts.items():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            (copy / path).write_text(text, encoding="utf-8")
        copy.chmod(0o755)
        os.rename(copy, folder)
    except OSError:
        shutil.rmtree(copy, ignore_errors=True)
        if not folder.is_dir():  # otherwise another process has made the same folder
            raise
    return folder


def _digest_tree(site_packages: Path, texts: Mapping[str, str]) -> str:
    parts: list[str | bytes] = []
    for name, content in _read_sources(site_packages).items():
        parts += [name, texts.get(name) or content]
    return compute_digest(*parts)


@functools.lru_cache(maxsize=1)
def _read_sources(site_packages: Path) -> dict[str, bytes]:
    """Read all sources by their names in order; 5 MB, read once in a process.

    What is copied under a digest is what the digest was computed from, whatever changes on disk.
    """
    files = (site_packages / _KERNELS).rglob("*")
    sources = sorted(file for file in files if file.suffix in CPP_SUFFIXES and file.is_file())
    return {file.relative_to(site_packages).as_posix(): file.read_bytes() for file in sources}
