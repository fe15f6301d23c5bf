#!/usr/bin/env python3
"""Joins the parts of a pack of wheels, checks them, and installs them without a network.

`unfix releases wheels` copies this file as `install.py` beside the parts. It needs nothing but a
Python with pip. The parts may lie as they are (`1/`, `2/`, ...) or all in one folder with it.
Invariant: nothing is installed before every piece and every joined wheel has its digest.

    python3.12 install.py --venv ENV         install into a virtual environment
    python3.12 install.py --target FOLDER    install into a folder, for PYTHONPATH
    python3 install.py --join FOLDER         join the wheels alone, for UNFIX_WHEELS
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
BLOCK_BYTES = 1 << 20
INVALID_CALL, NOT_READY = 2, 3


@dataclass(frozen=True)
class WheelPiece:
    """A file of a part: a whole wheel, or a numbered piece of one."""

    name: str
    part: str  # the folder of the part; '' for a pack without parts
    size: int
    sha256: str


@dataclass(frozen=True)
class PackedWheel:
    """A wheel and the pieces that it is joined from, in order."""

    name: str
    size: int
    sha256: str
    pieces: tuple[WheelPiece, ...]


@dataclass(frozen=True)
class PackManifest:
    """The contents of a pack, and the machine that it is for."""

    contents: str
    python: str
    machine: str
    is_server: bool  # for releases, the wheels are joined and never installed together
    left_out: tuple[str, ...]
    wheels: tuple[PackedWheel, ...]


class PackError(Exception):
    """A pack that cannot be used; the message names each missing or damaged piece."""


def parse_manifest(text: str) -> PackManifest:
    data: dict[str, Any] = json.loads(text)
    wheels = tuple(
        PackedWheel(**(one | {"pieces": tuple(WheelPiece(**piece) for piece in one["pieces"])}))
        for one in data.pop("wheels")
    )
    return PackManifest(**(data | {"left_out": tuple(data["left_out"]), "wheels": wheels}))


def find_piece(folder: Path, piece: WheelPiece) -> Path | None:
    """Find a piece in its part, or in the folder itself after all parts were copied into it."""
    places = (folder / piece.part / piece.name, folder / piece.name)
    return next((place for place in places if place.is_file()), None)


def describe_damage(folder: Path, piece: WheelPiece) -> str:
    """Describe what is wrong with a piece; '' if it is whole."""
    place = find_piece(folder, piece)
    where = f"{piece.part}/{piece.name}" if piece.part else piece.name
    if place is None:
        return f"{where} is missing"
    size = place.stat().st_size
    if size != piece.size:
        return f"{where} has {size} bytes of {piece.size}"
    if compute_digest(place) != piece.sha256:
        return f"{where} is damaged: its sha256 is another one"
    return ""


def compute_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def join_wheel(folder: Path, wheel: PackedWheel, into: Path) -> Path:
    """Join a wheel from its pieces and check its digest; a whole one is linked or copied."""
    target = into / wheel.name
    places = [find_piece(folder, piece) for piece in wheel.pieces]
    target.unlink(missing_ok=True)
    if len(places) == 1 and places[0] is not None:
        link_or_copy(places[0], target)
        return target
    half = into / f".{wheel.name}"
    with half.open("wb") as out:
        for place in places:
            if place is not None:
                with place.open("rb") as file:
                    shutil.copyfileobj(file, out, BLOCK_BYTES)
    if compute_digest(half) != wheel.sha256:
        half.unlink()
        raise PackError(f"{wheel.name} is damaged: joined, its sha256 is another one")
    half.rename(target)
    return target


def link_or_copy(source: Path, target: Path) -> None:
    """Link a file, which takes no space; copy it to another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def check_pieces(folder: Path, manifest: PackManifest) -> None:
    """Refuse a pack that lacks anything; a part with nothing here is named once."""
    absent: dict[str, list[str]] = {}
    found: set[str] = set()
    damage = []
    for piece in (piece for wheel in manifest.wheels for piece in wheel.pieces):
        trouble = describe_damage(folder, piece)
        if trouble.endswith("is missing"):
            absent.setdefault(piece.part, []).append(trouble)
            continue
        found.add(piece.part)
        if trouble:
            damage.append(trouble)
    for part, troubles in absent.items():
        whole = part and part not in found and len(troubles) > 1
        damage += [f"part {part} is missing ({len(troubles)} files)"] if whole else troubles
    if damage:
        raise PackError(f"the pack is not whole, and nothing was done: {'; '.join(damage)}")


def check_python(manifest: PackManifest) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version != manifest.python:
        raise PackError(
            f"these wheels are for Python {manifest.python}, this is {version}: "
            f"run it with python{manifest.python}"
        )
    if platform.machine() != manifest.machine:
        raise PackError(f"these wheels are for {manifest.machine}, this is {platform.machine()}")


