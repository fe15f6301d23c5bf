"""Planted faults of CUDA kernels under unfix, compute-sanitizer and torch's sanitizer, on a card.

    python bench/beside_sanitizers.py [FAULT …] [--tool TOOL …] [--total SECONDS] [--record FILE]
    python bench/beside_sanitizers.py --read RECORD

The faults are those of `bench/cuda_checks.py`, each in a process of its own; `none` is no fault.
Needs a GPU, nvcc, compute-sanitizer and SGLang 0.5.23 in this Python. memcheck and initcheck run
with PyTorch's caching off, since they know memory by its cudaMalloc. The record says of each
process what the tool reported and how long it ran. Modules are built before. First come the faults
of the kind that a tool is for, with no fault, then the other pairs; a pair whose turn comes after
the total of seconds is listed as not run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import recording
from harness.core import machine

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "bench" / "cuda_checks.py"
FAULTS = (
    *("none", "store_overrun", "store_overflow", "activation_overrun", "activation_overflow"),
    *("clamp_overrun", "clamp_overflow", "store_race", "clamp_race", "activation_empty"),
    "clamp_empty",
)
_ADDRESSES = tuple(fault for fault in FAULTS if fault.endswith(("_overrun", "_overflow")))
_RACES, _EMPTIES = ("store_race", "clamp_race"), ("activation_empty", "clamp_empty")
# What each tool is for; these pairs come first.
_OWN_FAULTS = {
    "unfix": FAULTS,
    "memcheck": ("none", *_ADDRESSES),
    "racecheck": ("none", *_RACES),
    "initcheck": ("none", *_EMPTIES),
    "torch": ("none", *_RACES),
    "plain": ("none", *(fault for fault in FAULTS if fault.endswith("_overflow"))),
}
_SANITIZER = "compute-sanitizer"
_CHECK = (
    *(sys.executable, "-m", "harness", "exec", "--check", "all,cuda", "--"),
    sys.executable,
)
TOOLS: dict[str, tuple[str, ...]] = {
    "plain": (sys.executable,),
    "unfix": _CHECK,
    "memcheck": (_SANITIZER, "--tool", "memcheck", sys.executable),
    "racecheck": (_SANITIZER, "--tool", "racecheck", sys.executable),
    "initcheck": (_SANITIZER, "--tool", "initcheck", sys.executable),
    "torch": (sys.executable,),
}
_VARIABLES = {
    "memcheck": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "initcheck": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "torch": {"TORCH_CUDA_SANITIZER": "1"},
}
# A line of each tool that says that something is wrong with an access.
_WORDS = {
    "plain": re.compile(r"an illegal memory access.*"),
    "unfix": re.compile(r"(?:OutOfBounds|IntegerOverflow|DataRace|UninitializedMemory): .*"),
    "memcheck": re.compile(r"========= (Invalid .*)"),
    "racecheck": re.compile(r"========= ((?:Error|Warning): .*)"),
    "initcheck": re.compile(r"========= (Uninitialized .*)"),
    "torch": re.compile(r"(?:CSAN detected|Possible data race).*"),
}


_SHORTEST_SECONDS = 15.0  # with less time left a process is not begun


def run_fault(fault: str, tool: str, limit: float) -> dict[str, Any]:
    words = [*TOOLS[tool], str(PROGRAM), "plant", fault if fault != "none" else "clamp_right"]
    began = time.monotonic()
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        env={**os.environ, **_VARIABLES.get(tool, {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    code: int | None = None
    try:
        output, _ = process.communicate(timeout=limit)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the tool, and the Python that it watches
        output, _ = process.communicate()
    messages = [match.group(0).strip() for match in _WORDS[tool].finditer(output)]
    return {
        "fault": fault,
        "tool": tool,
        "exit": code,
        "seconds": round(time.monotonic() - began, 1),
        "reports": len(messages),
        "messages": list(dict.fromkeys(messages))[:4],
        **({} if code in (0, 1) and messages else {"end": output[-400:]}),
    }


def order_pairs(faults: Sequence[str], tools: Sequence[str]) -> list[tuple[str, str]]:
    """Order faults and tools: first a tool's own faults, in the tools' order."""
    pairs = [(fault, tool) for tool in tools for fault in faults]
    return sorted(pairs, key=lambda pair: pair[0] not in _OWN_FAULTS[pair[1]])


def run_pairs(
    pairs: Sequence[tuple[str, str]], at_once: int, limit: float, ends: float
) -> Iterator[dict[str, Any]]:
    """Run each pair and yield its result as it ends; none of them runs longer than until `ends`."""

    def run_in_time(pair: tuple[str, str]) -> dict[str, Any] | None:
        left = ends - time.monotonic()
        return run_fault(*pair, min(limit, left)) if left > _SHORTEST_SECONDS else None

    with ThreadPoolExecutor(at_once) as pool:
        for future in as_completed([pool.submit(run_in_time, pair) for pair in pairs]):
            if (result := future.result()) is not None:
                yield result


def describe_runs(runs: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"{run['fault']}, {run['tool']}: {run['reports']} reports in {run['seconds']} s, "
        f"exit {run['exit']}: {run['messages'][0] if run['messages'] else 'nothing'}"
        for run in runs
    ]


def build_modules(tool: str) -> float:
    began = time.monotonic()
    words = [*TOOLS[tool], str(PROGRAM), "build"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if "modules loaded" not in done.stdout:  # unfix ends with 3: nothing was launched
        raise SystemExit(f"{tool}: the modules are not built: {done.stderr[-2000:]}")
    return round(time.monotonic() - began, 1)


def main() -> int:
    parser = recording.make_parser(__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--tool", choices=tuple(TOOLS), action="append", help="only this one")
    parser.add_argument("--limit", type=float, default=45.0, help="seconds of a process")
    parser.add_argument("--total", type=float, default=150.0, help="seconds, builds included")
    parser.add_argument("--at-once", type=int, default=8, help="processes at a time")
    parser.add_argument("--read", type=Path, help="describe a record")
    arguments = parser.parse_args()
    if arguments.read:
        print("\n".join(describe_runs(recording.read_record(arguments.read)["runs"])))
        return 0
    if strange := set(arguments.faults) - set(FAULTS):
        parser.error(f"no fault is called {', '.join(sorted(strange))}")
    machine.require_device("cuda")
    ends = time.monotonic() + arguments.total
    tools = arguments.tool or list(_OWN_FAULTS)
    pairs = order_pairs(arguments.faults or FAULTS, tools)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SGLANG_JIT_CACHE_DIR"] = folder
        kinds = [kind for kind in ("unfix", "plain") if kind in tools or kind == "plain"]
        with ThreadPoolExecutor(2) as pool:
            builds = dict(zip(kinds, pool.map(build_modules, kinds), strict=True))
        print(f"modules built in {builds} s", flush=True)
        runs: list[dict[str, Any]] = []
        for run in run_pairs(pairs, arguments.at_once, arguments.limit, ends):
            runs.append(run)
            print(describe_runs([run])[0], flush=True)
            have_run = {(each["fault"], each["tool"]) for each in runs}
            result = {
                "build_s": builds,
                "at_once": arguments.at_once,
                "runs": runs,
                "not_run": [pair for pair in pairs if pair not in have_run],
            }
            # After each process, since a later one may hang.
            recording.record_result(result, arguments.record, say=False)
        not_run = [pair for pair in pairs if pair not in {(r["fault"], r["tool"]) for r in runs}]
        print(f"not run: {len(not_run)}", *map(", ".join, not_run), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
