"""Libraries in the place of NVIDIA's, loaded first by their name; each depends on the real one.

Example: a process has loaded our `libcuda.so.1`. Whoever asks the loader for `libcuda.so.1` from
then on, by a dependency or by `dlopen`, gets ours, since that name is loaded already. What ours
lacks is found in the real library, on which it depends by its path (a path never matches a name).
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.core.errors import NotReadyError

DRIVER_NAME = "libcuda.so.1"
_NVRTC_NAME = re.compile(r"libnvrtc\.so\.\d+")
_FIND_DRIVER = f"""
import ctypes
try:
    ctypes.CDLL("{DRIVER_NAME}")
except OSError:
    pass
else:
    print(*(line.split(maxsplit=5)[-1] for line in open("/proc/self/maps") if "libcuda.so" in line))
"""


def find_driver() -> Path | None:
    """Find the library that the loader has for the driver, by a process that loads it."""
    words = [sys.executable, "-I", "-S", "-c", _FIND_DRIVER]
    done = subprocess.run(words, capture_output=True, text=True)
    found = done.stdout.split()
    return Path(found[0]) if found else None


def has_driver() -> bool:
    """Return whether this process could load a driver."""
    try:
        ctypes.CDLL(DRIVER_NAME)
    except OSError:
        return False
    return True


def find_nvrtc_libraries(cuda_home: Path) -> list[Path]:
    """Find this process's NVRTC of each version: of its packages, else where the loader looks."""
    packages = [Path(folder, "nvidia") for folder in sys.path if folder]
    folders = [folder for package in packages for folder in sorted(package.glob("*/lib"))]
    named = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    folders += [Path(folder) for folder in named if folder]
    folders += [cuda_home / "lib64", Path("/usr/local/cuda/lib64"), Path("/usr/lib64")]
    folders += sorted(Path("/usr/lib").glob("*-linux-gnu"))
    found: dict[str, Path] = {}
    for folder in folders:
        for file in _list_folder(folder):
            if _NVRTC_NAME.fullmatch(file.name):
                found.setdefault(file.name, file)
    return list(found.values())


def _list_folder(folder: Path) -> Iterable[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else ()


def build_standin(
    target: Path, real: Path, source: Path, definition: str, libraries: Sequence[Path] = ()
) -> None:
    """Build a library that has the name of `target` and depends on the real one by its path."""
    compiler = find_c_compiler(f"a stand-in for {target.name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent.parent) as folder:
        # An empty library that calls itself by the real one's path: the linker notes that path.
        named = Path(folder, "named.so")
        symbols = Path(folder, "symbols.map")
        symbols.write_text(f"{target.name} {{ global: cu*; nvrtc*; unfix_*; local: *; }};\n")
        built = Path(folder, target.name)
        build = [compiler, "-std=gnu11", "-O2", "-fPIC", "-shared", "-o"]
        call_compiler([*build, str(named), f"-Wl,-soname,{real}", "-x", "c", os.devnull])
        flags = [f'-D{definition}="{real}"', f"-Wl,-soname,{target.name}", "-Wl,-Bsymbolic"]
        flags.append(f"-Wl,--version-script={symbols}")
        # Libraries that the real one loads by name lie beside it: as its loader, ours says where.
        flags += ["-Wl,--disable-new-dtags", f"-Wl,-rpath,{real.parent}"]
        needed = ["-Wl,--no-as-needed", str(named), *map(str, libraries), "-ldl", "-lpthread"]
        call_compiler([*build, str(built), *flags, str(source), *needed])
        os.replace(built, target)


def find_c_compiler(user: str) -> str:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        raise NotReadyError(f"{user} needs a C compiler, as nvcc does")
    return compiler


def call_compiler(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise NotReadyError(f"{shlex.join(words)} failed: {done.stderr[-1000:]}")


def load_standin(file: Path) -> ctypes.CDLL:
    """Load a stand-in; a library of its name that is loaded already would stay in use."""
    try:
        ctypes.CDLL(file.name, mode=os.RTLD_NOLOAD)
    except OSError:  # no library of that name is loaded
        return ctypes.CDLL(str(file))
    if f" {file}\n" not in Path("/proc/self/maps").read_text():
        raise NotReadyError(f"this process had loaded {file.name} before its checks began")
    return ctypes.CDLL(str(file))
