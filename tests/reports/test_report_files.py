"""The files of reports: a full disk is named, and runs that end at once share one index."""

from __future__ import annotations

import errno
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sample

from harness.cli.audit import execution
from harness.cli.main import main
from harness.core.files import write_atomically
from harness.core.outcomes import Verdict
from harness.runs.audit.findings import KernelAudit
from harness.runs.audit.release_audit import ReleaseAudit
from harness.store.database import Store
from harness.store.prove.table import ProveTable
from harness.store.prove.values import ProveRun
from reports.index import write_index
from reports.prove import page as prove_page
from reports.shared.page_facts import PageFacts


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    return tmp_path


def store_proofs(count: int) -> list[str]:
    store = Store()
    runs: list[ProveRun] = [
        msgspec.structs.replace(
            sample.make_empty_run(), id=f"run-{number}", command=["unfix", "prove"]
        )
        for number in range(count)
    ]
    for run in runs:
        ProveTable(store).begin(run)
    store.close()
    return [run.id for run in runs]


class FullDisk:
    """A disk without room, for the one file of this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.replace = os.replace

    def __call__(self, source: Any, target: Any) -> None:
        if Path(target).name == self.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.replace(source, target)


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "replace", FullDisk("full"))
    return tmp_path / "full"


def describe_refusal(file: Path) -> str:
    return (
        f"unfix: {file} cannot be written: No space left on device; free disk space there, "
        "or name a file on another disk"
    )


@pytest.mark.parametrize("option", ["--html", "--markdown", "--record", "--junit"])
def test_report_names_the_file_that_a_full_disk_refuses(
    option: str, full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_proofs(1)
    assert main(["report", option, str(full)]) == 3
    assert describe_refusal(full) in capsys.readouterr().err


def test_a_full_disk_leaves_the_old_page_and_is_named_with_the_new_ones_path(
    full: Path,
) -> None:
    full.write_text("old")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_atomically(full, "new")
    assert caught.value.filename == str(full)
    assert full.read_text() == "old"
    assert os.listdir(full.parent) == ["full"]


def test_a_link_stays_a_link_to_the_written_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_atomically(tmp_path / "link", "text")
    assert (tmp_path / "file").read_text() == "text"
    assert (tmp_path / "link").is_symlink()


def test_each_proof_has_a_page_of_its_own_and_the_index_lists_them_all(home: Path) -> None:
    for name in store_proofs(2):
        main(["report", name])
    folder = home / "reports" / "out"
    linked = re.findall(r'href="([^"]+)"', (folder / "index.html").read_text())
    assert sorted(linked) == ["prove-run-0.html", "prove-run-1.html"]
    assert all((folder / name).is_file() for name in linked)


def read_index_rows(folder: Path) -> list[list[str]]:
    """Return the cells of the index's rows as text."""
    text = (folder / "index.html").read_text().partition('id="pages"')[2]
    rows = re.findall("<tr>(.*?)</tr>", text, re.DOTALL)[1:]
    cells = [re.findall("<td.*?>(.*?)</td>", row, re.DOTALL) for row in rows]
    return [[re.sub(r"<[^>]*>", "", cell).strip() for cell in row] for row in cells]


def test_the_index_takes_verdicts_from_runs_and_not_from_titles(tmp_path: Path) -> None:
    """A title says "red", "RED", "stopped" or "0 faults", as its kind of run likes."""
    pages = {
        "first": PageFacts("red", True, "2026-01-01T00:00:00+00:00", "unfix rehearse one"),
        "second": PageFacts("green", False, "2026-01-02T00:00:00+00:00", "unfix prove 'a b'"),
        "third": PageFacts("stopped", True, "2026-01-03T00:00:00+00:00", "unfix bisect toggles"),
        "fourth": PageFacts("", False, "2026-01-04T00:00:00+00:00", "unfix kernels"),
    }
    for name, facts in pages.items():
        page = f'<head><title>{name}</title></head><div class="where" title="0.5.23 · cpu">'
        (tmp_path / f"{name}.html").write_text(facts.add_to_page(page))
    write_index(tmp_path)
    assert read_index_rows(tmp_path) == [
        ["", "2026-01-04 00:00:00 UTC", "fourth", "unfix kernels", "0.5.23 · cpu"],
        ["✕ stopped", "2026-01-03 00:00:00 UTC", "third", "unfix bisect toggles", "0.5.23 · cpu"],
        [
            "✓ green",
            "2026-01-02 00:00:00 UTC",
            "second",
            "unfix prove &#39;a b&#39;",
            "0.5.23 · cpu",
        ],
        ["✕ red", "2026-01-01 00:00:00 UTC", "first", "unfix rehearse one", "0.5.23 · cpu"],
    ]
    assert "4 pages: 2 red, 1 green" in (tmp_path / "index.html").read_text()


def test_a_page_names_the_toggles_of_a_proof_or_how_many_there_are() -> None:
    run = sample.one_release()
    for count, named in ((1, run.toggles[0].id), (len(run.toggles), f"{len(run.toggles)} toggles")):
        some = msgspec.structs.replace(run, toggles=run.toggles[:count])
        assert f" · {named} · cpu</div>" in prove_page.render_page(some)


def test_a_red_audit_is_red_in_the_index(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = KernelAudit("walk", "m", "a.py", 1, Verdict.SAFE, 0, ())
    audit = ReleaseAudit("0.5.23", (kernel,), "limits.yaml", 0)
    monkeypatch.setattr(execution, "_audit_requested_trees", lambda chosen: audit)
    monkeypatch.setattr(ReleaseAudit, "is_red", True)
    assert main(["audit", "--no-rehearsal"]) == 1
    assert [row[0] for row in read_index_rows(home / "reports" / "out")] == ["✕ red"]


def test_runs_that_end_at_once_all_stand_in_the_index(tmp_path: Path) -> None:
    def finish_run(number: int) -> None:
        (tmp_path / f"run-{number}.html").write_text(f"<title>green · {number}</title>")
        write_index(tmp_path)
        assert f"green · {number}" in (tmp_path / "index.html").read_text()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(finish_run, range(64)))
    assert len(re.findall("<a href", (tmp_path / "index.html").read_text())) == 64
