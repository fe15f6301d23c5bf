"""A CUDA toolkit whose ptxas writes checks into every kernel, and whose modules report launches.

It is a folder of links to a real toolkit with three things of its own: `bin/ptxas` is a program of
this folder (`checked_ptxas`), `lib64/libcudart.so` links each module with `launch_checks.c`, and
builds go to a cache of their own, since the keys of builds do not see the toolkit. Programs find it
by CUDA_HOME, as FlashInfer and torch do. A process sets that once its launches get what the checks
added: without it, its builds are plain.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from harness.core import paths
from harness.core.code_digest import compute_digest, digest_code
from harness.core.errors import NotReadyError
from harness.core.files import write_atomically
from harness.sanitizer import plugins
from harness.sanitizer.cuda import driver_library
from harness.sanitizer.cuda.c_compiler import call_compiler, find_c_compiler
from harness.sanitizer.watch.all_launches import COUNTING_LIBRARY
from harness.sanitizer.watch.report_files import CHECKED_CUDA_VARIABLE

_SOURCE = Path(__file__).with_name("launch_checks.c")
_SOURCES = [*Path(__file__).parent.glob("*.[ch]")]
_COUNTING_SOURCE = Path(__file__).with_name("launch_counts.c")
_COMPLETE, _LOCK = "complete", ".lock"
# Where programs keep what they build, by their own variables.
_CACHE_VARIABLES = {
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "TORCH_EXTENSIONS_DIR": "torch",
    "DG_JIT_CACHE_DIR": "deep-gemm",
    **{name: folder for one in plugins.list_all() for name, folder in one.build_folders.items()},
}
_PLAIN_VARIABLE = "UNFIX_PLAIN_CUDA"  # the variables as they were, of a process without checks
_FLAGS_VARIABLE = "NVCC_APPEND_FLAGS"
_FLAGS = ("-lineinfo", "--no-compress")


@dataclass(frozen=True, slots=True)
class CheckedToolkit:
    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "cuda"

    @property
    def kernels(self) -> Path:
        """The folder of what is known of each module's kernels."""
        return self.folder / "kernels"

    @property
    def library(self) -> Path:
        return self.folder / "libunfix_launches.so"

    @property
    def driver(self) -> Path:
        """The stand-in for the driver; it is missing where there is none."""
        return self.folder / "driver" / driver_library.DRIVER_NAME

    def request(self, environment: MutableMapping[str, str]) -> None:
        """Have an environment's Python processes load the stand-ins, then set its variables."""
        environment[CHECKED_CUDA_VARIABLE] = str(self.folder)

    def set_variables(self, environment: MutableMapping[str, str]) -> None:
        """Have an environment's programs build with checks, apart from their plain builds."""
        names = ("CUDA_HOME", "CUDA_PATH", *_CACHE_VARIABLES)
        plain = {name: environment.get(name) for name in names}
        environment.setdefault(_PLAIN_VARIABLE, json.dumps(plain))
        self.request(environment)
        environment["CUDA_HOME"] = environment["CUDA_PATH"] = str(self.home)
        path = environment.get("PATH", os.defpath).split(os.pathsep)
        first = str(self.home / "bin")
        environment["PATH"] = os.pathsep.join(
            [first, *(folder for folder in path if folder != first)]
        )
        for name, folder in _CACHE_VARIABLES.items():
            environment[name] = str(self.folder / "builds" / folder)
        flags = environment.get(_FLAGS_VARIABLE, "").split()
        added = [flag for flag in _FLAGS if flag not in flags]
        environment[_FLAGS_VARIABLE] = " ".join([*flags, *added])

    def restore_variables(self, environment: MutableMapping[str, str]) -> None:
        """Have an environment's programs build without checks, as before `set_variables`."""
        plain: dict[str, str | None] = json.loads(environment.pop(_PLAIN_VARIABLE, "{}"))
        for name, value in plain.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        path, first = environment.get("PATH"), str(self.home / "bin")
        if path is not None:
            folders = [folder for folder in path.split(os.pathsep) if folder != first]
            environment["PATH"] = os.pathsep.join(folders)


def find_cuda_home(environment: MutableMapping[str, str]) -> Path | None:
    """Find the toolkit that a program would build with, as torch looks for it."""
    named = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    if named:
        return Path(named)
    nvcc = shutil.which("nvcc", path=environment.get("PATH"))
    if nvcc is not None:
        return Path(nvcc).resolve().parent.parent
    default = Path("/usr/local/cuda")
    return default if (default / "bin" / "nvcc").exists() else None


