"""The CUDA C++ kernels of SGLang that default servers launch, and what holds each to a reference.

    UNFIX_LAUNCHES=SUITES ./unfix exec --release 0.5.23 -- python -m pytest suites/cuda_kernels
    python -m bench.server_kernels --launches SUITES [--virtual NAME=LAUNCHES ...] [--record FILE]
    python -m bench.server_kernels --read FILE

What servers on a card launch is in `bench/recorded/checked-servers`, by SGLang's own profiler, and
in later records by the checks of `--check cuda`. A server that no card has run is listed by its
launches on the virtual GPU, which plays an H100 (`bench/served_architecture.py`). Loaders are those
whose modules have launched the kernel in recorded runs. Each test of `suites/cuda_kernels` holds
what it launches to a reference of its own. `--read` prints the table of a record.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from bench.recording import make_parser, read_record, record_result
from harness.sanitizer.plugins.for_sglang.recorded_builds import read_recorded_builds
from harness.sanitizer.triton.recorded_reach import read_reach

ROOT = Path(__file__).parents[1]
SERVERS = ROOT / "bench" / "recorded" / "checked-servers"
BUILDS = ROOT / "harness" / "sanitizer" / "plugins" / "sglang"
_NAMESPACE = "sglang::"
_SOURCES = "sglang/kernels/jit/csrc/"
_SUITE = "suite suites/cuda_kernels/"


def read_servers() -> dict[str, Counter[str]]:
    """Read how often each server on a card launched each kernel."""
    found: dict[str, Counter[str]] = {}
    for file in sorted(SERVERS.iterdir()):
        for case, runs in read_record(file)["cases"].items():
            for run in runs:
                for name, count in (run.get("launches") or {}).items():
                    if name.startswith(_NAMESPACE):
                        found.setdefault(case, Counter())[name.rpartition("::")[2]] += count
                for name, one in run.get("check", {}).get("launches_by_kernel", {}).items():
                    if _SOURCES in one["place"]:
                        kernel = name.partition("<")[0].rpartition("::")[2]
                        found.setdefault(case, Counter())[kernel] += one["launches"]
    return found


def read_kernels(file: Path) -> set[str]:
    """Read the CUDA kernels of a file of launches."""
    return {one.kernel.rpartition(":")[2] for one in read_reach(file) if _is_cuda(one.kernel)}


def _is_cuda(kernel: str) -> bool:
    return "/" in kernel.partition(":")[0]  # a path; of Triton's it is a dotted module


def read_tests(file: Path) -> dict[str, set[str]]:
    """Read the tests that launch each CUDA kernel."""
    tests: dict[str, set[str]] = {}
    for one in read_reach(file):
        if _is_cuda(one.kernel):
            own = {by.removeprefix(_SUITE) for by in one.by if by.startswith(_SUITE)}
            tests.setdefault(one.kernel.rpartition(":")[2], set()).update(own)
    return tests


def read_loaders() -> dict[str, set[str]]:
    """Read the loaders whose modules have launched each kernel."""
    loaders: dict[str, set[str]] = {}
    for file in ("builds.jsonl", "further_builds.jsonl"):
        for build in read_recorded_builds(BUILDS / file):
            module = build.module.removeprefix("sglang.kernels.ops.")
            for kernel in build.kernels:
                loaders.setdefault(kernel, set()).add(f"{module}.{build.function}")
    return loaders


def list_kernels(launches: Path, virtual: dict[str, Path]) -> list[dict[str, Any]]:
    servers = read_servers()
    for name, file in virtual.items():
        servers[name] = Counter(dict.fromkeys(read_kernels(file), 0))
    tests, loaders = read_tests(launches), read_loaders()
    return [
        {
            "kernel": kernel,
            "servers": {name: own[kernel] for name, own in servers.items() if kernel in own},
            "loaders": sorted(loaders.get(kernel, ())),
            "tests": sorted(tests.get(kernel, ())),
        }
        for kernel in sorted(set().union(*servers.values()))
    ]


def render_table(kernels: list[dict[str, Any]]) -> str:
    rows = ["| kernel | loader | servers | held to a reference by |", "|---|---|---|---|"]
    for one in kernels:
        files: dict[str, list[str]] = {}
        for test in one["tests"]:
            file, _, name = test.partition("::")
            files.setdefault(file, []).append(name)
        tests = "; ".join(f"`{file}`: {', '.join(names)}" for file, names in files.items())
        loaders = ", ".join(f"`{loader}`" for loader in one["loaders"])
        rows.append(
            f"| `{one['kernel']}` | {loaders or 'none that launched it here'} | "
            f"{', '.join(one['servers'])} | {tests or '—'} |"
        )
    return "\n".join(rows)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--launches", type=Path, metavar="FILE")
    parser.add_argument("--virtual", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--read", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.read is not None:
        kernels = read_record(arguments.read)["kernels"]
    elif arguments.launches is None:
        parser.error("--launches FILE, or --read FILE")
    else:
        virtual = {
            name: Path(file) for name, _, file in (v.partition("=") for v in arguments.virtual)
        }
        kernels = list_kernels(arguments.launches, virtual)
        record_result({"kernels": kernels}, arguments.record, say=False)
    print(render_table(kernels))
    missing = [one["kernel"] for one in kernels if not one["tests"]]
    print(f"{len(kernels)} kernels, {len(kernels) - len(missing)} held to a reference by a suite")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
