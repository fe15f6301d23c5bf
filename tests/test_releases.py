"""Managed releases as files and folders: complete or refused, and never used otherwise.

Here pip is a function that installs a few bytes; `test_release_environments.py` tests the real
ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_releases import (
    ADD,
    VERSION,
    FakePip,
    read_refusal,
    refusal_of_add,
    rewrite_mark,
    state_of,
)
from fixture_types import Output, Patch

from harness.cli.main import main
from harness.core.errors import NotReadyError
from harness.releases import installer, managed_releases, source_trees
from harness.releases.managed_releases import COMPLETION_MARKER, Release

SPOILED: dict[str, tuple[str, Callable[[Release], object]]] = {
    "no mark": ("incomplete", lambda r: (r.folder / COMPLETION_MARKER).unlink()),
    "a mark cut short": ("outdated",
        lambda r: (r.folder / COMPLETION_MARKER).write_text('{"lock":')),
    "another lock": ("outdated", lambda r: rewrite_mark(r.folder, lock="0")),
    "another python": ("outdated", lambda r: (r.folder / "lib").rename(r.folder / "lib3.1")),
    "a python that is gone": ("outdated", lambda r: r.python.unlink()),
    "another unfix_start": ("outdated", lambda r: rewrite_mark(r.folder, start="0")),
    "half a base": ("outdated",
        lambda r: (managed_releases.CPU_BASE.folder / COMPLETION_MARKER).unlink()),
    "another base": ("outdated", lambda r: rewrite_mark(managed_releases.CPU_BASE.folder, lock="0")
        ),
    "no base": ("outdated", lambda r: shutil.rmtree(managed_releases.CPU_BASE.folder)),
}  # fmt: skip


def test_a_release_is_added_whole(release: Release, pip: FakePip, capsys: Output) -> None:
    assert state_of(release, capsys) == "yes"
    assert str(release.open_sources().version) == VERSION
    done = len(pip.calls)
    assert main(["releases", "add", VERSION]) == 0
    assert len(pip.calls) == done


@pytest.mark.parametrize("spoiled", SPOILED)
def test_damaged_releases_are_reinstalled(release: Release, spoiled: str, capsys: Output) -> None:
    state, spoil = SPOILED[spoiled]
    (release.folder / "left-over").touch()
    spoil(release)
    assert state_of(release, capsys) == state
    assert main(["doctor", "--json"]) == 3
    found = {line["name"]: line for line in json.loads(capsys.readouterr().out)}
    assert found[f"release {VERSION}"] == {
        "name": f"release {VERSION}", "ok": False, "found": f"{state}: {ADD}"
    }  # fmt: skip
    assert main(["exec", "--release", VERSION, "--", "true"]) == 0
    assert state_of(release, capsys) == "yes"
    not_reinstalled = ("another unfix_start", "half a base", "another base", "no base")
    assert (release.folder / "left-over").exists() == (spoiled in not_reinstalled)


def test_a_failed_installation_is_incomplete(
    pip: FakePip, monkeypatch: Patch, capsys: Output
) -> None:
    release = managed_releases.get_release(VERSION)

    def fail_in_the_release(words: list[str]) -> None:
        if str(release.python) in words:
            raise NotReadyError("the disk is full")
        pip(words)

    monkeypatch.setattr(installer, "run_pip", fail_in_the_release)
    assert refusal_of_add(capsys) == (3, "unfix: the disk is full")
    assert state_of(release, capsys) == "incomplete"
    monkeypatch.setattr(installer, "run_pip", pip)
    assert main(["releases", "add", VERSION]) == 0
    assert state_of(release, capsys) == "yes"


def test_an_unknown_version_names_the_known_ones(pip: FakePip, capsys: Output) -> None:
    for words in (["releases", "remove", "9.9.9"], ["exec", "--release", "9.9.9", "--", "true"]):
        code, message = read_refusal(words, capsys)
        assert code == 2
        assert "9.9.9" in message
        for release in managed_releases.list_releases():
            assert release.name in message
    assert pip.calls == []


TRUE = ["--", "true"]
NEWEST = managed_releases.get_newest_release().name


@pytest.fixture
def nothing_here(pip: FakePip, monkeypatch: Patch) -> FakePip:
    """A fresh clone: the toy release on these tests' path does not count."""
    monkeypatch.setattr(source_trees, "find_installed_tree", lambda: None)
    return pip


FETCHING: dict[str, tuple[list[str], str]] = {
    "exec": (["exec", "--release", VERSION, *TRUE],
             f"installing SGLang {VERSION} (2.6 GB, with torch)"),
    "show": (["show", "27460", "--release", VERSION],
             f"fetching the sources of SGLang {VERSION} (15 MB)"),
    "show of the newest": (["show", "27460"], f"fetching the sources of SGLang {NEWEST} (15 MB)"),
    "list of one": (["list", "27460", "--release", VERSION],
                    f"fetching the sources of SGLang {VERSION} (15 MB)"),
    "drift": (["drift", "27460"], "fetching the sources of 11 releases (165 MB)"),
    "drift of one": (["drift", "27460", "--release", VERSION],
                     f"fetching the sources of SGLang {VERSION} (15 MB)"),
    "bisect": (["bisect", "toggles", "27460", "--release", VERSION, "--dry-run", *TRUE],
               f"fetching the sources of SGLang {VERSION} (15 MB)"),
}  # fmt: skip


@pytest.mark.parametrize("command", FETCHING)
def test_commands_fetch_what_they_lack(nothing_here: FakePip, command: str, capsys: Output) -> None:
    words, says = FETCHING[command]
    main(words)
    first = capsys.readouterr().err.splitlines()[0]
    assert first == f"unfix: {says}"
    assert nothing_here.downloads == (11 if command == "drift" else 1)
    main(words)
    assert "SGLang" not in capsys.readouterr().err.partition("unfix: fetching")[2]
    assert nothing_here.downloads == (11 if command == "drift" else 1)


