"""Default servers plain and with all run-time builds under check: shares of launches, and cost.

    python bench/checked_servers.py [CASE ...] [--tool TOOL ...] [--rounds N] [--record FILE]
    python bench/checked_servers.py --read RECORD ...

Needs a GPU and SGLang 0.5.23 in this Python. `none` is the server as it is; its launches of a
few steps are counted by SGLang's own profiler. `check` checks Triton's kernels, `cuda` those that
are built while the server runs as well, `zones` the bytes behind the tensors of compiled operators.
Each server answers rounds of sixteen requests; tokens a second are those of the second half, memory
is what the card has in use behind them. Each tool has caches of its own, empty before its first
case.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import gzip
import http
import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import recording
import sanitizer

from harness.cli import kernel_checks
from harness.core import machine
from harness.core.errors import UnfixError
from harness.kernels.cuda import checked_toolchain
from harness.kernels.gpu import DEFAULT_CHECKS
from harness.patching.child_environment import ChildEnvironment
from harness.store.record_files import read_record_text
from harness.workers.servers.server import (
    DEFAULT_ENVIRONMENT,
    ServerFailed,
    ServerSetup,
    SglangServer,
)

EAGLE = (
    *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8"),
    *("--speculative-draft-model-path", f"{sanitizer.TRAINED}/llama-eagle"),
)
CASES = {
    "llama": ("llama", ()),
    "gpt-oss": ("gpt-oss", ()),
    "deepseek-v32": ("deepseek-v32", ()),
    "eagle": ("llama", EAGLE),
}
# SGLang reserves topk times steps of the context for EAGLE's drafts, and refuses what is longer.
RESERVED = 12
TOOLS = ("none", "check", "cuda", "zones")
CHECKS = {"none": "", "zones": "zones"}  # of other tools, the default ones
# Only sizes are given, so that a tiny model does not take the whole card.
SIZES = (
    *("--dtype", "bfloat16", "--mem-fraction-static", "0.5", "--max-total-tokens", "16384"),
    *("--max-running-requests", str(sanitizer.AT_ONCE)),
)
STEPS = 20  # that the profiler looks at


def make_setup(case: str, tool: str, folder: Path) -> ServerSetup:
    model, words = CASES[case]
    environment = ChildEnvironment()
    plain = dict(environment)
    if tool == "cuda":
        home = checked_toolchain.find_cuda_home(environment)
        assert home is not None, "no CUDA toolkit"
        checked_toolchain.make_checked_toolkit(home, DEFAULT_CHECKS).request(environment)
    else:
        environment["SGLANG_JIT_CACHE_DIR"] = str(folder / f"{tool}-jit")
        environment["TVM_FFI_CACHE_DIR"] = str(folder / f"{tool}-tvm")
        environment["FLASHINFER_WORKSPACE_BASE"] = str(folder / f"{tool}-flashinfer")
    environment["TRITON_CACHE_DIR"] = str(folder / f"{tool}-triton")
    changed = {name: value for name, value in environment.items() if plain.get(name) != value}
    return ServerSetup(
        Path(sys.executable),
        ("--model-path", f"{sanitizer.TRAINED}/{model}", *SIZES, *words),
        environment={**DEFAULT_ENVIRONMENT, **changed},
        kernel_checks=CHECKS.get(tool, ",".join(DEFAULT_CHECKS)),
    )


def ask(server: SglangServer, number: int, limit: float) -> bool:
    """Send one request; a refusal, as of one that is too long, is a mistake of this bench."""
    try:
        sanitizer.send_question(server, number, limit, RESERVED)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.BAD_REQUEST:
            raise UnfixError(f"the server refuses a request: {error.read().decode()}") from error
        return False
    except (OSError, http.client.HTTPException):
        return False
    return True


def ask_rounds(server: SglangServer, rounds: int, limit: float) -> dict[str, Any]:
    """Send all requests, sixteen at a time; return the tokens a second of the second half."""
    with concurrent.futures.ThreadPoolExecutor(sanitizer.AT_ONCE) as pool:
        numbers = range(sanitizer.AT_ONCE * rounds)
        half = len(numbers) // 2
        first = list(pool.map(lambda n: ask(server, n, limit), numbers[:half]))
        began = time.monotonic()
        second = list(pool.map(lambda n: ask(server, n, limit), numbers[half:]))
        seconds = time.monotonic() - began
    return {
        "asked": len(numbers),
        "answered": sum(first) + sum(second),
        "tokens_per_s": round(sum(second) * sanitizer.NEW / seconds, 1),
    }


def measure_gpu_memory() -> int:
    """Return how many MiB of this machine's cards are in use."""
    words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return sum(map(int, done.stdout.split()))


def count_launches(server: SglangServer, folder: Path, limit: float) -> dict[str, int]:
    """Count launches by the kernel's name in a few steps, from a trace of SGLang's profiler."""
    folder.mkdir(parents=True, exist_ok=True)
    request = {"output_dir": str(folder), "num_steps": STEPS, "activities": ["CPU", "GPU"]}
    server.send_request("/start_profile", request, limit)
    ask_rounds(server, 2, limit)
    ends = time.monotonic() + limit
    while not (traces := list(folder.rglob("*.trace.json.gz"))) and time.monotonic() < ends:
        time.sleep(0.5)
    found: Counter[str] = Counter()
    for trace in traces:
        time.sleep(2)  # it may still be written
        with gzip.open(trace, "rt") as file:
            for event in json.load(file)["traceEvents"]:
                if event.get("cat") == "kernel":
                    found[shorten_name(event["name"])] += 1
    return dict(found.most_common())


