"""Installs and removes release environments: one shared base, and a thin environment per release.

`.releases/base` holds torch, Triton and every dependency whose version all releases share. A
release's environment holds SGLang's wheel and the packages with other versions, and comes first
on the path. Invariant: an environment counts as installed only with its completion marker, which
is written last, so an interrupted installation is detected and repeated.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.core import paths
from harness.core.errors import NotReadyError
from harness.core.files import write_atomically
from harness.releases import checkouts, lock_solver, managed_releases
from harness.releases.environment_users import refuse_if_in_use
from harness.releases.managed_releases import COMPLETION_MARKER, CPU_BASE, Release
from harness.releases.pins import parse_requirements
from harness.releases.shared_torch import SharedTorch, find_shared_torch

ReportMessage = Callable[[str], None]
SUPPORTED_PYTHONS = ((3, 11), (3, 12), (3, 13))
STANDINS = paths.HARNESS_FOLDER / "releases" / "standins"
STANDINS_NPU = paths.HARNESS_FOLDER / "releases" / "standins_npu"
STANDINS_CUDA = paths.HARNESS_FOLDER / "releases" / "standins_cuda"
# Pinned packages without a wheel for a Python version, and the feature that is missing.
MISSING_WHEELS = {(3, 13): {"outlines-core": "SGLang's grammar backend outlines"}}
IMPORT_TORCH_SCRIPT = "import sys; sys.path[:0] = sys.argv[1:]; import torch"
# Measured size of the base on disk, with its own torch or with a shared one.
BASE_BYTES = {"cpu": 2.4e9, "cuda": 1.2e9}
GIBIBYTE = 2**30
BASE_FREE_GIBIBYTES = {"cpu": 5, "cuda": 3}  # free space that its installation needs
WHEELS_VARIABLE = "UNFIX_WHEELS"  # a folder of wheels to install from, instead of an index
# pip's messages without a network; with PIP_RETRIES=0 it prints only the last one.
NETWORK_ERRORS = (
    "NewConnectionError",
    "Temporary failure in name",
    "Max retries",
    "ConnectTimeout",
    "ProxyError",
    "(from versions: none)",
)


def install_release(release: Release, report: ReportMessage, torch: Path | None = None) -> None:
    """Install a release, and the base if it is missing.

    A release for CUDA shares the torch of the Python `torch`, or of one that is searched for.
    """
    checkouts.register_checkout()
    if release.is_ready and _shares_torch(release, torch):
        return
    with hold_install_lock():
        _make_base(release.base, report, torch)
        if not release.is_current():
            _make_environment(release, report)
        if not release.has_current_start_files():
            _write_start_files(release)


def _shares_torch(release: Release, torch: Path | None) -> bool:
    """Return whether a release shares this Python's torch; True if no Python is named."""
    shared = release.shared_torch
    return torch is None or (shared is not None and shared.python == str(torch))


def _make_environment(release: Release, report: ReportMessage) -> None:
    wheel = _fetch_wheel(release, report, release.base.python)
    if not release.lock_file.exists():
        solved = lock_solver.solve_lock(release, wheel, run_pip)
        write_atomically(release.lock_file, solved.render())
        for line in solved.describe():
            report(line)
    refuse_if_in_use(
        release.folder, f"SGLang {release.name}", "end it first: the release is reinstalled"
    )
    report(f"installing SGLang {release.name}")
    remove_folder(release.folder)
    # The base's Python may differ from this one: checkouts with another Python share the base.
    _make_venv(release.base.python, release.folder)
    own = [r for r in parse_requirements(release.lock_file) if r.name != "sglang"]
    _pip_install(release.python, [str(wheel), *map(str, own)])
    _write_start_files(release)


def fetch_release_sources(release: Release, report: ReportMessage) -> None:
    """Fetch a release's wheel to read its sources, without an environment."""
    with hold_install_lock():
        _fetch_wheel(release, report)


def remove_release(release: Release, force: bool = False) -> None:
    """Remove a release, unless a process runs from it."""
    with hold_install_lock():
        if not force:
            hint = "end it first, or add --force"
            refuse_if_in_use(release.folder, f"SGLang {release.name}", hint)
        remove_folder(release.folder)
        if not any(
            Release(release.name, device).folder.exists() for device in managed_releases.DEVICES
        ):
            for wheel in release.list_wheels():
                wheel.unlink()
            remove_folder(release.added_folder)
        others = managed_releases.list_known_releases(release.device)
        if not any(other.folder.exists() for other in others):
            remove_folder(release.base.folder)


