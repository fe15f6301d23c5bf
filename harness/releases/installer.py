"""Making and removing release environments: one shared base, and a thin folder for each release.

torch, Triton and every dependency that the releases agree on lie once in `.releases/base`. A
release's own environment holds SGLang's wheel and what its pins differ in, and stands in front.
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

from packaging.requirements import Requirement

from harness.core import paths
from harness.core.errors import NotReadyError
from harness.releases import checkouts, managed_releases
from harness.releases.managed_releases import COMPLETION_MARKER, CPU_BASE, Release
from harness.releases.shared_torch import SharedTorch
from harness.releases.shared_torch import find_shared_torch as find_beside

ReportMessage = Callable[[str], None]
SUPPORTED_PYTHONS = ((3, 11), (3, 12), (3, 13))
STANDINS = paths.HARNESS_FOLDER / "releases" / "standins"
STANDINS_NPU = paths.HARNESS_FOLDER / "releases" / "standins_npu"
STANDINS_CUDA = paths.HARNESS_FOLDER / "releases" / "standins_cuda"
# Pins that have no wheel for a Python, and what does not work without them.
MISSING_WHEELS = {(3, 13): {"outlines-core": "SGLang's grammar backend outlines"}}
# On disk, as measured: what all releases share, with torch or beside one.
BASE_BYTES = {"cpu": 2.4e9, "cuda": 1.2e9}
GIBIBYTE = 2**30
BASE_FREE_GIBIBYTES = {"cpu": 5, "cuda": 3}  # GiB that a base needs while it is made
WHEELS_VARIABLE = "UNFIX_WHEELS"  # a folder of wheels to install from, instead of an index
# What pip says without a network; the last is all that is left of it with PIP_RETRIES=0.
NETWORK_ERRORS = ("NewConnectionError", "Temporary failure in name", "Max retries", "ConnectTimeout",
               "ProxyError", "(from versions: none)")  # fmt: skip


def install_release(release: Release, report: ReportMessage, torch: Path | None = None) -> None:
    """Install a release and, before the first one, the base it shares with the others.

    For CUDA beside the torch of a Python, which is looked for if none is named.
    """
    checkouts.register_checkout()
    if release.is_ready and _shares_torch(release, torch):
        return
    with _hold_install_lock():
        _make_base(release.base, report, torch)
        if not release.is_current():
            _make_environment(release, report)
        if not release.has_current_start_files():
            _write_start_files(release)


def _shares_torch(release: Release, torch: Path | None) -> bool:
    """Whether it stands beside the torch of this Python, or of any if none is named."""
    beside = release.shared_torch
    return torch is None or (beside is not None and beside.python == str(torch))


def _make_environment(release: Release, report: ReportMessage) -> None:
    wheel = _fetch_wheel(release, report, release.base.python)
    _refuse_if_in_use(release.folder, f"SGLang {release.name}", "end it first: it is made anew")
    report(f"installing SGLang {release.name}")
    _remove_folder(release.folder)
    # The base's Python, which need not be this one: checkouts that share a home may differ in it.
    _make_venv(release.base.python, release.folder)
    own = [r for r in parse_requirements(release.lock_file) if r.name != "sglang"]
    _pip_install(release.python, [str(wheel), *map(str, own)])
    _write_start_files(release)


def fetch_release_sources(release: Release, report: ReportMessage) -> None:
    """Fetch a release's wheel alone, for reading."""
    with _hold_install_lock():
        _fetch_wheel(release, report)


def remove_release(release: Release, force: bool = False) -> None:
    """Remove a release, unless a process is running from it."""
    with _hold_install_lock():
        if not force:
            hint = "end it first, or add --force"
            _refuse_if_in_use(release.folder, f"SGLang {release.name}", hint)
        _remove_folder(release.folder)
        if not any(
            Release(release.name, device).folder.exists() for device in managed_releases.DEVICES
        ):
            for wheel in release.list_wheels():
                wheel.unlink()
        if not any(
            other.folder.exists() for other in managed_releases.list_releases(release.device)
        ):
            _remove_folder(release.base.folder)


