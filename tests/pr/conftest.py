"""A checkout of a few files, and a toggle whose fix is in one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkouts import SglangCheckout
from fixture_types import Patch
from made_up_toggle import TOGGLE
from reviewed_files import PROJECT, ROWS
from touched_runs import LARGE, SMALL, PlayedRehearsals

from harness.cli.pr import item_parts
from harness.core import paths
from harness.fixes.registry import toggle_catalogue
from harness.releases import managed_releases
from harness.runs.pr import touched_items
from harness.runs.rehearse.deployment import read_deployments
from harness.store.database import Store


@pytest.fixture
def toggles(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder of its own for releases and runs, and one with a toggle."""
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(toggle_catalogue.MENDED_VARIABLE, raising=False)
    (tmp_path / "home" / ".unfix").mkdir(parents=True)
    folder = tmp_path / "toggles"
    folder.mkdir()
    (tmp_path / "no toggles").mkdir()
    (folder / "made-up.yaml").write_text(TOGGLE)
    monkeypatch.setattr(paths, "toggles_folder", lambda: tmp_path / "no toggles")
    monkeypatch.setattr(managed_releases, "list_releases", lambda device="cpu": [])
    return folder


@pytest.fixture
def checkout(tmp_path: Path, toggles: Path) -> SglangCheckout:
    """A checkout whose only commit is tagged v0.5.23, with the fix in it."""
    checkout = SglangCheckout(tmp_path / "sglang")
    (checkout.folder / "python").mkdir()
    (checkout.folder / "python" / "pyproject.toml").write_text(PROJECT)
    user = "from sglang.srt.rows import WIDTH\n\n\ndef get_width():\n    return WIDTH\n"
    checkout.commit({"__init__.py": "", "srt/rows.py": ROWS, "srt/user.py": user})
    checkout.git("tag", "v0.5.23")
    return checkout


@pytest.fixture
def store(tmp_path: Path, monkeypatch: Patch) -> Store:
    """A store without runs, beside an unfix without records."""
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(touched_items, "find_record", lambda kind: None)
    known = read_deployments()
    monkeypatch.setattr(
        item_parts, "read_deployments", lambda: {name: known[name] for name in (SMALL, LARGE)}
    )
    return Store()


@pytest.fixture
def rehearsals(store: Store, monkeypatch: Patch) -> PlayedRehearsals:
    return PlayedRehearsals(store, monkeypatch)
