"""The processes that run from an environment, which is not replaced while they do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from harness.core.errors import NotReadyError


def refuse_if_in_use(folder: Path, environment_name: str, hint: str) -> None:
    users = find_processes_using(folder)
    if users:
        shown = ", ".join(f"{pid} ({words})" for pid, words in users[:5])
        raise NotReadyError(f"{environment_name} is in use by process {shown}; {hint}")


def find_processes_using(folder: Path) -> list[tuple[int, str]]:
    """Find the processes that run from an environment; return ids and command lines."""
    inside = f"{folder}{os.sep}"
    users = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            files = [
                line.split(" ")[-1]
                for line in (entry / "maps").read_text(errors="replace").splitlines()
            ]
            files.append(_find_program(entry, words[0]))
        except OSError:
            continue  # ended, or another user's
        if any(word.startswith(inside) for word in files):
            users.append((int(entry.name), " ".join(words)[:60].strip()))
    return sorted(users)


def _find_program(process_folder: Path, program_name: str) -> str:
    """Find the path of a process's program, without following links.

    An environment's python is a link, and /proc/PID/exe names only its target.
    """
    if os.sep not in program_name:
        variables = (process_folder / "environ").read_bytes().decode(errors="replace").split("\0")
        path = next((v.removeprefix("PATH=") for v in variables if v.startswith("PATH=")), "")
        program_name = shutil.which(program_name, path=path) or program_name
    folder, name = os.path.split(os.path.join(os.readlink(process_folder / "cwd"), program_name))
    return os.path.join(os.path.realpath(folder), name)
