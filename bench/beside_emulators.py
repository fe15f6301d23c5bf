"""Planted faults on a CPU, and which other emulators of PTX one can get.

    python -m bench.beside_emulators [FAULT …] [--record FILE]
    python -m bench.beside_emulators --read RECORD

The faults are of `bench/cuda_checks.py`. Each is run by SGLang's own host code on the
virtual GPU, in a process of its own, under all checks; `none` is no fault. Of other emulators the
record says what the package index and apt have of them: the archives that pip fetches are searched
for the emulator's files, and nothing of them is run. Needs SGLang 0.5.23 among the managed
releases, the CUDA toolkit, and a network.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from bench.recording import make_parser, read_record, record_result

ROOT = Path(__file__).parents[1]
RELEASE = "0.5.23"
FAULTS = (
    *("none", "store_overrun", "store_overflow", "activation_overrun", "activation_overflow"),
    *("clamp_overrun", "clamp_overflow", "store_race", "clamp_race", "activation_empty"),
    "clamp_empty",
)
_COMMAND = (
    *(str(ROOT / "unfix"), "exec", "--device", "virtual", "--cuda-kernels", "--check", "all"),
    *("--release", RELEASE, "--", "python", str(ROOT / "bench" / "cuda_checks.py"), "plant"),
)
_REPORT = re.compile(r"unfix:   ((?:OutOfBounds|IntegerOverflow|DataRace|UninitializedMemory): .*)")
# What pip says where the index has no archive of the kind that was asked for.
_ABSENT = re.compile(r"No matching distribution found|Could not find a version")
# An emulator's name in the package index and in apt, and what its files are called.
EMULATORS = {
    "tinygrad": re.compile(r"mockgpu|(?:^|/)emu\.py$"),
    "gpuocelot": re.compile(r"ocelot"),
    "gpgpu-sim": re.compile(r"gpgpu"),
}


def run_fault(fault: str) -> dict[str, Any]:
    began = time.monotonic()
    # A session begins with the first launch, and knows no memory that was uninitialized before.
    names = ["clamp_right"] if fault == "none" or fault.endswith("_empty") else []
    names += [] if fault == "none" else [fault]
    done = subprocess.run(
        [*_COMMAND, *names], capture_output=True, text=True, cwd=ROOT, check=False
    )
    reports = list(dict.fromkeys(_REPORT.findall(done.stdout + done.stderr)))
    if done.returncode not in (0, 1) or (fault == "none" and done.returncode):
        raise RuntimeError(f"{fault} ended with {done.returncode}: {done.stderr[-1000:]}")
    result = {"fault": fault, "exit": done.returncode, "reports": reports}
    return {**result, "seconds": round(time.monotonic() - began, 1)}


def find_packages(name: str, files: re.Pattern[str]) -> dict[str, Any]:
    """Return the archives that the package index has of a name, with the emulator's files in them.

    Example: a wheel that leaves its tests out has none.
    """
    found: dict[str, Any] = {}
    for kind in ("--only-binary", "--no-binary"):
        with tempfile.TemporaryDirectory() as folder:
            words = ["download", "-q", "--no-deps", kind, ":all:", "-d", folder, name]
            pip = [sys.executable, "-m", "pip", *words]
            done = subprocess.run(pip, capture_output=True, text=True, check=False)
            if done.returncode and not _ABSENT.search(done.stderr):
                raise RuntimeError(f"{name}: {done.stderr[-1000:]}")
            for archive in Path(folder).iterdir():
                found[archive.name] = [one for one in list_files(archive) if files.search(one)]
    return {"package index": found or "nothing", "apt": search_apt(name) or "nothing"}


def search_apt(name: str) -> list[str]:
    command = ["apt-cache", "search", "--names-only", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def list_files(archive: Path) -> list[str]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            return opened.namelist()
    with tarfile.open(archive) as opened_tar:
        return opened_tar.getnames()


def describe_result(result: dict[str, Any]) -> list[str]:
    lines = [
        f"{run['fault']}: {len(run['reports'])} reports in {run['seconds']} s: "
        f"{run['reports'][0] if run['reports'] else 'nothing'}"
        for run in result["runs"]
    ]
    return lines + [f"{name}: {has}" for name, has in result["emulators"].items()]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("faults", nargs="*", default=list(FAULTS))
    parser.add_argument("--read", type=Path, metavar="RECORD")
    arguments = parser.parse_args()
    if arguments.read is not None:
        print("\n".join(describe_result(read_record(arguments.read))))
        return 0
    if not search_apt("^coreutils$"):
        raise RuntimeError("apt knows no package: apt-get update")
    emulators = {name: find_packages(name, files) for name, files in EMULATORS.items()}
    runs = [run_fault(fault) for fault in arguments.faults]
    result = {"runs": runs, "emulators": emulators}
    record_result(result, arguments.record, say=False)
    print("\n".join(describe_result(result)))
    return int(any((run["fault"] == "none") == bool(run["reports"]) for run in runs))


if __name__ == "__main__":
    sys.exit(main())
