"""What one run of a test may write: a home, a temporary folder and a working folder of its own.

A file that a test leaves must not be there in its next run, or a guard could count its runs. So
each run begins in the same folders, which are empty but for the working folder: that one has a link
to each file and folder of the usual one. Elsewhere the kernel refuses writes, if it can. Shared
memory (`/dev/shm`, System V) is that of the run, if the system allows namespaces. Then FOLDER has
the same path in all lanes, too: it is the lane's own folder, bound to that place by its supervisor.

    FOLDER/home     HOME, and all folders of the XDG base directories
    FOLDER/tmp      TMPDIR, and pytest's temporary folders
    FOLDER/work     the working folder
    FOLDER/kernels  compiled kernels that no earlier run had; kept after the run

Compiled kernels are shared by all runs: a file's name is the digest of what it was compiled from.
While launches are recorded (`UNFIX_LAUNCHES`), their file is writable as well: such a run judges
nothing that depends on its order.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.core import cache, paths, write_confinement
from harness.sanitizer.triton import recorded_reach

# Files of devices that keep nothing, and this process's own settings.
_WRITABLE_DEVICES = (
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
    *("/dev/tty", "/dev/ptmx", "/dev/pts", "/proc"),
)
# Variables that name folders in which an earlier run may have written.
_FOLDER_VARIABLES = (
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
)
_MODELS_VARIABLE, _USUAL_MODELS = "HF_HOME", ".cache/huggingface"  # below the home; read only

# Entries of other categories are a run's own: it could count its runs by them.
_KEPT_CATEGORIES = (
    *("accesses", "answers", "graphs", "programs", "thorough", "specializations"),
    *("ptx-kernels", "ptx-runtime", "ptx-thorough"),
)


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run at a time."""

    path: Path
    working_folder: Path  # the usual one
    may_confine: bool  # whether the kernel refuses writes elsewhere
    may_isolate: bool = False  # whether a run can have shared memory of its own

    @classmethod
    def make(cls, lanes: Path, number: int) -> RunFolder:
        """Make the folder of a lane, in its supervisor; all lanes have it at one place, if any."""
        path = lanes / str(number)
        may_isolate = write_confinement.can_make_namespaces()
        if may_isolate:
            own, place = path, lanes / "run"
            for folder in (own, place):
                folder.mkdir(exist_ok=True)
            try:
                write_confinement.bind_folder(own, place)
            except OSError:  # refused on this file system or under this system's rules
                may_isolate = False
            else:
                path = place
        return cls(path, Path.cwd(), write_confinement.can_confine(), may_isolate)

    @property
    def home(self) -> Path:
        return self.path / "home"

    @property
    def temporary(self) -> Path:
        return self.path / "tmp"

    @property
    def work(self) -> Path:
        return self.path / "work"

    @property
    def kernels(self) -> Path:
        return self.path / "kernels"

    def prepare(self) -> None:
        """Make the folders anew, without what an earlier run wrote."""
        self.clear()
        for folder in (self.home, self.temporary, self.work, self.kernels):
            folder.mkdir(parents=True)
        for entry in os.scandir(self.working_folder):
            (self.work / entry.name).symlink_to(entry.path)

    def clear(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def enter(self) -> None:
        """Have this process, which is the run, use these folders, and write below them alone."""
        record = recorded_reach.open_record()  # a path relative to the usual working folder
        models = Path.home() / _USUAL_MODELS
        if models.is_dir():
            os.environ.setdefault(_MODELS_VARIABLE, str(models))
        for name in _FOLDER_VARIABLES:
            os.environ.pop(name, None)
        os.environ["HOME"] = str(self.home)
        for name in ("TMPDIR", "TEMP", "TMP", "PYTEST_DEBUG_TEMPROOT"):
            os.environ[name] = str(self.temporary)
        tempfile.tempdir = None
        os.environ["PWD"] = str(self.work)
        os.chdir(self.work)
        cache.write_below(self.kernels)
        if self.may_confine:
            shared = [*map(Path, _WRITABLE_DEVICES), *_list_build_folders()]
            allowed = [self.path, *filter(Path.exists, shared)]
            if self.may_isolate:
                write_confinement.isolate_shared_memory()
                allowed.append(write_confinement.SHARED_MEMORY)
            write_confinement.confine_writes([*allowed, *([record] if record else [])])

    def keep_kernels(self) -> None:
        """Share the kernels that the run compiled."""
        cache.adopt_entries(self.kernels, _KEPT_CATEGORIES)


def _list_build_folders() -> list[Path]:
    """List the folder of builds if this process builds CUDA modules, as a preparation has it do.

    Builds are named by their content, and shared as they appear. Any other run could count its runs
    there.
    """
    loader = sys.modules.get("harness.sanitizer.plugins.for_sglang.jit_loader")
    return [paths.cuda_builds_folder()] if loader is not None and loader.is_installed() else []
