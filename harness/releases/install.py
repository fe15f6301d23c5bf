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

from harness import paths
from harness.errors import NotReady
from harness.releases import engines, managed
from harness.releases.beside import Beside
from harness.releases.beside import find as find_beside
from harness.releases.managed import BASE, COMPLETE, Release

Say = Callable[[str], None]
PYTHONS = ((3, 11), (3, 12), (3, 13))
STANDINS = paths.PACKAGE / "releases" / "standins"
STANDINS_NPU = paths.PACKAGE / "releases" / "standins_npu"
STANDINS_CUDA = paths.PACKAGE / "releases" / "standins_cuda"
# Pins that have no wheel for a Python, and what does not work without them.
LACKS = {(3, 13): {"outlines-core": "SGLang's grammar backend outlines"}}
# On disk, as measured: what all releases share, with torch or beside one.
SHARED = {"cpu": 2.4e9, "cuda": 1.2e9}
GIBIBYTE = 2**30
ROOM = {"cpu": 5, "cuda": 3}  # GiB that a base needs while it is made
WHEELS = "UNFIX_WHEELS"  # a folder of wheels to install from, instead of an index
# What pip says without a network; the last is all that is left of it with PIP_RETRIES=0.
UNREACHABLE = ("NewConnectionError", "Temporary failure in name", "Max retries", "ConnectTimeout",
               "ProxyError", "(from versions: none)")  # fmt: skip


def add(release: Release, say: Say, torch: Path | None = None) -> None:
    """Install a release and, before the first one, the base it shares with the others.

    For CUDA beside the torch of a Python, which is looked for if none is named.
    """
    engines.register()
    if release.ready and _shares(release, torch):
        return
    with _one_at_a_time():
        _make_base(release.base, say, torch)
        if not release.is_current():
            _make(release, say)
        if not release.start_is_current():
            _lay_start(release)


def _shares(release: Release, torch: Path | None) -> bool:
    """Whether it stands beside the torch of this Python, or of any if none is named."""
    beside = release.beside
    return torch is None or (beside is not None and beside.python == str(torch))


def _make(release: Release, say: Say) -> None:
    wheel = _fetch(release, say, release.base.python)
    _refuse_if_used(release.folder, f"SGLang {release.name}", "end it first: it is made anew")
    say(f"installing SGLang {release.name}")
    _discard(release.folder)
    # The base's Python, which need not be this one: checkouts that share a home may differ in it.
    _venv(release.base.python, release.folder)
    own = [r for r in requirements(release.lock) if r.name != "sglang"]
    _pip_install(release.python, [str(wheel), *map(str, own)])
    _lay_start(release)


def add_sources(release: Release, say: Say) -> None:
    """Fetch a release's wheel alone, for reading."""
    with _one_at_a_time():
        _fetch(release, say)


def remove(release: Release, force: bool = False) -> None:
    """Remove a release, unless a process is running from it."""
    with _one_at_a_time():
        if not force:
            hint = "end it first, or add --force"
            _refuse_if_used(release.folder, f"SGLang {release.name}", hint)
        _discard(release.folder)
        if not any(Release(release.name, device).folder.exists() for device in managed.DEVICES):
            for wheel in release.wheels():
                wheel.unlink()
        if not any(other.folder.exists() for other in managed.all_releases(release.device)):
            _discard(release.base.folder)