def shorten_name(name: str) -> str:
    """Return a kernel's name without its return type, namespaces' templates and arguments."""
    plain = re.sub(r"^(void|int|unsigned int) ", "", name)
    plain = re.split(r"[<(]", plain.replace("(anonymous namespace)", "_"), maxsplit=1)[0]
    return plain.strip()


def serve_case(
    case: str,
    tool: str,
    folder: Path,
    rounds: int,
    patience: float,
    limit: float,
    profiled: bool = True,
) -> dict[str, Any]:
    found: dict[str, Any] = {"tool": tool}
    place = folder / f"{case}-{tool}"
    with SglangServer(make_setup(case, tool, folder), place) as server:
        try:
            server.wait_until_ready(patience)
            found["ready_s"] = round(server.seconds_to_ready, 1)
            found |= ask_rounds(server, rounds, limit)
            found["gpu_mib"] = measure_gpu_memory()
            if tool == "none" and profiled:
                found["launches"] = count_launches(server, place / "profile", limit)
        except ServerFailed as error:
            found["failed"] = str(error)
            found["log"] = server.log.read_text(errors="replace")[-3000:]
        if server.has_exited:
            found["died"] = server.describe_exit()
    if (checked := server.read_check_reports()) is not None:
        found["check"] = kernel_checks.to_json(checked)
        found["summary"] = kernel_checks.format_summary(checked)
        found["kernels"] = {name: one.launches for name, one in checked.kernels.items()}
    return found


def describe_record(record: dict[str, Any]) -> list[str]:
    """Describe each server with checks, beside the plain one if the record has it."""
    lines = []
    for case, runs in record["cases"].items():
        by_tool = {run["tool"]: run for run in runs}
        plain = by_tool.get("none")
        for tool, run in by_tool.items():
            if tool == "none" or "check" not in run:
                continue
            check = run["check"]
            words = [describe_checked(tool, check)]
            counted = check.get("all_launches", {}).get("launches")
            share = check.get("all_launches", {}).get("share")
            if share is not None:
                words.append(f"{share:.0%} of all {counted} launches")
            if plain is not None and "launches" in plain:
                words.append(f"{find_traced_share(plain, run):.0%} of those of a few steps")
            words.append(f"{len(check['reports'])} reports")
            words.append(f"{run.get('answered')} of {run.get('asked')} requests answered")
            if "ready_s" in run:
                words.append(f"ready after {run['ready_s']:.0f} s")
            if plain is not None and "tokens_per_s" in run and "tokens_per_s" in plain:
                ratio = run["tokens_per_s"] / plain["tokens_per_s"]
                words.append(f"plain after {plain['ready_s']:.0f} s")
                words.append(f"tokens a second times {ratio:.2f}")
                words.append(f"first start times {run['ready_s'] / plain['ready_s']:.2f}")
            if plain is not None and "gpu_mib" in run and "gpu_mib" in plain:
                more = run["gpu_mib"] - plain["gpu_mib"]
                words.append(f"{more:+} MiB of {plain['gpu_mib']} on the card")
            gpu = record["machine"]["gpu"].partition(",")[0]
            lines.append(f"{case}, {tool}, {gpu}: {'; '.join(words)}")
    return lines


def describe_checked(tool: str, check: dict[str, Any]) -> str:
    if tool == "zones":
        counts = check["followed"]
        return (
            f"{counts['with_zone']} of {counts['storages']} storages of compiled operators had a "
            f"guard zone, {counts['launches']} launches, {counts['captured']} of them into "
            f"{counts['graphs']} graphs, {counts['replays']} replays"
        )
    return (
        f"{check['checked_launches']} of {check['launches']} launches of "
        f"{check['kernels']} kernels checked ({check['share']:.1%})"
    )


def find_traced_share(plain: dict[str, Any], run: dict[str, Any]) -> float:
    """Return which part of the launches that the profiler saw are of kernels under check."""
    launches = plain["launches"]
    names = {shorten_name(name).rpartition("::")[2] for name in run["kernels"]}
    checked = sum(count for name, count in launches.items() if is_one_of(name, names))
    return float(checked / sum(launches.values()))


def is_one_of(traced_name: str, kernels: set[str]) -> bool:
    """Return whether a trace's kernel is one of these; Triton's may have a suffix there."""
    name = traced_name.rpartition("::")[2]
    return name in kernels or any(name.startswith(f"{kernel}_") for kernel in kernels)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--tool", choices=TOOLS, action="append", help="only this one")
    parser.add_argument("--rounds", type=int, default=6, help="of sixteen requests")
    parser.add_argument("--patience", type=float, default=400.0, help="until a server is ready")
    parser.add_argument("--limit", type=float, default=60.0, help="until a request is answered")
    parser.add_argument("--without-profile", action="store_true", help="count no launches")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--read", type=Path, nargs="+", help="describe records")
    arguments = parser.parse_args(given)
    for file in arguments.read or ():
        print("\n".join(describe_record(json.loads(read_record_text(file)))))
    if arguments.read:
        return 0
    strange = set(arguments.cases) - set(CASES)
    if strange:
        parser.error(f"no case is called {', '.join(sorted(strange))}")
    machine.require_device("cuda")
    cases: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in arguments.cases or CASES:
            runs = cases.setdefault(case, [])
            for tool in arguments.tool or TOOLS:
                limits = arguments.rounds, arguments.patience, arguments.limit
                profiled = not arguments.without_profile
                found = serve_case(case, tool, Path(folder), *limits, profiled)
                runs.append(found)
                print(case, json.dumps({k: v for k, v in found.items() if k != "kernels"}))
                sys.stdout.flush()
                # After each server, since the next one may hang.
                recording.record({"cases": cases}, arguments.record, say=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
