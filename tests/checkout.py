"""A fresh copy of this checkout, and calls of its `./unfix`, with real or with fake tools."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pip
import pytest
from calling import PATIENCE_SECONDS, start_program

ROOT = Path(__file__).resolve().parent.parent
# The Python that created .venv: a fresh machine has the same.
BASE_PYTHON = str(getattr(sys, "_base_executable", sys.executable))
PIP = """
import os, site, sys, time
folder = os.path.dirname(os.path.abspath(__file__))
def tell(what):
    with open(os.path.join(folder, "calls"), "a") as file:
        file.write(f"{what}\\n")
tell("begins")
time.sleep(float(os.environ.get("FAKE_PIP_SECONDS", "0")))
if "FAKE_PIP_SAYS" in os.environ:
    sys.exit(os.environ["FAKE_PIP_SAYS"])
target = os.path.join(sys.prefix, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}")
with open(os.path.join(target, "site-packages", "installed.pth"), "w") as file:
    file.write(os.path.dirname(sys.prefix) + "\\n" + os.environ["FAKE_PIP_PACKAGES"])
tell("ends")
"""
VENV = """
import os, sys
folder = os.path.dirname(os.path.abspath(__file__))
if "FAKE_VENV_SAYS" in os.environ:
    print(os.environ["FAKE_VENV_SAYS"])
    sys.exit(1)
sys.path = [entry for entry in sys.path if os.path.abspath(entry) != folder]
sys.modules.pop("venv", None)
import venv
venv.create(sys.argv[-1], symlinks=True, with_pip=False)
"""
CUSTOMIZE = """
import os, sys
if "FAKE_VERSION" in os.environ:
    sys.version_info = (*map(int, os.environ["FAKE_VERSION"].split(".")), "final", 0)
if "FAKE_FREE" in os.environ:
    import collections, shutil
    usage = collections.namedtuple("usage", "total used free")
    shutil.disk_usage = lambda path: usage(2**40, 2**40, int(os.environ["FAKE_FREE"]))
"""


def copy_of_the_tree(to: Path, *folders: str) -> Path:
    """Copy git's files: hidden entries but .gitignore, caches and reports stay behind.

    With `folders`, only these and the files beside them are copied.
    """
    made_here = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", "dist", "build", "out")
    to.mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.is_dir() and not entry.name.startswith("."):
            if folders and entry.name not in folders:
                continue
            shutil.copytree(entry, to / entry.name, ignore=made_here)
        elif entry.is_file() and (entry.name == ".gitignore" or not entry.name.startswith(".")):
            shutil.copy2(entry, to / entry.name)
    return to


def without_tools(tree: Path) -> Path:
    """Remove the developers' extra, whose tools are most of a real set-up."""
    file = tree / "pyproject.toml"
    dev = re.compile(r"^dev = \[.*?\]$", re.MULTILINE | re.DOTALL)
    text, count = dev.subn("dev = []", file.read_text())
    assert count == 1
    file.write_text(text)
    return tree


@dataclass(frozen=True)
class Checkout:
    """A copy of the tree, and the environment in which its script is called."""

    tree: Path
    fakes: Path | None = None

    def variables(self, **more: str) -> dict[str, str]:
        ours = ("UNFIX_", "PYTHON", "VIRTUAL_ENV", "SGLANG_")
        variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        variables["PATH"] = f"{Path(BASE_PYTHON).parent}{os.pathsep}{variables['PATH']}"
        if self.fakes is not None:
            variables["PYTHONPATH"] = str(self.fakes)
            variables["FAKE_PIP_PACKAGES"] = str(Path(pytest.__file__).parent.parent)
        # Bytecode is half of pip's work, and Python compiles what it needs.
        return {**variables, "PIP_NO_COMPILE": "1", **more}

    def start(self, *words: str, **more: str) -> subprocess.Popen[str]:
        """Start `./unfix` in a process group of its own."""
        command = [self.tree / "unfix", *(words or ("--version",))]
        return start_program(command, env=self.variables(**more), cwd="/", start_new_session=True)

    def call(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, **more)
        output, messages = process.communicate(timeout=PATIENCE_SECONDS)
        return subprocess.CompletedProcess(words, process.returncode, output, messages)

    @property
    def ready(self) -> Path:
        return self.tree / ".venv" / "unfix-ready"

    @property
    def pips(self) -> list[str]:
        """Return the fake pips' calls so far, in order."""
        assert self.fakes is not None
        calls = self.fakes / "calls"
        return calls.read_text().split() if calls.exists() else []


def fake_tools(folder: Path, *, with_real_pip: bool = False) -> Path:
    """Install a pip and a venv that are quick, or fail as the variables above request."""
    folder.mkdir()
    for name, text in (("pip", PIP), ("venv", VENV), ("sitecustomize", CUSTOMIZE)):
        if name == "pip" and with_real_pip:
            (folder / name).symlink_to(Path(pip.__file__).parent)
        else:
            (folder / f"{name}.py").write_text(text)
    return folder
