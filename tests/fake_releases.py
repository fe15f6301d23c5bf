"""Managed releases of a few bytes, installed by the real `install` with a fake pip."""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path
from typing import Any

from fixture_types import Output, Patch
from packaging.requirements import Requirement
from packaging.version import Version

from harness.cli.main import main
from harness.core.errors import NotReadyError
from harness.releases import checkouts, installer, managed_releases
from harness.releases.managed_releases import COMPLETION_MARKER, Release

VERSION = "0.5.14"
ASKING = ("SGLANG_DEBUG_REVERT_PR", "SGLANG_DEBUG_ENABLE_PR")
ADD = f"unfix releases add {VERSION}"


class FakePip:
    """The parts of pip that `install` uses, over files of a few bytes."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.cuts_short = False
        self.seconds = 0.0
        # The index: SGLang's requirements by version, and other packages' by name and version.
        self.requirements: dict[str, list[str]] = {}
        self.index: dict[str, dict[str, list[str]]] = {}

    def __call__(self, words: list[str]) -> None:
        self.calls.append(words)
        if "--dry-run" in words:
            self.resolve(Path(words[words.index("--report") + 1]), words)
            return
        if "download" in words:
            self.download(Path(words[words.index("-d") + 1]), words[-1].partition("==")[2])
            return
        site = installer._find_site_packages(Path(words[words.index("--python") + 1]).parent.parent)
        for wheel in (word for word in words if word.endswith(".whl")):
            zipfile.ZipFile(wheel).extractall(site)
        if any(word.startswith("torch==") for word in words):
            (site / "torch").mkdir(exist_ok=True)
            (site / "torch" / "__init__.py").touch()

    def download(self, folder: Path, version: str) -> None:
        time.sleep(self.seconds)
        wheel = folder / f"sglang-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("sglang/__init__.py", "# text that is deflated\n" * 200)
            archive.writestr("sglang/version.py", f'__version__ = "{version}"\n')
            required = "".join(f"Requires-Dist: {o}\n" for o in self.requirements.get(version, ()))
            metadata = f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n{required}"
            archive.writestr(f"sglang-{version}.dist-info/METADATA", metadata)
        if self.cuts_short:
            wheel.write_bytes(wheel.read_bytes()[:-30])

    def resolve(self, report: Path, words: list[str]) -> None:
        """Choose the newest version of each package that fits, as pip does without dependencies."""
        found = []
        for wanted in map(Requirement, words[words.index(str(report)) + 1 :]):
            fitting = wanted.specifier.filter(self.index.get(wanted.name, {}))
            newest = max(fitting, key=Version, default=None)
            if newest is None:
                raise NotReadyError(f"No matching distribution found for {wanted}")
            metadata = {"name": wanted.name, "version": newest}
            found.append(
                {"metadata": metadata | {"requires_dist": self.index[wanted.name][newest]}}
            )
        report.write_text(json.dumps({"install": found}))

    @property
    def resolutions(self) -> list[list[str]]:
        """The packages of each dry run."""
        return [w[w.index("--report") + 2 :] for w in self.calls if "--dry-run" in w]

    @property
    def downloads(self) -> int:
        return sum("download" in words for words in self.calls)


def set_up_releases(folder: Path, monkeypatch: Patch) -> FakePip:
    """Set up a folder of releases that a fake pip installs."""
    fake = FakePip()
    monkeypatch.setenv("UNFIX_HOME", str(folder))
    monkeypatch.setattr(installer, "run_pip", fake)
    # The engine is this checkout's, as in a call without a release.
    for name in (*ASKING, checkouts.HARNESS_VARIABLE, "UNFIX_PLANNER"):
        monkeypatch.delenv(name, raising=False)
    return fake


def install_fake_release() -> Release:
    release = managed_releases.get_release(VERSION)
    installer.install_release(release, lambda _: None)
    return release


def state_of(release: Release, capsys: Output) -> str:
    capsys.readouterr()
    assert main(["releases", "list", "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["managed"]
    return str(next(row["environment"] for row in rows if row["release"] == release.name))


def read_refusal(words: list[str], capsys: Output) -> tuple[int, str]:
    """Return the exit code of a call, and its only line."""
    capsys.readouterr()
    code = main(words)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("unfix: ")
    assert output.err.count("\n") == 1
    return code, output.err


def rewrite_mark(folder: Path, **facts: str) -> None:
    mark = folder / COMPLETION_MARKER
    mark.write_text(json.dumps({**json.loads(mark.read_text()), **facts}))


def refusal_of_add(capsys: Output) -> tuple[int, str]:
    """Return the exit code, and the last line: the lines before it report progress."""
    code = main(["releases", "add", VERSION])
    return code, capsys.readouterr().err.splitlines()[-1]
