"""Making and removing release environments: one shared base, and a thin folder for each release.

torch, Triton and every dependency that the releases agree on lie once in `.releases/base`. A
release's own environment holds SGLang's wheel and what its pins differ in, and stands in front.
"""

from __future__ import annotations

import contextlib
import json
import os
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
from harness.releases.managed import COMPLETE, LOCKS, Release, facts, is_current

Say = Callable[[str], None]
PYTHONS = ((3, 11), (3, 12))
BASE = "base"
STANDINS = paths.PACKAGE / "releases" / "standins"
STANDINS_NPU = paths.PACKAGE / "releases" / "standins_npu"
START = "unfix_start"
VARIABLES = ("SGLANG_DEBUG_REVERT_PR", "SGLANG_DEBUG_ENABLE_PR")
GIBIBYTE = 2**30


def base_folder() -> Path:
    return paths.releases() / BASE


def base_python() -> Path:
    return base_folder() / "bin" / "python"


def add(release: Release, say: Say) -> None:
    """Install a release and, before the first one, the base it shares with the others."""
    with _one_at_a_time():
        _make_base(say)
        if release.ready:
            return
        wheel = _fetch(release, say)
        _refuse_if_used(release.folder, f"SGLang {release.name}", "end it first: it is made anew")
        say(f"installing SGLang {release.name}")
        _discard(release.folder)
        _venv(release.folder, with_pip=False)
        own = [r for r in requirements(release.lock) if r.name != "sglang"]
        _pip_install(release.python, [str(wheel), *map(str, own)])
        site = _site(release.folder)
        (site / "unfix.pth").write_text(pth(_site(base_folder())))
        shutil.copy(paths.PACKAGE / "releases" / f"{START}.py", site)
        # For `from harness import toggles`; nothing else of the checkout is on the path.
        (site / "harness").symlink_to(paths.PACKAGE)
        _complete(release.folder, release.facts())


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
        if release.wheel is not None:
            release.wheel.unlink()


def requirements(lock: Path) -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in lock.read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def _complete(folder: Path, made_from: dict[str, str]) -> None:
    temporary = folder / f"{COMPLETE}.tmp"
    # Where a process of the release finds the planner, and where it leaves its attestation.
    places = {"planner": sys.executable, "home": str(paths.workspace())}
    temporary.write_text(json.dumps({**made_from, **places}, indent=1))
    os.replace(temporary, folder / COMPLETE)


def _make_base(say: Say) -> None:
    lock = LOCKS / f"{BASE}.txt"
    if is_current(base_folder(), facts(lock)):
        return
    if sys.version_info[:2] not in PYTHONS:
        wanted = " or ".join(".".join(map(str, version)) for version in PYTHONS)
        raise NotReady(
            f"SGLang's wheels are for Python {wanted}, this is {sys.version.split()[0]}: "
            "make unfix's .venv with one of those (UNFIX_PYTHON=python3.12 ./unfix …)"
        )
    free = shutil.disk_usage(paths.releases()).free
    if free < 5 * GIBIBYTE:
        raise NotReady(
            f"{free / GIBIBYTE:.1f} GiB are free under {paths.releases()}; "
            "the shared base of the releases needs 5"
        )
    _refuse_if_used(base_folder(), "what the releases share", "end it first: it is made anew")
    say("installing what the releases share: torch, Triton and plain dependencies (minutes)")
    _discard(base_folder())
    _venv(base_folder(), with_pip=False)
    # torch alone with what it asks for: its plain build needs nothing more than the lock holds,
    # the CUDA build that some indexes give does.
    torch = next(str(r) for r in requirements(lock) if r.name == "torch")
    constrained = "install --no-compile --only-binary :all: -c".split()
    _pip(["--python", str(base_python()), *constrained, str(lock), torch])
    _pip_install(base_python(), [str(r) for r in requirements(lock)])
    done = subprocess.run([base_python(), "-c", "import torch"], capture_output=True, text=True)
    if done.returncode:
        raise NotReady(f"torch was installed and does not import: {_last_line(done)}")
    _register_operators(_site(base_folder()))
    _complete(base_folder(), facts(lock))


def _register_operators(site: Path) -> None:
    """Have torch, once it is imported, load what defines the operators torchvision lacks here."""
    info = site / "unfix_operators-1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: unfix-operators\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[torch.backends]\nunfix_operators = torchvision_operators:define\n"
    )
    (site / "unfix_standins.pth").write_text(f"{STANDINS}\n")


def pth(base_site: Path) -> str:
    """The path file of a release: base behind it, stand-ins last, and toggles when asked for.

    Python goes on after an error in a path file, and a process that was asked for a fault must
    not go on without it: any error here ends it.
    """
    asked = " or ".join(f"os.environ.get({name!r})" for name in VARIABLES)
    start = (
        f"try:\n import {START}\nexcept BaseException as error:\n import sys\n"
        " sys.stderr.write('unfix: toggles cannot be applied: %r\\n' % error)\n"
        " sys.stderr.flush()\n os._exit(3)"
    )
    return f"{base_site}\n{STANDINS}\nimport os; ({asked}) and exec({start!r})\n"


def _fetch(release: Release, say: Say) -> Path:
    wheels = paths.releases() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    have = release.wheel
    if have is not None:
        if wheel_is_whole(have):
            return have
        say(f"{have.name} is cut short; fetching it again")
        have.unlink()
    say(f"fetching the wheel of SGLang {release.name}")
    words = "download --no-deps --only-binary :all: -d".split()
    _pip([*words, str(wheels), f"sglang=={release.name}"])
    wheel = release.wheel
    if wheel is None or not wheel_is_whole(wheel):
        raise NotReady(f"pip fetched no whole wheel of SGLang {release.name}")
    return wheel


def wheel_is_whole(wheel: Path) -> bool:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError):
        return False


def _venv(folder: Path, with_pip: bool) -> None:
    words = [sys.executable, "-m", "venv", *([] if with_pip else ["--without-pip"]), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise NotReady(f"no environment can be made at {folder}: {_last_line(done)}")


def _pip_install(python: Path, wanted: list[str]) -> None:
    words = "install --no-deps --no-compile --only-binary :all:".split()
    _pip(["--python", str(python), *words, *wanted])


def _pip(words: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, pass_fds=_held
    )
    if done.returncode == 0:
        return
    if "No space left" in done.stderr:
        raise NotReady(f"the disk is full: pip could not go on under {paths.releases()}")
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