def _write_start_files(release: Release, shared_torch: SharedTorch | None = None) -> None:
    """Write the start files, then the completion marker."""
    site = _find_site_packages(release.folder)
    shared_torch = shared_torch or release.shared_torch
    base_site = None if release == release.base else _find_site_packages(release.base.folder)
    for name, text in checkouts.make_start_files(
        base_site, shared_torch.folders if shared_torch else ()
    ).items():
        write_atomically(site / name, text)
    write_atomically(
        release.folder / COMPLETION_MARKER,
        json.dumps(release.describe_installation(shared_torch), indent=1),
    )


def _make_base(base: Release, report: ReportMessage, torch: Path | None) -> None:
    if base.is_current() and _shares_torch(base, torch):
        if not base.has_current_start_files():
            _write_start_files(base)
        return
    shared = None if base == CPU_BASE else find_shared_torch(torch)
    python = Path(shared.python if shared else sys.executable)
    version = shared.version if shared else platform.python_version()
    if tuple(map(int, version.split(".")[:2])) not in SUPPORTED_PYTHONS:
        raise NotReadyError(
            f"SGLang's wheels are for Python {describe_supported_pythons()}, this is {version}"
            + ("" if shared else ": make unfix's .venv with one of those "
               "(UNFIX_PYTHON=python3.13 ./unfix …)")
        )  # fmt: skip
    needed = BASE_FREE_GIBIBYTES[base.device]
    free = shutil.disk_usage(paths.releases_folder()).free
    if free < needed * GIBIBYTE:
        raise NotReadyError(
            f"{free / GIBIBYTE:.1f} GiB are free under {paths.releases_folder()}; "
            f"the shared base of the releases needs {needed}"
        )
    refuse_if_in_use(
        base.folder, "the shared base of the releases", "end it first: the base is reinstalled"
    )
    contents = f"dependencies, sharing {shared}" if shared else "torch, Triton and the rest"
    report(
        f"installing the shared base of the releases: {contents} "
        f"({format_size(BASE_BYTES[base.device])}, minutes)"
    )
    remove_folder(base.folder)
    _make_venv(python, base.folder)
    _install_base_packages(base, shared)
    _register_operators(_find_site_packages(base.folder))
    _write_start_files(base, shared)


def _install_base_packages(base: Release, shared_torch: SharedTorch | None) -> None:
    required = parse_requirements(base.lock_file)
    if shared_torch is None:
        # torch with its own requirements: the CPU build needs none beyond the lock file, but the
        # CUDA build that some package indexes serve does.
        torch = next(str(r) for r in required if r.name == "torch")
        constrained = "install --no-compile --only-binary :all: -c".split()
        run_pip(["--python", str(base.python), *constrained, str(base.lock_file), torch])
    missing = MISSING_WHEELS.get(_get_python_version(base.python), {})
    own = [
        r
        for r in required
        if r.name not in missing and not (shared_torch and shared_torch.provides(r))
    ]
    _pip_install(base.python, [str(r) for r in own])
    folders = shared_torch.folders if shared_torch else ()
    # Isolated: a torch that this shell's variables lead to is not the one that was installed.
    done = subprocess.run(
        [base.python, "-I", "-c", IMPORT_TORCH_SCRIPT, *folders], capture_output=True, text=True
    )
    if done.returncode:
        raise NotReadyError(f"torch was installed and does not import: {_get_error_line(done)}")


def format_size(amount: float) -> str:
    return f"{amount / 1e9:.1f} GB" if amount >= 1e9 else f"{amount / 1e6:.0f} MB"


def describe_supported_pythons() -> str:
    *others, newest = (".".join(map(str, version)) for version in SUPPORTED_PYTHONS)
    return f"{', '.join(others)} or {newest}"


def describe_missing_wheels(python: tuple[int, int]) -> str:
    """Describe in a sentence the features that a Python version lacks; '' if none."""
    missing = [
        f"no {what}: {name} has no wheel" for name, what in MISSING_WHEELS.get(python, {}).items()
    ]
    return f"Python {python[0]}.{python[1]} has {', '.join(missing)} for it" if missing else ""