def install_wheels(folder: Path, manifest: PackManifest, venv: Path | None, target: Path) -> None:
    """Install every wheel of a pack; where some were left out, the machine's own are seen."""
    python = sys.executable
    if venv is not None:
        shared = ["--system-site-packages"] if manifest.left_out else []
        run_program([sys.executable, "-m", "venv", *shared, str(venv)], "no environment is made")
        python = str(venv / "bin" / "python")
    home = target if venv is None else venv
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".wheels-", dir=home) as joined:
        wheels = [str(join_wheel(folder, one, Path(joined))) for one in manifest.wheels]
        words = "install -q --no-index --no-deps --no-compile --no-cache-dir".split()
        into = [] if venv is not None else ["--upgrade", "--target", str(target)]
        run_program([*make_pip_command(python), *words, *into, *wheels], "pip failed")


def make_pip_command(python: str) -> list[str]:
    return [python, "-m", "pip", "--disable-pip-version-check", "--isolated", "--no-input"]


def run_program(words: list[str], trouble: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        raise PackError(f"{trouble}: {' '.join(errors or lines[-1:] or ['no reason given'])}")


# A .pth file holds folders, and lines of Python that may add some: both are run as at a start.
LIST_ADDED_FOLDERS = """import os, site, sys
before = {*sys.path}
site.addsitedir(sys.argv[1])
print(*(one for one in sys.path if one not in before and os.path.isdir(one)), sep=os.linesep)"""


def list_path_folders(target: Path) -> list[str]:
    """List a target folder and the folders of its .pth files, which PYTHONPATH does not read."""
    words = [sys.executable, "-c", LIST_ADDED_FOLDERS, str(target)]
    done = subprocess.run(words, capture_output=True, text=True)
    added = done.stdout.splitlines() if done.returncode == 0 else []
    return [str(target), *(folder for folder in added if folder != str(target))]


def list_unmet_requirements(python: str, folders: list[str]) -> list[str]:
    """Ask pip which requirements of the installed packages do not hold."""
    environment = dict(os.environ)
    if folders:
        environment["PYTHONPATH"] = os.pathsep.join(folders)
    done = subprocess.run(
        [*make_pip_command(python), "check"], capture_output=True, text=True, env=environment
    )
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode and not done.stdout.strip():
        raise PackError(f"pip check failed: {lines[-1] if lines else 'it says nothing'}")
    return lines if done.returncode else []


def report_unmet_requirements(manifest: PackManifest, unmet: list[str]) -> int:
    """Print them; return 3 if a package of the pack lacks another one."""
    packed = {one.name.split("-")[0].replace("_", "-").lower() for one in manifest.wheels}
    own = [line for line in unmet if line.split(" ")[0].replace("_", "-").lower() in packed]
    for line in own:
        print(f"install.py: {line}", file=sys.stderr)
    if not any("is not installed" in line for line in own):
        return 0
    left = f" (left out of this pack: {', '.join(manifest.left_out)})" if manifest.left_out else ""
    print(f"install.py: this Python lacks what is named above{left}", file=sys.stderr)
    return NOT_READY


def run_installation(arguments: argparse.Namespace) -> int:
    folder = Path(__file__).resolve().parent
    try:
        manifest = parse_manifest((folder / MANIFEST).read_text())
    except FileNotFoundError:
        raise PackError(f"{MANIFEST} is missing: copy it from the pack, beside this file") from None
    except (ValueError, KeyError, TypeError) as error:
        raise PackError(f"{MANIFEST} is damaged ({error}): copy it again") from None
    check_pieces(folder, manifest)
    if arguments.join is not None:
        arguments.join.mkdir(parents=True, exist_ok=True)
        for wheel in manifest.wheels:
            join_wheel(folder, wheel, arguments.join)
        print(f"{arguments.join}: {len(manifest.wheels)} wheels of {manifest.contents}")
        print(f"export UNFIX_WHEELS={arguments.join.resolve()}")
        return 0
    if not manifest.is_server:
        raise PackError(f"{manifest.contents} is not installed together: --join FOLDER instead")
    check_python(manifest)
    home: Path = (arguments.venv or arguments.target).absolute()
    install_wheels(folder, manifest, arguments.venv and home, home)
    if arguments.venv is not None:
        python, folders = str(home / "bin" / "python"), []
    else:
        python, folders = sys.executable, list_path_folders(home)
    code = report_unmet_requirements(manifest, list_unmet_requirements(python, folders))
    print(f"{home}: {len(manifest.wheels)} packages of {manifest.contents}")
    if folders:
        print(f"export PYTHONPATH={os.pathsep.join(folders)}")
    print(f"{python} -m sglang.launch_server --model-path MODEL")
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description="Join a pack of wheels and install it.")
    places = parser.add_mutually_exclusive_group(required=True)
    places.add_argument("--venv", type=Path, help="install into a virtual environment, new or not")
    places.add_argument("--target", type=Path, help="install into a folder, for PYTHONPATH")
    places.add_argument("--join", type=Path, help="join the wheels alone, for UNFIX_WHEELS")
    try:
        return run_installation(parser.parse_args())
    except (PackError, OSError) as error:
        print(f"install.py: {error}", file=sys.stderr)
        return NOT_READY


if __name__ == "__main__":
    sys.exit(main())