def parse_requirements(lock_file: Path) -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in lock_file.read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def _write_start_files(release: Release, shared_torch: SharedTorch | None = None) -> None:
    """What finds an engine, then the mark: an environment without it was cut short."""
    site = _find_site_packages(release.folder)
    shared_torch = shared_torch or release.shared_torch
    for left_over in (site / "harness", site / "unfix_standins.pth"):  # by earlier versions
        left_over.unlink(missing_ok=True)
    behind = None if release == release.base else _find_site_packages(release.base.folder)
    for name, text in checkouts.make_start_files(
        behind, shared_torch.folders if shared_torch else ()
    ).items():
        _write_atomically(site / name, text)
    _write_atomically(
        release.folder / COMPLETION_MARKER,
        json.dumps(release.describe_installation(shared_torch), indent=1),
    )


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def _make_base(base: Release, report: ReportMessage, torch: Path | None) -> None:
    if base.is_current() and _shares_torch(base, torch):
        if not base.has_current_start_files():
            _write_start_files(base)
        return
    beside = None if base == CPU_BASE else find_beside(torch)
    python = Path(beside.python if beside else sys.executable)
    version = beside.version if beside else platform.python_version()
    if tuple(map(int, version.split(".")[:2])) not in SUPPORTED_PYTHONS:
        raise NotReadyError(
            f"SGLang's wheels are for Python {describe_supported_pythons()}, this is {version}"
            + ("" if beside else ": make unfix's .venv with one of those "
               "(UNFIX_PYTHON=python3.13 ./unfix …)")
        )  # fmt: skip
    needed = BASE_FREE_GIBIBYTES[base.device]
    free = shutil.disk_usage(paths.releases_folder()).free
    if free < needed * GIBIBYTE:
        raise NotReadyError(
            f"{free / GIBIBYTE:.1f} GiB are free under {paths.releases_folder()}; "
            f"the shared base of the releases needs {needed}"
        )
    _refuse_if_in_use(base.folder, "what the releases share", "end it first: it is made anew")
    what = f"plain dependencies, beside {beside}" if beside else "torch, Triton and the rest"
    report(
        f"installing what the releases share: {what} ({format_size(BASE_BYTES[base.device])}, minutes)"
    )
    _remove_folder(base.folder)
    _make_venv(python, base.folder)
    _install_base_packages(base, beside)
    _register_operators(_find_site_packages(base.folder))
    _write_start_files(base, beside)


def _install_base_packages(base: Release, shared_torch: SharedTorch | None) -> None:
    wanted = parse_requirements(base.lock_file)
    if shared_torch is None:
        # torch alone with what it asks for: its plain build needs nothing more than the lock
        # holds, the CUDA build that some indexes give does.
        torch = next(str(r) for r in wanted if r.name == "torch")
        constrained = "install --no-compile --only-binary :all: -c".split()
        run_pip(["--python", str(base.python), *constrained, str(base.lock_file), torch])
    lacks = MISSING_WHEELS.get(_get_python_version(base.python), {})
    own = [
        r for r in wanted if r.name not in lacks and not (shared_torch and shared_torch.provides(r))
    ]
    _pip_install(base.python, [str(r) for r in own])
    found_by = os.pathsep.join(shared_torch.folders) if shared_torch else ""
    done = subprocess.run(
        [base.python, "-c", "import torch"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": found_by},
    )
    if done.returncode:
        raise NotReadyError(f"torch was installed and does not import: {_get_error_line(done)}")


def format_size(amount: float) -> str:
    return f"{amount / 1e9:.1f} GB" if amount >= 1e9 else f"{amount / 1e6:.0f} MB"


def describe_supported_pythons() -> str:
    *others, newest = (".".join(map(str, version)) for version in SUPPORTED_PYTHONS)
    return f"{', '.join(others)} or {newest}"


def describe_missing_wheels(python: tuple[int, int]) -> str:
    """What of SGLang there is not under a Python, in a sentence; '' if there is all."""
    found = [
        f"no {what}: {name} has no wheel" for name, what in MISSING_WHEELS.get(python, {}).items()
    ]
    return f"Python {python[0]}.{python[1]} has {', '.join(found)} for it" if found else ""


def _register_operators(site_packages: Path) -> None:
    """Have torch, once it is imported, load what defines the operators torchvision lacks here."""
    info = site_packages / "unfix_operators-1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: unfix-operators\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[torch.backends]\nunfix_operators = torchvision_operators:define\n"
    )