def _register_operators(site_packages: Path) -> None:
    """Register an entry point of torch that defines the operators torchvision needs."""
    info = site_packages / "unfix_operators-1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: unfix-operators\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[torch.backends]\nunfix_operators = torchvision_operators:define\n"
    )


def _fetch_wheel(release: Release, report: ReportMessage, python: Path | None = None) -> Path:
    """Fetch an undamaged wheel of a release: for one Python, or for any to read its sources."""
    folder = paths.releases_folder() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in _list_fitting_wheels(release, python):
        if is_whole_wheel(wheel):
            return wheel
        report(f"{wheel.name} is damaged; fetching it again")
        wheel.unlink()
    report(f"fetching the wheel of SGLang {release.name}")
    words = "download --no-deps --only-binary :all: -d".split()
    into = ["--python", str(python)] if python else []
    run_pip([*into, *words, str(folder), f"sglang=={release.name}"])
    for wheel in _list_fitting_wheels(release, python):
        if is_whole_wheel(wheel):
            return wheel
    raise NotReadyError(f"pip fetched no undamaged wheel of SGLang {release.name}")


def _list_fitting_wheels(release: Release, python: Path | None) -> list[Path]:
    if python is None:
        return release.list_wheels()
    version = "".join(map(str, _get_python_version(python)))
    return [
        wheel
        for wheel in release.list_wheels()
        if wheel.name.split("-")[2] in ("py3", f"cp{version}")
    ]


def _get_python_version(python: Path) -> tuple[int, int]:
    """Read the version of an environment's Python from its folder names."""
    major, minor = (
        _find_site_packages(python.parent.parent).parent.name.removeprefix("python").split(".")
    )
    return int(major), int(minor)


def is_whole_wheel(wheel: Path) -> bool:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError):
        return False


def _make_venv(python: Path, folder: Path) -> None:
    words = [str(python), "-m", "venv", "--without-pip", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise NotReadyError(f"no environment can be created at {folder}: {_get_error_line(done)}")


def _pip_install(python: Path, wanted_packages: list[str]) -> None:
    words = "install --no-deps --no-compile --only-binary :all:".split()
    run_pip(["--python", str(python), *words, *wanted_packages])


def run_pip(pip_arguments: list[str]) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        *pip_arguments,
    ]
    wheels = os.environ.get(WHEELS_VARIABLE)
    if wheels:
        command += ["--no-index", "--find-links", wheels]
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, pass_fds=_held_locks
    )
    if done.returncode == 0:
        return
    if "No space left" in done.stderr:
        raise NotReadyError(
            f"the disk is full: pip could not install under {paths.releases_folder()}"
        )
    if wheels and "No matching distribution" in done.stderr:
        raise NotReadyError(
            f"{wheels} lacks a wheel ({_get_error_line(done)}): run `unfix releases wheels` on a "
            "machine with a network"
        )
    if any(word in done.stderr for word in NETWORK_ERRORS):
        raise NotReadyError(
            "the package index cannot be reached: connect, or set PIP_INDEX_URL "
            f"({_get_error_line(done)})"
        )
    if "No module named pip" in done.stderr:
        raise NotReadyError(f"{sys.executable} has no pip: python -m ensurepip")
    raise NotReadyError(f"pip failed: {_get_error_line(done)}")


def _get_error_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return " ".join(errors or lines[-1:] or ["no reason given"])


def _find_site_packages(folder: Path) -> Path:
    return next(folder.glob("lib/python*/site-packages"))


def remove_folder(folder: Path) -> None:
    """Rename a folder, which is atomic, then delete it."""
    if folder.exists():
        leaving = folder.with_name(f".leaving-{folder.name}-{os.getpid()}")
        folder.rename(leaving)
        shutil.rmtree(leaving)


# Open locks; pip inherits them, so a pip that outlives this process still blocks others.
_held_locks: list[int] = []


@contextlib.contextmanager
def hold_install_lock() -> Iterator[None]:
    import fcntl

    paths.releases_folder().mkdir(parents=True, exist_ok=True)
    with open(paths.releases_folder() / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in paths.releases_folder().glob(".leaving-*"):
            shutil.rmtree(left, ignore_errors=True)  # left by an interrupted removal
        _held_locks.append(lock.fileno())
        try:
            yield
        finally:
            _held_locks.clear()
