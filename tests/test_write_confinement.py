"""A confined process writes below its folders and nowhere else, and so do its descendants."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core import cache, write_confinement
from harness.core.child_process import call_in_fork
from harness.core.code_digest import compute_digest

pytestmark = pytest.mark.skipif(
    not write_confinement.can_confine(), reason="n/a: this kernel has no Landlock"
)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own / "inside", other):
        folder.mkdir(parents=True)
    (other / "file").write_text("as it was")
    return own, other


def is_refused(write: Callable[[], object], own: Path) -> bool:
    """Return whether a confined process may not do this; it must be possible without."""

    def try_confined() -> bool:
        write_confinement.confine_writes([own, Path("/dev/null")])
        try:
            write()
        except PermissionError:
            return True
        return False

    refused = call_in_fork(try_confined)
    assert refused is not None, "the process died"
    return bool(refused)


WRITES: dict[str, Callable[[Path], object]] = {
    "new file": lambda folder: (folder / "new").write_text("x"),
    "known file": lambda folder: (folder / "file").write_text("x"),
    "appended": lambda folder: os.open(folder / "file", os.O_WRONLY | os.O_APPEND),
    "truncated": lambda folder: os.truncate(folder / "file", 0),
    "folder": lambda folder: (folder / "folder").mkdir(),
    "link": lambda folder: (folder / "link").symlink_to("x"),
    "pipe": lambda folder: os.mkfifo(folder / "pipe"),
    "removed": lambda folder: (folder / "file").unlink(),
    "moved": lambda folder: (folder / "file").rename(folder / "elsewhere"),
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_confined_process_writes_below_its_folders_alone(
    folders: tuple[Path, Path], kind: str
) -> None:
    own, other = folders
    (own / "file").write_text("as it was")
    assert is_refused(lambda: WRITES[kind](other), own)
    assert [file.name for file in other.iterdir()] == ["file"]
    assert (other / "file").read_text() == "as it was"
    assert not is_refused(lambda: WRITES[kind](own), own)


def test_it_reads_everywhere_and_moves_files_inside(folders: tuple[Path, Path]) -> None:
    own, other = folders

    def read_and_move() -> None:
        (own / "copy").write_text((other / "file").read_text())
        (own / "copy").rename(own / "inside" / "copy")
        Path("/dev/null").write_text("nothing")

    assert not is_refused(read_and_move, own)
    assert (own / "inside" / "copy").read_text() == "as it was"


def test_its_descendants_are_confined(folders: tuple[Path, Path]) -> None:
    own, other = folders
    program = f"open({str(other / 'new')!r}, 'w')"

    def start() -> None:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        if "PermissionError" in done.stderr:
            raise PermissionError(done.stderr)

    assert is_refused(start, own)
    assert not (other / "new").exists()


@pytest.mark.parametrize("key", ["ab" * 32, compute_digest("a prompt")], ids=["whole", "short"])
def test_entries_of_a_cache_are_shared_once_their_process_has_ended(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    own = tmp_path / "own"
    computed: list[int] = []

    def compute() -> int:
        computed.append(1)
        return 42

    def compute_twice() -> list[int]:
        write_confinement.confine_writes([own])
        cache.write_below(own)
        return [cache.get_or_compute("graphs", key, compute) for _ in range(2)] + computed

    own.mkdir()
    assert call_in_fork(compute_twice) == [42, 42, 1], "its own entry is found again"
    assert not cache.is_cached("graphs", key)
    (own / "graphs" / key[:2] / "a counter").write_text("x")
    cache.adopt_entries(own, ["accesses"])
    assert not cache.is_cached("graphs", key)
    cache.adopt_entries(own, ["graphs"])
    assert cache.is_cached("graphs", key)
    assert cache.get_or_compute("graphs", key, compute) == 42
    assert computed == []
    shared = tmp_path / ".unfix" / "kernels" / "graphs" / key[:2]
    assert [file.name for file in shared.iterdir()] == [key], "what is no entry stays behind"


@pytest.mark.skipif(
    not write_confinement.can_make_namespaces(), reason="n/a: no namespaces can be made here"
)
def test_a_bound_folder_is_at_its_place_for_one_process_alone(folders: tuple[Path, Path]) -> None:
    """Its confinement and shared memory of its own hold there as well."""
    own, place = folders

    def write_at_place() -> list[str]:
        write_confinement.bind_folder(own, place)
        write_confinement.isolate_shared_memory()
        write_confinement.confine_writes([place])
        (place / "inside" / "new").write_text("x")
        with pytest.raises(PermissionError):
            (place.parent / "new").write_text("x")
        return [str(file.relative_to(place)) for file in sorted(place.rglob("*"))]

    assert call_in_fork(write_at_place) == ["inside", "inside/new"]
    assert (own / "inside" / "new").read_text() == "x"
    assert [file.name for file in place.iterdir()] == ["file"]