def requirements(lock: Path) -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in lock.read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def _lay_start(release: Release, beside: Beside | None = None) -> None:
    """What finds an engine, then the mark: an environment without it was cut short."""
    site = _site(release.folder)
    beside = beside or release.beside
    for left_over in (site / "harness", site / "unfix_standins.pth"):  # by earlier versions
        left_over.unlink(missing_ok=True)
    behind = None if release == release.base else _site(release.base.folder)
    for name, text in engines.start_files(behind, beside.folders if beside else ()).items():
        _write(site / name, text)
    _write(release.folder / COMPLETE, json.dumps(release.facts(beside), indent=1))


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def _make_base(base: Release, say: Say, torch: Path | None) -> None:
    if base.is_current() and _shares(base, torch):
        if not base.start_is_current():
            _lay_start(base)
        return
    beside = None if base == BASE else find_beside(torch)
    python = Path(beside.python if beside else sys.executable)
    version = beside.version if beside else platform.python_version()
    if tuple(map(int, version.split(".")[:2])) not in PYTHONS:
        raise NotReady(
            f"SGLang's wheels are for Python {pythons()}, this is {version}"
            + ("" if beside else ": make unfix's .venv with one of those "
               "(UNFIX_PYTHON=python3.13 ./unfix …)")
        )  # fmt: skip
    needed = ROOM[base.device]
    free = shutil.disk_usage(paths.releases()).free
    if free < needed * GIBIBYTE:
        raise NotReady(
            f"{free / GIBIBYTE:.1f} GiB are free under {paths.releases()}; "
            f"the shared base of the releases needs {needed}"
        )
    _refuse_if_used(base.folder, "what the releases share", "end it first: it is made anew")
    what = f"plain dependencies, beside {beside}" if beside else "torch, Triton and the rest"
    say(f"installing what the releases share: {what} ({size(SHARED[base.device])}, minutes)")
    _discard(base.folder)
    _venv(python, base.folder)
    _fill_base(base, beside)
    _register_operators(_site(base.folder))
    _lay_start(base, beside)


def _fill_base(base: Release, beside: Beside | None) -> None:
    wanted = requirements(base.lock)
    if beside is None:
        # torch alone with what it asks for: its plain build needs nothing more than the lock
        # holds, the CUDA build that some indexes give does.
        torch = next(str(r) for r in wanted if r.name == "torch")
        constrained = "install --no-compile --only-binary :all: -c".split()
        _pip(["--python", str(base.python), *constrained, str(base.lock), torch])
    lacks = LACKS.get(_version_of(base.python), {})
    own = [r for r in wanted if r.name not in lacks and not (beside and beside.has(r))]
    _pip_install(base.python, [str(r) for r in own])
    found_by = os.pathsep.join(beside.folders) if beside else ""
    done = subprocess.run(
        [base.python, "-c", "import torch"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": found_by},
    )
    if done.returncode:
        raise NotReady(f"torch was installed and does not import: {_last_line(done)}")


def size(amount: float) -> str:
    return f"{amount / 1e9:.1f} GB" if amount >= 1e9 else f"{amount / 1e6:.0f} MB"


def pythons() -> str:
    *others, newest = (".".join(map(str, version)) for version in PYTHONS)
    return f"{', '.join(others)} or {newest}"


def lacking(python: tuple[int, int]) -> str:
    """What of SGLang there is not under a Python, in a sentence; '' if there is all."""
    found = [f"no {what}: {name} has no wheel" for name, what in LACKS.get(python, {}).items()]
    return f"Python {python[0]}.{python[1]} has {', '.join(found)} for it" if found else ""


def _register_operators(site: Path) -> None:
    """Have torch, once it is imported, load what defines the operators torchvision lacks here."""
    info = site / "unfix_operators-1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: unfix-operators\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[torch.backends]\nunfix_operators = torchvision_operators:define\n"
    )


def _fetch(release: Release, say: Say, python: Path | None = None) -> Path:
    """A whole wheel of a release: for a Python, or any, which is enough to read."""
    folder = paths.releases() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    for have in _fitting(release, python):
        if wheel_is_whole(have):
            return have
        say(f"{have.name} is cut short; fetching it again")
        have.unlink()
    say(f"fetching the wheel of SGLang {release.name}")
    words = "download --no-deps --only-binary :all: -d".split()
    into = ["--python", str(python)] if python else []
    _pip([*into, *words, str(folder), f"sglang=={release.name}"])
    for got in _fitting(release, python):
        if wheel_is_whole(got):
            return got
    raise NotReady(f"pip fetched no whole wheel of SGLang {release.name}")