@pytest.mark.parametrize("command", FETCHING)
def test_no_network_gives_one_sentence(
    nothing_here: FakePip, command: str, monkeypatch: Patch, capsys: Output
) -> None:
    def no_network(words: list[str]) -> None:
        raise NotReadyError("the package index cannot be reached")

    monkeypatch.setattr(installer, "run_pip", no_network)
    words, _ = FETCHING[command]
    code = main(words)
    message = capsys.readouterr()
    if command == "show of the newest":  # its history needs no release
        assert (code, "states are left out" in message.err) == (0, True)
        return
    assert (code, message.out) == (3, "")
    assert message.err.splitlines()[-1] == "unfix: the package index cannot be reached"


def test_the_list_of_toggles_fetches_nothing(nothing_here: FakePip, capsys: Output) -> None:
    assert main(["list"]) == 0
    assert "states are left out" in capsys.readouterr().err
    assert nothing_here.calls == []


def test_states_are_known_while_the_base_is_being_renewed(release: Release, capsys: Output) -> None:
    assert main(["releases", "add", release.name]) == 0
    (release.base.folder / managed_releases.COMPLETION_MARKER).unlink()
    for wheel in release.list_wheels():
        wheel.unlink()
    assert not release.is_ready
    assert managed_releases.find_default_release() == release


def test_a_full_disk_is_refused_first(pip: FakePip, monkeypatch: Patch, capsys: Output) -> None:
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**40, 2**40 - 2**30, 2**30))
    code, message = read_refusal(["releases", "add", VERSION], capsys)
    assert (code, "needs 5" in message, pip.calls) == (3, True, [])


def test_an_unreachable_index_gives_one_line(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    closed = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull}
    for name, value in {**closed, "PIP_RETRIES": "0", "UNFIX_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    code = main(["releases", "add", "--sources", VERSION])
    message = capsys.readouterr().err.splitlines()
    assert (code, len(message)) == (3, 2)
    assert f"sglang=={VERSION}" in message[1]


def cut_short(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[: wheel.stat().st_size // 2])


def damage_wheel(wheel: Path) -> None:
    data = bytearray(wheel.read_bytes())
    data[60:70] = b"\xff" * 10
    wheel.write_bytes(data)


def empty_wheel(wheel: Path) -> None:
    wheel.write_bytes(b"")


@pytest.mark.parametrize("spoil", [cut_short, damage_wheel, empty_wheel])
def test_a_damaged_wheel_is_fetched_again(
    pip: FakePip, spoil: Callable[[Path], None], capsys: Output
) -> None:
    release = managed_releases.get_release(VERSION)
    assert main(["releases", "add", "--sources", VERSION]) == 0
    assert main(["releases", "add", "--sources", VERSION]) == 0
    assert pip.downloads == 1
    assert release.any_wheel is not None
    assert installer.is_whole_wheel(release.any_wheel)
    spoil(release.any_wheel)
    assert not installer.is_whole_wheel(release.any_wheel)
    assert main(["releases", "add", VERSION]) == 0
    assert "is damaged" in capsys.readouterr().err
    assert (pip.downloads, installer.is_whole_wheel(release.any_wheel)) == (2, True)
    assert release.is_ready


def test_a_wheel_that_comes_cut_short_is_refused(pip: FakePip, capsys: Output) -> None:
    pip.cuts_short = True
    code, message = refusal_of_add(capsys)
    assert (code, "no undamaged wheel" in message) == (3, True)
    assert not managed_releases.get_release(VERSION).folder.exists()
    code, message = read_refusal(["show", "27460", "--release", VERSION], capsys)
    assert (code, "not a whole wheel" in message) == (3, True)


def test_two_calls_at_the_same_time_add_a_release_once(pip: FakePip) -> None:
    release = managed_releases.get_release(VERSION)
    pip.seconds = 0.3
    words = (release, lambda _: None)
    both = [threading.Thread(target=installer.install_release, args=words) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert (release.is_ready, pip.downloads) == (True, 1)


def test_a_surviving_pip_still_holds_the_lock(tmp_path: Path, monkeypatch: Patch) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nls -l /proc/self/fd > {tmp_path / 'open'}\n")
    python.chmod(0o755)
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(python))
    with installer.hold_install_lock():
        installer.run_pip(["install"])
    assert str(tmp_path / ".releases" / ".lock") in (tmp_path / "open").read_text()


def test_an_unwritable_folder_is_refused(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path / "file"))
    code, message = read_refusal(["releases", "add", VERSION], capsys)
    assert (code, str(tmp_path / "file") in message) == (3, True)


@pytest.mark.parametrize("place", ["base", "release"])
def test_a_real_package_precedes_its_stand_in(release: Release, place: str, capsys: Output) -> None:
    folder = managed_releases.CPU_BASE.folder if place == "base" else release.folder
    real = installer._find_site_packages(folder) / "sgl_kernel"
    words = [str(release.python), "-c", "import sgl_kernel; print(sgl_kernel.__file__)"]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(found).parent == installer.STANDINS / "sgl_kernel"
    real.mkdir()
    (real / "__init__.py").touch()
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(found).parent == real
    main(["doctor", "--json"])
    lines = {line["name"]: line["found"] for line in json.loads(capsys.readouterr().out)}
    assert lines["stand-in: sgl_kernel"] == f"{real} (real)"
    assert "refuses to be called" in lines["stand-in: flash_mla"]
