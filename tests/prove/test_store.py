"""The store: consistent at every moment, shared by several, and honest when it is unusable."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
from functools import partial
from pathlib import Path

import msgspec
import pytest
from calling import PATIENCE_SECONDS
from proving import Prove

from harness.cli.run_lookup import merge_store
from harness.core.child_process import call_in_fork, fork_process
from harness.core.errors import NotReadyError, UnfixError
from harness.core.outcomes import Outcome, RunStatus, Verdict
from harness.store import writer_process
from harness.store.database import Store
from harness.store.fuzz.table import FuzzTable
from harness.store.fuzz.values import FuzzRun
from harness.store.prove.joined_runs import join_runs
from harness.store.prove.table import ProveTable
from harness.store.prove.values import CellResult, ProveRun, ReleaseFacts, SideResult, ToggleFacts

PROVEN = "@guards('toy-plain')\ndef test_{}():\n    assert not buggy()\n"


def make_cell(guard: str = "t.py::test_a", verdict: Verdict | None = None) -> CellResult:
    return CellResult(guard, "27460", "0.5.18", "cpu", "fixed", verdict)


def make_run(
    name: str = "20260101-000000-aaaa", started: str = "2026-01-01T00:00:00+00:00"
) -> ProveRun:
    facts = [ToggleFacts("27460", "a title", "kv_indices", "out-of-bounds", [27460])]
    return ProveRun(name, "prove", started, command=["unfix", "prove"], toggles=facts)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "runs.sqlite"


def fill_store(store: Store, some: ProveRun, *cells: CellResult) -> None:
    ProveTable(store).begin(some)
    ProveTable(store).save_release(some.id, ReleaseFacts("0.5.18", "cpu", {"torch": "2.13.0"}))
    ProveTable(store).save_planned_cells(some.id, cells)


def test_a_written_run_is_read_again(file: Path) -> None:
    store = Store(file)
    done = make_cell()
    fill_store(store, make_run(), done, make_cell("t.py::test_b"))
    done.sides = {
        "fixed": SideResult("fixed", Outcome.PASSED, 1.5, reach=3),
        "buggy": SideResult("buggy", Outcome.FAILED, headline="x", example=["a", "</script>"]),
    }
    for side in done.sides.values():
        ProveTable(store).save_side(make_run().id, done, side)
    done.verdict, done.why = Verdict.PROVEN, "x"
    ProveTable(store).save_verdict(make_run().id, done)
    ProveTable(store).save(
        msgspec.structs.replace(make_run(), status=RunStatus.FINISHED, seconds=7.0)
    )
    read = ProveTable(Store(file)).get("2026")
    assert read.cells == [done, make_cell("t.py::test_b")]
    assert (read.status, read.seconds, read.counts) == (
        "finished",
        7.0,
        {"proven": 1, "missing": 1},
    )
    assert read.releases[0].versions == {"torch": "2.13.0"}
    assert not read.green


def test_a_full_disk_is_said_and_loses_nothing(file: Path) -> None:
    store = Store(file)
    fill_store(store, make_run(), make_cell())
    pages = store.db.execute("PRAGMA page_count").fetchone()[0]
    store.db.execute(f"PRAGMA max_page_count = {pages}")
    big = SideResult("fixed", Outcome.FAILED, detail="x" * 100_000)
    with pytest.raises(NotReadyError, match="full"):
        ProveTable(store).save_side(make_run().id, make_cell(), big)
    store.db.execute(f"PRAGMA max_page_count = {pages + 1000}")
    assert ProveTable(store).get(make_run().id).cells == [make_cell()]
    ProveTable(store).save_side(make_run().id, make_cell(), big)


@pytest.mark.parametrize("length", [0, 1, 100, 4096, 6000])
def test_a_truncated_file_is_refused_or_empty(file: Path, length: int) -> None:
    store = Store(file)
    fill_store(store, make_run(), *(make_cell(f"t.py::test_{number}") for number in range(500)))
    store.close()
    os.truncate(file, length)
    if length == 0:  # as if it had never existed
        assert ProveTable(Store(file)).list_runs() == []
        return
    with pytest.raises(NotReadyError, match=r"runs\.sqlite"):
        ProveTable(Store(file)).get("2026")
    assert file.stat().st_size == length, "what is left of it stays for whoever can mend it"


def test_a_locked_store_is_waited_for_and_then_said(file: Path) -> None:
    store = Store(file, lock_timeout=0.1)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(NotReadyError, match="locked"):
            ProveTable(store).begin(make_run())
        other.execute("COMMIT")
    ProveTable(store).begin(make_run())


def test_a_store_that_may_only_be_read_is_said() -> None:
    # Only its owner may enter pytest's own folder.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "runs.sqlite"
        Store(file).close()
        file.chmod(0o444)
        file.parent.chmod(0o555)

        def write_as_another_user() -> str:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            store = Store(file)
            assert ProveTable(store).list_runs() == []
            with pytest.raises(NotReadyError) as error:
                ProveTable(store).begin(make_run())
            return str(error.value)

        assert "readonly" in call_in_fork(write_as_another_user)
        file.parent.chmod(0o755)


def test_several_write_at_once(file: Path) -> None:
    """Eight processes, each a run of forty cells."""

    def write_cells(name: str) -> None:
        store = Store(file)
        fill_store(store, make_run(name))
        for index in range(40):
            each = make_cell(f"t.py::test_{index}", Verdict.PROVEN)
            ProveTable(store).save_planned_cells(name, [each])
            ProveTable(store).save_verdict(name, each)

    writers = [fork_process(partial(write_cells, f"run-{number}")) for number in range(8)]
    assert [writer.reap() for writer in writers] == [0] * 8
    store = Store(file)
    assert [len(ProveTable(store).get(f"run-{number}").cells) for number in range(8)] == [40] * 8


def test_a_run_whose_process_is_gone_counts_as_stopped(file: Path) -> None:
    call_in_fork(lambda: ProveTable(Store(file)).begin(make_run()))
    store = Store(file)
    assert ProveTable(store).find_latest().status == RunStatus.STOPPED
    ProveTable(store).begin(make_run("20260101-000001-bbbb", "2026-01-01T00:00:01"))
    assert ProveTable(store).find_latest().status == RunStatus.RUNNING


def test_a_process_is_known_by_its_number_and_its_start() -> None:
    assert writer_process.is_process_alive(writer_process.identify_this_process())
    boot, _, _, machine = writer_process.identify_this_process().split()
    assert not writer_process.is_process_alive(f"{boot} {os.getpid()} 1 {machine}")


def test_stores_merge_and_what_is_further_along_stays(tmp_path: Path) -> None:
    here, there = Store(tmp_path / "a"), Store(tmp_path / "b")
    for store, mine in ((here, None), (there, Verdict.PROVEN)):
        fill_store(store, make_run(), make_cell())
        if mine:
            ProveTable(store).save_verdict(make_run().id, make_cell(verdict=mine))
            ProveTable(store).save(msgspec.structs.replace(make_run(), status=RunStatus.FINISHED))
    fill_store(there, make_run("other"), make_cell("t.py::test_b"))
    assert set(merge_store(here, tmp_path / "b")) == {make_run().id, "other"}
    assert [c.verdict for c in ProveTable(here).get(make_run().id).cells] == [Verdict.PROVEN]
    assert ProveTable(here).get(make_run().id).status == RunStatus.FINISHED
    merge_store(there, tmp_path / "a")
    assert [c.verdict for c in ProveTable(there).get(make_run().id).cells] == [Verdict.PROVEN]
    with pytest.raises(UnfixError, match="no store"):
        merge_store(here, tmp_path / "c")


@pytest.mark.parametrize("run_id", ["../../x", "/tmp/x", "a/b", "..", "", "a\nb", "x" * 200])
def test_an_id_that_would_be_a_path_is_refused(tmp_path: Path, run_id: str) -> None:
    """The page of a run is named by its id, and a store may come from another machine."""
    other = tmp_path / "other.sqlite"
    fill_store(Store(other), make_run(run_id), make_cell())
    with pytest.raises(UnfixError, match="has a run with a wrong id"):
        ProveTable(Store(other)).list_runs()
    own = Store(tmp_path / "own.sqlite")
    with pytest.raises(UnfixError, match="has a run with a wrong id"):
        merge_store(own, other)
    assert ProveTable(own).list_runs() == []


def test_an_unfinished_run_is_taken_in_again_and_a_finished_one_stays(tmp_path: Path) -> None:
    def save(store: Store, status: RunStatus, *problems: str) -> None:
        started = "2026-01-01T00:00:00+00:00"
        FuzzTable(store).save(FuzzRun("fuzz-1", started, status=status, problems=list(problems)))

    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    for store, status, found in (
        (there, RunStatus.RUNNING, []),
        (there, RunStatus.STOPPED, ["it grew"]),
        (here, RunStatus.FINISHED, []),
    ):
        save(store, status, *found)
        merge_store(here, there.file)
        (run,) = FuzzTable(here).list_runs()
        assert (run.status, run.problems) == (status, found)


def test_runs_together_keep_the_later_verdict() -> None:
    early, late = make_run("a", "2026-01-01T00"), make_run("b", "2026-01-02T00")
    early.cells = [
        make_cell(verdict=Verdict.TOOTHLESS),
        make_cell("t.py::test_b", Verdict.PROVEN),
    ]
    late.cells = [make_cell(verdict=Verdict.PROVEN), make_cell("t.py::test_b")]
    found = join_runs([late, early])
    assert found.counts == {"proven": 2}


def test_a_newer_format_is_left_alone(file: Path) -> None:
    Store(file).db.execute("PRAGMA user_version = 99")
    with pytest.raises(NotReadyError, match="another version"):
        Store(file)


def test_two_runs_at_once_are_two_whole_runs(prove: Prove) -> None:
    prove.write("".join(PROVEN.format(f"guard_{number}") for number in range(2)))
    running = [prove.start("--json") for _ in range(2)]
    output = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    runs = [json.loads(text) for text in output]
    assert runs[0]["id"] != runs[1]["id"]
    assert [run["counts"] for run in runs] == [{"proven": 2}] * 2


def test_a_store_that_cannot_be_used_ends_a_run_at_once(prove: Prove) -> None:
    prove.write(PROVEN.format("it"))
    (prove.root / ".unfix").mkdir()
    (prove.root / ".unfix" / "runs.sqlite").write_text("no store at all\n" * 100)
    done = prove.run()
    assert done.returncode == 3
    assert "runs.sqlite cannot be used" in done.stderr
    assert (prove.root / ".unfix" / "runs.sqlite").read_text().startswith("no store")
    assert "Traceback" not in done.stderr
