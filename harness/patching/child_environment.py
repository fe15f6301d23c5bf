"""The environment of a process that is to be started: one builder for every command.

Example: a release's python that runs under a reverted toggle.

    environment = ChildEnvironment()  # a copy of this process's
    environment.put_python_first(release.python, release.folder)
    environment.set_toggles(["27460"], [], [], attestations)
    subprocess.Popen(command, env=environment)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from harness.core import paths
from harness.patching import bootstrap, import_origins
from harness.releases import checkouts, managed_releases, source_trees

STARTUP_FOLDER = paths.HARNESS_FOLDER / "startup"
PYTHON_PATH_VARIABLE = "PYTHONPATH"
RELEASE_VARIABLE = "UNFIX_RELEASE"
# The folders in which a release's process finds the harness, the suites and the fixtures.
HARNESS_PATH = tuple(dict.fromkeys((paths.HARNESS_FOLDER.parent, paths.project_folder())))
# One thread, and no device backend that torch would load by itself: for kernels without a GPU.
SINGLE_THREAD = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}


class ChildEnvironment(dict[str, str]):
    """Variables by name: those of this process, with further ones."""

    def __init__(
        self, variables: Mapping[str, str] | None = None, without: Iterable[str] = ()
    ) -> None:
        super().__init__({**os.environ, **(variables or {})})
        for name in without:
            self.pop(name, None)

    def add_python_path(self, *folders: Path) -> None:
        """Have Python search these folders first, each once."""
        before = [
            folder for folder in self.get(PYTHON_PATH_VARIABLE, "").split(os.pathsep) if folder
        ]
        self[PYTHON_PATH_VARIABLE] = os.pathsep.join(dict.fromkeys([*map(str, folders), *before]))

    def put_python_first(self, python: Path, folder: Path) -> None:
        """Have a command find a release's python before any other."""
        self["PATH"] = f"{python.parent}{os.pathsep}{self.get('PATH', '')}"
        self["VIRTUAL_ENV"] = str(folder)

    def use_virtual_device(self, card: str | None, folder: Path) -> None:
        """Put the processes on the virtual GPU; their records go below a folder."""
        from harness.sanitizer.watch import virtual_process  # imported late: it reads YAML

        virtual_process.set_variables(self, card, folder)
        self.use_checkout()
        self.add_python_path(STARTUP_FOLDER)

    def use_checkout(self) -> None:
        """Have a release's processes use the harness of this checkout."""
        checkouts.set_checkout_variables(self)

    def require_release(self, python: str | Path) -> None:
        """Have the processes of a Python import its own release, and no other SGLang."""
        folders, name = managed_releases.find_import_folders(python), "current"
        if folders:
            name = Path(python).parent.parent.name
        elif (tree := source_trees.find_installed_tree()) is not None:
            folders = {source_trees.SGLANG_PACKAGE: [tree.folder]}
        import_origins.require_origins(self, name, folders)

    def clear_toggles(self) -> None:
        for name in (
            bootstrap.REVERT_VARIABLE,
            bootstrap.ENABLE_VARIABLE,
            bootstrap.CARRIED_REVERT_VARIABLE,
        ):
            self.pop(name, None)

    def set_toggle_folders(self, folders: Sequence[Path]) -> None:
        """Read toggles from these folders as well."""
        if folders:
            self[bootstrap.FOLDERS_VARIABLE] = os.pathsep.join(
                str(folder.resolve()) for folder in folders
            )

    def set_toggles(
        self,
        revert: Iterable[str],
        enable: Iterable[str],
        folders: Sequence[Path],
        attestations: Path,
    ) -> None:
        """Apply toggles in whatever imports SGLang; attestations are written to a folder."""
        self.clear_toggles()
        for name, ids in ((bootstrap.REVERT_VARIABLE, revert), (bootstrap.ENABLE_VARIABLE, enable)):
            if ids:
                self[name] = ",".join(dict.fromkeys(ids))
        self.set_toggle_folders(folders)
        self[bootstrap.ATTESTATIONS_VARIABLE] = str(attestations.resolve())
        self.use_checkout()
        self[bootstrap.PLANNER_PATH_VARIABLE] = os.environ.get(PYTHON_PATH_VARIABLE, "")
        if str(STARTUP_FOLDER) not in self.get(PYTHON_PATH_VARIABLE, "").split(os.pathsep):
            self.add_python_path(STARTUP_FOLDER)