def make_checked_toolkit(
    home: Path, checks: tuple[str, ...], builds: Path | None = None
) -> CheckedToolkit:
    """Return the checked twin of a toolkit; it is made once for each state of this code.

    It lies, with all that it builds, in the folder `builds`, or in that of all CUDA builds.
    """
    home = home.resolve()
    ptxas = home / "bin" / "ptxas"
    if not ptxas.exists():
        raise NotReadyError(f"{home} has no bin/ptxas: it is not a CUDA toolkit")
    driver = driver_library.find_driver()
    digest = compute_digest(
        str(home), str(ptxas.stat().st_mtime_ns), " ".join(checks), sys.executable,
        digest_code("sanitizer"), str(driver), *(file.read_bytes() for file in sorted(_SOURCES)),
    )  # fmt: skip
    builds = paths.cuda_builds_folder() if builds is None else builds
    toolkit = CheckedToolkit(builds / f"checked-{digest[:16]}")
    if (toolkit.folder / _COMPLETE).exists():
        return toolkit
    toolkit.folder.mkdir(parents=True, exist_ok=True)
    with open(toolkit.folder / _LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (toolkit.folder / _COMPLETE).exists():  # another process may have made it
            _fill_toolkit(toolkit, home, checks)
            if driver is not None:
                driver_library.build_standin(toolkit.driver, driver, toolkit.library)
            write_atomically(toolkit.folder / _COMPLETE, digest)
    return toolkit


def _fill_toolkit(toolkit: CheckedToolkit, home: Path, checks: tuple[str, ...]) -> None:
    shutil.rmtree(toolkit.home, ignore_errors=True)
    toolkit.kernels.mkdir(parents=True, exist_ok=True)
    for name in set(_CACHE_VARIABLES.values()):  # torch makes no parents of its own
        (toolkit.folder / "builds" / name).mkdir(parents=True, exist_ok=True)
    _link_folder(home, toolkit.home, without=("bin", "lib64"))
    _link_folder(home / "bin", toolkit.home / "bin", without=("ptxas",))
    library_folder = home / "lib64" if (home / "lib64").exists() else home / "lib"
    _link_folder(library_folder, toolkit.home / "lib64", without=("libcudart.so",))
    _write_ptxas(toolkit, home / "bin" / "ptxas", checks)
    _build_libraries(toolkit, library_folder)


def _link_folder(source: Path, target: Path, without: tuple[str, ...]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        if entry.name not in without:
            (target / entry.name).symlink_to(entry)


def _write_ptxas(toolkit: CheckedToolkit, ptxas: Path, checks: tuple[str, ...]) -> None:
    program = toolkit.home / "bin" / "ptxas"
    words = [sys.executable, "-S", "-m", "harness.sanitizer.cuda.checked_ptxas"]
    own = [str(ptxas), str(toolkit.kernels), ",".join(checks)]
    root = shlex.quote(str(paths.HARNESS_FOLDER.parent))
    program.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {shlex.join([*words, *own])} "$@"\n')
    program.chmod(0o755)


def _build_libraries(toolkit: CheckedToolkit, library_folder: Path) -> None:
    """Build the library of the process and the archive of each module, and have both linked."""
    real = _find_cudart(library_folder)
    compile_c = [find_c_compiler("a checked build"), "-std=gnu11", "-O2", "-fPIC"]
    archiver = shutil.which("ar")
    if archiver is None:
        raise NotReadyError("a checked build needs `ar`, as nvcc does")
    archive = toolkit.folder / "libunfix_launches.a"
    with tempfile.TemporaryDirectory(dir=toolkit.folder) as folder:
        shim = f"{folder}/shim.o"
        shared = [f'-DCUDART_NAME="{real.name}"', "-shared", f"-Wl,-soname,{toolkit.library}"]
        counting = str(toolkit.folder / COUNTING_LIBRARY)
        libraries = "-ldl", "-lpthread"
        for words in (
            [*compile_c, "-DSHIM", "-c", str(_SOURCE), "-o", shim],
            [archiver, "rcs", str(archive), shim],
            [*compile_c, *shared, str(_SOURCE), "-o", str(toolkit.library), *libraries],
            [*compile_c, "-shared", str(_COUNTING_SOURCE), "-o", counting, *libraries],
        ):
            call_compiler(words)
    (toolkit.home / "lib64" / "libcudart.so").write_text(
        f"/* GNU ld script */\nINPUT({archive} {toolkit.library} {real})\n"
    )


def _find_cudart(folder: Path) -> Path:
    """Return the library by the name that modules need it by: libcudart.so.13."""
    found = [file for file in folder.iterdir() if re.fullmatch(r"libcudart\.so\.\d+", file.name)]
    if not found:
        raise NotReadyError(f"{folder} has no libcudart.so.N, which modules load")
    return found[0]


@functools.cache
def get_checked_toolkit() -> CheckedToolkit | None:
    """Return the toolkit that this process builds with, if it has checks."""
    folder = os.environ.get(CHECKED_CUDA_VARIABLE)
    return CheckedToolkit(Path(folder)) if folder else None
