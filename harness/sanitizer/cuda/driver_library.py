"""The stand-in for the driver: a library of its name, in front of the real one.

Each Python process of the command loads it before anything else loads `libcuda.so.1`. Whoever asks
the loader for `libcuda.so.1` from then on, by a dependency or by `dlopen`, gets ours, since that
name is loaded already. What ours lacks is found in the real library, on which it depends by its
path (a path never matches a name).
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.core.errors import NotReadyError
from harness.sanitizer.cuda.c_compiler import call_compiler, find_c_compiler

DRIVER_NAME = "libcuda.so.1"
_SOURCE = Path(__file__).with_name("driver_standin.c")
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


def build_standin(target: Path, real: Path, launches: Path) -> None:
    """Build the stand-in as `target`; it depends on the real driver by that one's path.

    `launches` is the library that adds the checks to a launch.
    """
    compiler = find_c_compiler(f"a stand-in for {target.name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent.parent) as folder:
        # An empty library that calls itself by the real one's path: the linker notes that path.
        named = Path(folder, "named.so")
        symbols = Path(folder, "symbols.map")
        symbols.write_text(f"{target.name} {{ global: cu*; unfix_*; local: *; }};\n")
        built = Path(folder, target.name)
        build = [compiler, "-std=gnu11", "-O2", "-fPIC", "-shared", "-o"]
        call_compiler([*build, str(named), f"-Wl,-soname,{real}", "-x", "c", os.devnull])
        flags = [f'-DREAL_DRIVER="{real}"', f"-Wl,-soname,{target.name}", "-Wl,-Bsymbolic"]
        flags.append(f"-Wl,--version-script={symbols}")
        # Libraries that the real one loads by name lie beside it: as its loader, ours says where.
        flags += ["-Wl,--disable-new-dtags", f"-Wl,-rpath,{real.parent}"]
        needed = ["-Wl,--no-as-needed", str(named), str(launches), "-ldl", "-lpthread"]
        call_compiler([*build, str(built), *flags, str(_SOURCE), *needed])
        os.replace(built, target)


def load_standin(file: Path) -> ctypes.CDLL:
    """Load the stand-in; a library of its name that is loaded already would stay in use."""
    try:
        ctypes.CDLL(file.name, mode=os.RTLD_NOLOAD)
    except OSError:  # no library of that name is loaded
        return ctypes.CDLL(str(file))
    if f" {file}\n" not in Path("/proc/self/maps").read_text():
        raise NotReadyError(f"this process had loaded {file.name} before its checks began")
    return ctypes.CDLL(str(file))