def _fetch_wheel(release: Release, report: ReportMessage, python: Path | None = None) -> Path:
    """A whole wheel of a release: for a Python, or any, which is enough to read."""
    folder = paths.releases_folder() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    for have in _list_fitting_wheels(release, python):
        if is_whole_wheel(have):
            return have
        report(f"{have.name} is cut short; fetching it again")
        have.unlink()
    report(f"fetching the wheel of SGLang {release.name}")
    words = "download --no-deps --only-binary :all: -d".split()
    into = ["--python", str(python)] if python else []
    run_pip([*into, *words, str(folder), f"sglang=={release.name}"])
    for got in _list_fitting_wheels(release, python):
        if is_whole_wheel(got):
            return got
    raise NotReadyError(f"pip fetched no whole wheel of SGLang {release.name}")


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
    """Of an environment's Python, which its folders tell."""
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
        raise NotReadyError(f"no environment can be made at {folder}: {_get_error_line(done)}")


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
            f"the disk is full: pip could not go on under {paths.releases_folder()}"
        )
    if wheels and "No matching distribution" in done.stderr:
        raise NotReadyError(
            f"{wheels} lacks a wheel ({_get_error_line(done)}): `unfix releases wheels` on a machine "
            "with a network fills it"
        )
    if any(word in done.stderr for word in NETWORK_ERRORS):
        raise NotReadyError(
            "the package index cannot be reached: connect, or set PIP_INDEX_URL "
            f"({_get_error_line(done)})"
        )
    if "No module named pip" in done.stderr:
        raise NotReadyError(f"{sys.executable} has no pip: python -m ensurepip")
    raise NotReadyError(f"pip did not get what is needed: {_get_error_line(done)}")


def _get_error_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return " ".join(errors or lines[-1:] or ["no reason given"])


def _find_site_packages(folder: Path) -> Path:
    return next(folder.glob("lib/python*/site-packages"))


def _remove_folder(folder: Path) -> None:
    """Remove a folder in one step for whoever looks, then for good."""
    if folder.exists():
        leaving = folder.with_name(f".leaving-{folder.name}-{os.getpid()}")
        folder.rename(leaving)
        shutil.rmtree(leaving)


# The lock while it is held: pip holds it too, so that one that outlives us is waited for.
_held_locks: list[int] = []


@contextlib.contextmanager
def _hold_install_lock() -> Iterator[None]:
    import fcntl

    paths.releases_folder().mkdir(parents=True, exist_ok=True)
    with open(paths.releases_folder() / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in paths.releases_folder().glob(".leaving-*"):
            shutil.rmtree(left, ignore_errors=True)  # somebody was stopped while removing it
        _held_locks.append(lock.fileno())
        try:
            yield
        finally:
            _held_locks.clear()


def _refuse_if_in_use(folder: Path, environment_name: str, hint: str) -> None:
    users = find_processes_using(folder)
    if users:
        shown = ", ".join(f"{pid} ({words})" for pid, words in users[:5])
        raise NotReadyError(f"{environment_name} is in use by process {shown}; {hint}")


def find_processes_using(folder: Path) -> list[tuple[int, str]]:
    """The processes that run from an environment, as far as this machine tells."""
    inside = f"{folder}{os.sep}"
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            held = [line.split(" ")[-1] for line in _read_lines(entry / "maps")]
            held.append(_find_program(entry, words[0]))
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
        if any(word.startswith(inside) for word in held):
            found.append((int(entry.name), " ".join(words)[:60].strip()))
    return sorted(found)


def _find_program(process_folder: Path, program_name: str) -> str:
    """Where the program of a process lies that was called by this word, links not followed.

    An environment's python is a link, so the system tells of the real one alone.
    """
    if os.sep not in program_name:
        variables = (process_folder / "environ").read_bytes().decode(errors="replace").split("\0")
        path = next((v.removeprefix("PATH=") for v in variables if v.startswith("PATH=")), "")
        program_name = shutil.which(program_name, path=path) or program_name
    folder, name = os.path.split(os.path.join(os.readlink(process_folder / "cwd"), program_name))
    return os.path.join(os.path.realpath(folder), name)


def _read_lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()
