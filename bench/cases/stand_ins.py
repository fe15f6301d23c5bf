"""Compares each stand-in of the virtual GPU with its operator, on the calls that are drawn for it.

    python -m bench.run stand_ins card --record FILE       on a GPU, with SGLang's own packages
    python -m bench.run stand_ins executor [--only PART]   SGLang's JIT kernels as PTX on this CPU
    python -m bench.run stand_ins native                   SGLang's own fallbacks in torch
    python -m bench.run stand_ins itself                   shows that every call can be drawn

All but `card` run in a managed release's Python (`./unfix exec --release 0.5.23 -- python …`).
A few operators share a process. If it ends or hangs, the operator that ran is recorded so, and a
new process takes the rest. The exit code is 1 if a stand-in differs, or if too little was compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.measuring import Result

CARD = "card"
REFERENCES = (CARD, "executor", "native", "itself")
AGREES, DIFFERS, REFUSED = "agrees", "differs", "refused"
NOT_RUN, FAILED, ENDED = "not run", "failed", "ended its process"
NO_TIME = "no time was left"
LEAST_SHARE = 0.5  # of the calls; the others have no row, which an operator may refuse
BEGUN, RESULT = "BEGUN", "RESULT"  # begin lines of a process that compares
SILENCE_SECONDS = 80  # an operator's modules are built meanwhile
TAIL = 300  # characters of what a process that ended has printed last


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", choices=REFERENCES)
    parser.add_argument("--only", default="", metavar="PART", help="of an operator's name")
    parser.add_argument("--examples", type=int, default=60, help="calls of each operator")
    parser.add_argument("--seconds", type=float, default=150.0, help="for all processes")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    started = time.monotonic()
    results = run_groups(options, started + options.seconds)
    for name, result in results.items():
        print(describe_operator(name, result))
    outcomes = dict(sorted(Counter(result["outcome"] for result in results.values()).items()))
    values = {
        "reference": options.reference,
        "device": describe_device(options.reference),
        "seconds": round(time.monotonic() - started, 1),
        "outcomes": outcomes,
        "stand_ins": results,
    }
    yield Result(values, not any(map(is_red, results.values())), outcomes)


def is_red(result: dict[str, Any]) -> bool:
    """Return whether a stand-in differs, or was not compared although it could have been."""
    outcome, why = result["outcome"], result.get("why")
    return bool(why == NO_TIME if outcome == NOT_RUN else outcome != AGREES)


def list_groups(only: str) -> list[list[str]]:
    """List the operators that share a process: of one JIT module, or of one family of a package."""
    from fixtures.stand_ins.comparing_runs import load_registries

    load_registries()
    from harness.sanitizer.device.stand_ins import STAND_INS

    groups = defaultdict(list)
    for name, entry in STAND_INS.items():
        if only in name:
            package = name.partition(".")[0]  # with the module's name of a `jit:` one
            family = "" if package.startswith("jit:") else entry.function.__module__
            groups[package, family].append(name)
    return sorted(groups.values(), key=lambda names: -len(names))


def run_groups(options: argparse.Namespace, deadline: float) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(
            lambda names: run_processes(options, names, deadline), list_groups(options.only)
        ):
            results.update(found)
    return dict(sorted(results.items()))


def run_processes(
    options: argparse.Namespace, names: list[str], deadline: float
) -> dict[str, dict[str, Any]]:
    """Compare some operators, in as many processes as it takes."""
    results: dict[str, dict[str, Any]] = {}
    while left := [name for name in names if name not in results]:
        seconds = deadline - time.monotonic()
        if seconds < 1:
            results.update({name: {"outcome": NOT_RUN, "why": NO_TIME} for name in left})
            break
        found, current, ended = run_process(options, left, seconds)
        results.update(found)
        if current in left and current not in found:
            results[current] = {"outcome": ENDED, "why": ended}
        elif not found:
            results.update({name: {"outcome": ENDED, "why": ended} for name in left})
    return results


def run_process(
    options: argparse.Namespace, names: list[str], seconds: float
) -> tuple[dict[str, dict[str, Any]], str, str]:
    """Run one process; return what it has compared, what it began last, and how it ended."""
    words = [sys.executable, "-m", "bench.cases.stand_ins", options.reference]
    words += [",".join(names), str(options.examples)]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("out", "err")]
        with paths[0].open("w") as out, paths[1].open("w") as err:
            process = subprocess.Popen(words, stdout=out, stderr=err)
            ended = wait_for_end(process, paths[0], time.monotonic() + seconds)
        out_text, err_text = (path.read_text(errors="replace") for path in paths)
    found: dict[str, dict[str, Any]] = {}
    current = ""
    for line in out_text.splitlines():
        word, _, rest = line.partition(" ")
        if word == BEGUN:
            current = rest
        elif word == RESULT:
            found.update([json.loads(rest)])
    return found, current, f"{ended}: {err_text.strip()[-TAIL:]}"


def wait_for_end(process: subprocess.Popen[bytes], out: Path, deadline: float) -> str:
    """Wait until a process ends, or kill it if it is silent for too long; say how it ended."""
    size, last = 0, time.monotonic()
    while True:
        try:
            return f"code {process.wait(1)}"
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        if out.stat().st_size > size:
            size, last = out.stat().st_size, now
        if now > deadline or now - last > SILENCE_SECONDS:
            process.kill()
            process.wait()
            return f"no answer within {now - last:.0f} s"


def run_group(reference: str, names: list[str], examples: int) -> None:
    """Compare these operators in this process; print each result as it is there."""
    if reference != CARD:
        from harness.sanitizer.device import installation

        installation.install_device("H100")
    import torch

    from fixtures.stand_ins.comparing_runs import compare_operator, load_registries
    from fixtures.stand_ins.references import NoReference, References
    from harness.sanitizer.device.stand_ins import STAND_INS

    torch.set_num_threads(1)
    load_registries()
    references = References(reference)
    for name in names:
        print(BEGUN, name, flush=True)
        started = time.monotonic()
        is_lost = False
        try:
            agreement = compare_operator(name, references, examples)
        except NoReference as reason:
            result = {"outcome": NOT_RUN, "why": str(reason)}
        except Exception as error:
            is_lost = isinstance(error, torch.AcceleratorError)
            words = f"{type(error).__name__}: {error}".strip()
            result = {"outcome": ENDED if is_lost else FAILED, "why": words[:TAIL]}
        else:
            result = {
                "outcome": judge_agreement(agreement),
                "source": STAND_INS[name].source,
                **dataclasses.asdict(agreement),
                "seconds": round(time.monotonic() - started, 1),
            }
        print(RESULT, json.dumps([name, result]), flush=True)
        if is_lost:
            os._exit(1)  # no later call of this process reaches the device


def judge_agreement(agreement: Any) -> str:
    if agreement.differences:
        return DIFFERS
    return AGREES if agreement.agreed >= LEAST_SHARE * agreement.calls else REFUSED


def describe_device(reference: str) -> str:
    if reference != CARD:
        return reference
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def describe_operator(name: str, result: dict[str, Any]) -> str:
    """Return one line for an operator, and one for each difference and refusal."""
    outcome = result["outcome"]
    if "calls" not in result:
        return f"{name}: {outcome}: {result['why']}"
    counts = f"{result['agreed']} of {result['calls']} calls"
    if result["refused"]:
        counts += f", {result['refused']} refused by the operator alone"
    if result["both_refused"]:
        counts += f", {result['both_refused']} by both"
    off = f"{result['unequal']} of {result['elements']} elements unequal"
    if result["unequal"]:
        off += f", by at most {result['largest_difference']:.1e}"
    lines = [f"{name}: {outcome}, {counts}, {off}, {result['seconds']} s"]
    lines += [f"    {words}" for words in (*result["differences"], *result["refusals"])]
    return "\n".join(lines)


if __name__ == "__main__":
    run_group(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]))
