"""A run on a release imports that release's SGLang, or ends and says what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from fixture_types import Patch

from harness.core.errors import NotReadyError
from harness.patching import import_origins
from harness.patching.child_environment import STARTUP_FOLDER, ChildEnvironment
from harness.releases import managed_releases
from harness.releases.managed_releases import Release
from harness.workers.answering_process import iterate_answers


def write_package(folder: Path, name: str = "sglang") -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(f"print('imported {folder.name}')\n")
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return write_package(tmp_path / "another")


@pytest.fixture
def release(tmp_path: Path, monkeypatch: Patch) -> Release:
    """An installed release, with its own SGLang."""
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path / "home"))
    found = Release("0.5.23")
    write_package(found.folder / "lib" / "python3.11" / "site-packages")
    write_package(found.base.folder / "lib" / "python3.11" / "site-packages", "triton")
    return found


@pytest.mark.parametrize("package", import_origins.PACKAGES)
def test_another_package_on_the_path_is_refused_before_a_process_starts(
    package: str, release: Release, tmp_path: Path, monkeypatch: Patch
) -> None:
    other = write_package(tmp_path / "path", package)
    ChildEnvironment().require_release(release.python)
    monkeypatch.setenv("PYTHONPATH", str(other))
    with pytest.raises(NotReadyError, match=f"{package} would be imported from {other}, which is"):
        ChildEnvironment().require_release(release.python)


def test_the_releases_own_folders_may_be_on_the_path(release: Release, monkeypatch: Patch) -> None:
    own = [str(each.site_packages) for each in (release, release.base)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(own))
    ChildEnvironment().require_release(release.python)


def test_a_checkout_on_the_path_is_the_current_sglang(checkout: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(checkout))
    monkeypatch.syspath_prepend(str(checkout))
    monkeypatch.delitem(sys.modules, "sglang", raising=False)  # of an earlier test
    environment = ChildEnvironment()
    environment.require_release(sys.executable)
    name, folders = json.loads(environment[import_origins.ORIGINS_VARIABLE])
    assert (name, folders) == ("current", {"sglang": [str(checkout)]})


def run_code(
    code: str, release: Release, *path: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    folders = managed_releases.find_import_folders(release.python)
    environment: dict[str, str] = {}
    import_origins.require_origins(environment, release.name, folders)
    own = [str(release.site_packages)]
    environment |= {**os.environ, **environment, **more}
    environment["PYTHONPATH"] = os.pathsep.join([str(STARTUP_FOLDER), *map(str, path), *own])
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_process_that_imports_another_one_ends_and_names_it(
    release: Release, checkout: Path
) -> None:
    done = run_code("import sglang; print('went on')", release, checkout)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert f"sglang would be imported from {checkout}, which is no folder of SGLang" in done.stderr


def test_a_path_that_the_program_changes_is_seen_and_so_is_a_child(
    release: Release, checkout: Path
) -> None:
    late = f"import sys; sys.path.insert(0, {str(checkout)!r}); import sglang"
    assert run_code(late, release).returncode == 3
    child = (
        "import subprocess, sys; "
        f"sys.exit(subprocess.run([sys.executable, '-c', {late!r}]).returncode)"
    )
    assert run_code(child, release).returncode == 3


def test_a_process_with_the_releases_own_goes_on(release: Release) -> None:
    done = run_code("import sglang; print('went on')", release)
    assert (done.returncode, done.stdout) == (0, "imported site-packages\nwent on\n"), done.stderr


def test_a_proof_of_a_release_under_another_path_ends_with_3(checkout: Path) -> None:
    newest = managed_releases.find_default_release()
    if newest is None or not newest.is_ready:
        pytest.skip("n/a: no release is installed")
    done = forked.call_unfix("prove", "27460", "--release", newest.name, PYTHONPATH=str(checkout))
    assert done.returncode == 3, done.stderr
    assert f"sglang would be imported from {checkout}" in done.stderr
    assert "proven" not in done.stdout + done.stderr


@pytest.fixture
def base(release: Release) -> Path:
    """The base's Python: it answers its PYTHONPATH, and what it would import from its folder."""
    python = release.base.python
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    return python


def test_an_audit_reads_kernels_by_the_bases_packages_alone(
    base: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    other = write_package(tmp_path / "path", "triton")
    monkeypatch.setenv("PYTHONPATH", str(other))
    with pytest.raises(NotReadyError, match=f"triton would be imported from {other}, which is"):
        list(iterate_answers(base, "harness.core.wording", b"", ChildEnvironment()))


def test_an_audit_imports_nothing_of_its_working_folder(
    base: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    (write_package(tmp_path / "here", "asked") / "asked" / "__main__.py").write_text("print(1)")
    monkeypatch.chdir(tmp_path / "here")
    assert list(iterate_answers(base, "asked", b"", ChildEnvironment())) == []