def _fitting(release: Release, python: Path | None) -> list[Path]:
    if python is None:
        return release.wheels()
    version = "".join(map(str, _version_of(python)))
    return [
        wheel for wheel in release.wheels() if wheel.name.split("-")[2] in ("py3", f"cp{version}")
    ]


def _version_of(python: Path) -> tuple[int, int]:
    """Of an environment's Python, which its folders tell."""
    major, minor = _site(python.parent.parent).parent.name.removeprefix("python").split(".")
    return int(major), int(minor)


def wheel_is_whole(wheel: Path) -> bool:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError):
        return False


def _venv(python: Path, folder: Path) -> None:
    words = [str(python), "-m", "venv", "--without-pip", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise NotReady(f"no environment can be made at {folder}: {_last_line(done)}")


def _pip_install(python: Path, wanted: list[str]) -> None:
    words = "install --no-deps --no-compile --only-binary :all:".split()
    _pip(["--python", str(python), *words, *wanted])


def _pip(words: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *words]
    wheels = os.environ.get(WHEELS)
    if wheels:
        command += ["--no-index", "--find-links", wheels]
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, pass_fds=_held
    )
    if done.returncode == 0:
        return
    if "No space left" in done.stderr:
        raise NotReady(f"the disk is full: pip could not go on under {paths.releases()}")
    if wheels and "No matching distribution" in done.stderr:
        raise NotReady(
            f"{wheels} lacks a wheel ({_last_line(done)}): `unfix releases wheels` on a machine "
            "with a network fills it"
        )
    if any(word in done.stderr for word in UNREACHABLE):
        raise NotReady(
            "the package index cannot be reached: connect, or set PIP_INDEX_URL "
            f"({_last_line(done)})"
        )
    if "No module named pip" in done.stderr:
        raise NotReady(f"{sys.executable} has no pip: python -m ensurepip")
    raise NotReady(f"pip did not get what is needed: {_last_line(done)}")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return " ".join(errors or lines[-1:] or ["no reason given"])


def _site(folder: Path) -> Path:
    return next(folder.glob("lib/python*/site-packages"))


def _discard(folder: Path) -> None:
    """Remove a folder in one step for whoever looks, then for good."""
    if folder.exists():
        leaving = folder.with_name(f".leaving-{folder.name}-{os.getpid()}")
        folder.rename(leaving)
        shutil.rmtree(leaving)


# The lock while it is held: pip holds it too, so that one that outlives us is waited for.
_held: list[int] = []


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    import fcntl

    paths.releases().mkdir(parents=True, exist_ok=True)
    with open(paths.releases() / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in paths.releases().glob(".leaving-*"):
            shutil.rmtree(left, ignore_errors=True)  # somebody was stopped while removing it
        _held.append(lock.fileno())
        try:
            yield
        finally:
            _held.clear()


def _refuse_if_used(folder: Path, name: str, hint: str) -> None:
    users = processes_of(folder)
    if users:
        shown = ", ".join(f"{pid} ({words})" for pid, words in users[:5])
        raise NotReady(f"{name} is in use by process {shown}; {hint}")


def processes_of(folder: Path) -> list[tuple[int, str]]:
    """The processes that run from an environment, as far as this machine tells."""
    inside = f"{folder}{os.sep}"
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            held = [line.split(" ")[-1] for line in _lines(entry / "maps")]
            held.append(_program(entry, words[0]))
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
        if any(word.startswith(inside) for word in held):
            found.append((int(entry.name), " ".join(words)[:60].strip()))
    return sorted(found)


def _program(entry: Path, word: str) -> str:
    """Where the program of a process lies that was called by this word, links not followed.

    An environment's python is a link, so the system tells of the real one alone.
    """
    if os.sep not in word:
        variables = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        path = next((v.removeprefix("PATH=") for v in variables if v.startswith("PATH=")), "")
        word = shutil.which(word, path=path) or word
    folder, name = os.path.split(os.path.join(os.readlink(entry / "cwd"), word))
    return os.path.join(os.path.realpath(folder), name)


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()
