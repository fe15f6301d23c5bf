"""Default servers plain and under check on a GPU: shares of launches, and cost.

    python -m bench.run checked_servers [CASE[=TOOL,TOOL] …] [--rounds N]

Needs SGLang 0.5.23 in this Python. All servers start at once, each with empty caches of its own, so
their times to ready compare with each other. A ready one answers rounds of sixteen requests, and is
suspended, since its scheduler would take a core. Once all have, each answers rounds for some
seconds while the others are suspended, in two turns: these give the tokens a second.

The tools: `none` is the server as it is; `check` checks Triton's kernels, `cuda` those that are
built while the server runs as well; `launches` follows graphs and streams.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import http
import http.client
import json
import os
import signal
import sys
import tempfile
import time
import urllib.error
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.measuring import Result
from harness.cli import kernel_checks
from harness.core import machine, processes
from harness.core.errors import UnfixError
from harness.patching.child_environment import ChildEnvironment
from harness.sanitizer.cuda import checked_toolchain
from harness.sanitizer.gpu import DEFAULT_CHECKS
from harness.workers.servers.server import (
    DEFAULT_ENVIRONMENT,
    ServerSetup,
    SglangServer,
)

MODELS = Path("fixtures/models")
CONTEXT, NEW, AT_ONCE = 512, 24, 16
EAGLE = (
    *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8"),
    *("--speculative-draft-model-path", f"{MODELS}/trained/llama-eagle"),
)
CASES = {
    "llama": ("trained/llama", ()),
    "gpt-oss": ("trained/gpt-oss", ()),
    "deepseek-v32": ("trained/deepseek-v32", ()),
    "eagle": ("trained/llama", EAGLE),
    "qwen3-next": ("drawn/qwen3-next", ("--load-format", "dummy", "--skip-tokenizer-init")),
}
# SGLang reserves topk times steps of the context for EAGLE's drafts, and refuses what is longer.
RESERVED = 12
CHECKS = {
    "none": "",
    "check": ",".join(DEFAULT_CHECKS),
    "cuda": ",".join(DEFAULT_CHECKS),
    "launches": "graphs,streams",
}
TOOLS = tuple(CHECKS)
DEFAULT_TOOLS = ("none", "cuda")
# Only sizes are given, so that a tiny model does not take the whole card.
SIZES = (
    *("--dtype", "bfloat16", "--mem-fraction-static", "0.7", "--max-total-tokens", "16384"),
    *("--max-running-requests", str(AT_ONCE)),
)
# Where programs keep what they build, unless the checked toolkit says it.
CACHES = {
    "SGLANG_CACHE_DIR": "sglang",
    "SGLANG_JIT_CACHE_DIR": "jit",
    "TVM_FFI_CACHE_DIR": "tvm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "DG_JIT_CACHE_DIR": "deep-gemm",
}
TURNS = 2
TURN_SECONDS = 4.0


def make_setup(case: str, tool: str, folder: Path) -> ServerSetup:
    model, words = CASES[case]
    environment = ChildEnvironment()
    plain = dict(environment)
    for name, cache in CACHES.items():
        environment[name] = str(folder / "caches" / cache)
    if tool == "cuda":
        home = checked_toolchain.find_cuda_home(environment)
        assert home is not None, "no CUDA toolkit"
        toolkit = checked_toolchain.make_checked_toolkit(home, DEFAULT_CHECKS, folder / "toolkit")
        toolkit.request(environment)
    changed = {name: value for name, value in environment.items() if plain.get(name) != value}
    return ServerSetup(
        Path(sys.executable),
        ("--model-path", f"{MODELS}/{model}", *SIZES, *words),
        environment={**DEFAULT_ENVIRONMENT, **changed},
        kernel_checks=CHECKS[tool],
    )


def send_request(server: SglangServer, number: int, limit: float) -> bool:
    """Send a request that ends near the context's end; a refusal is a mistake of this bench."""
    length = CONTEXT - NEW - RESERVED - number % AT_ONCE
    question = {
        "input_ids": [2 + (7 * number + place) % 250 for place in range(length)],
        "sampling_params": {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True},
    }
    try:
        server.send_request("/generate", question, limit)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.BAD_REQUEST:
            raise UnfixError(f"the server refuses a request: {error.read().decode()}") from error
        return False
    except (OSError, http.client.HTTPException):
        return False
    return True


class CaseServer:
    """One server of a case under a tool, and what becomes of it."""

    def __init__(self, case: str, tool: str, folder: Path, limit: float) -> None:
        self.case, self.tool, self.limit = case, tool, limit
        self.found: dict[str, Any] = {"tool": tool, "sent": 0, "answered": 0}
        self.server = SglangServer(make_setup(case, tool, folder), folder)
        self._timed: list[tuple[int, float]] = []  # answers, seconds

    def start(self, rounds: int, patience: float) -> None:
        """Wait until it is ready, and have it answer rounds that are not timed."""
        try:
            self.server.wait_until_ready(patience)
            self.found["ready_s"] = round(self.server.seconds_to_ready, 1)
            self._ask_rounds(rounds)
        except UnfixError as error:
            self.found["failed"] = str(error)
            self.found["log"] = self._read_log()[-3000:]
            self.server.stop()
        self._note_end()
        self._send_signal(signal.SIGSTOP)

    def _send_signal(self, number: signal.Signals) -> None:
        for pid in processes.iterate_descendants(self.server.handle.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def measure(self) -> None:
        """Measure rounds while the other servers are suspended."""
        if "ready_s" not in self.found or "died" in self.found or "failed" in self.found:
            return
        self._send_signal(signal.SIGCONT)
        self._ask_rounds(1)
        began, answered = time.monotonic(), 0
        while time.monotonic() - began < TURN_SECONDS:
            answered += self._ask_rounds(1)
        self._timed.append((answered, time.monotonic() - began))
        tokens = sum(count for count, _ in self._timed) * NEW
        self.found["tokens_per_s"] = round(tokens / sum(took for _, took in self._timed), 1)
        self.found["turns"] = [round(n * NEW / took, 1) for n, took in self._timed]
        self._note_end()
        self._send_signal(signal.SIGSTOP)

    def stop(self) -> None:
        self._send_signal(signal.SIGCONT)
        self.server.stop()
        self.note_checks()

    def note_checks(self) -> None:
        if (checked := self.server.read_check_reports()) is not None:
            self.found["check"] = kernel_checks.to_json(checked)
            self.found["summary"] = kernel_checks.format_summary(checked)

    def _ask_rounds(self, rounds: int) -> int:
        """Send requests, sixteen at a time; return the number of answers."""
        first = self.found["sent"]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            numbers = range(first, first + AT_ONCE * rounds)
            answered = sum(pool.map(lambda n: send_request(self.server, n, self.limit), numbers))
        self.found["sent"] += len(numbers)
        self.found["answered"] += answered
        return answered

    def _note_end(self) -> None:
        if self.server.has_exited and "died" not in self.found:
            self.found["died"] = self.server.describe_exit()
            self.found["log"] = self._read_log()[-3000:]

    def _read_log(self) -> str:
        return self.server.log.read_text(errors="replace") if self.server.log.exists() else ""


def serve_side_by_side(
    pairs: Sequence[tuple[str, str]], folder: Path, rounds: int, patience: float, limit: float
) -> Iterator[Result]:
    cases: dict[str, list[dict[str, Any]]] = {case: [] for case, _ in pairs}

    def make_result() -> Result:
        values = {"cores": len(os.sched_getaffinity(0)), "cases": cases}
        return Result(values, summary={"servers": describe_cases(cases)})

    with contextlib.ExitStack() as stack:
        servers = []
        for case, tool in pairs:
            server = CaseServer(case, tool, folder / f"{case}-{tool}", limit)
            stack.callback(server.stop)
            servers.append(server)
            cases[case].append(server.found)
        with concurrent.futures.ThreadPoolExecutor(len(servers)) as pool:
            waiting = {pool.submit(server.start, rounds, patience): server for server in servers}
            for future in concurrent.futures.as_completed(waiting):
                future.result()
                report_state(waiting[future], "started")
                yield make_result()
            print("turns begin", flush=True)
            for case in cases:
                for _ in range(TURNS):
                    for server in (each for each in servers if each.case == case):
                        server.measure()
                yield make_result()
            for server in servers:  # in case that the end hangs
                server.note_checks()
            yield make_result()
            for future in [pool.submit(server.stop) for server in servers]:
                future.result()
        yield make_result()
        for server in servers:
            report_state(server, "ended")


def report_state(server: CaseServer, state: str) -> None:
    left_out = ("check", "summary")
    shown = {name: value for name, value in server.found.items() if name not in left_out}
    print(server.case, state, json.dumps(shown), flush=True)


def describe_cases(cases: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Describe each server with a tool, beside the plain one if there is one."""
    lines = []
    for case, runs in cases.items():
        plain = next((run for run in runs if run["tool"] == "none"), {})
        for run in (each for each in runs if each["tool"] != "none"):
            words = [describe_checked(run["check"])] if "check" in run else []
            counted = run.get("check", {}).get("all_launches", {})
            if counted.get("share") is not None:
                words.append(f"{counted['share']:.0%} of all {counted['launches']} launches")
            if "check" in run:
                words.append(f"{len(run['check']['reports'])} reports")
            words.append(f"{run['answered']} of {run['sent']} requests answered")
            if "ready_s" in run:
                words.append(f"ready after {run['ready_s']:.0f} s")
            if "ready_s" in run and "ready_s" in plain:
                words.append(f"plain after {plain['ready_s']:.0f} s")
                words.append(f"first start times {run['ready_s'] / plain['ready_s']:.2f}")
            if "tokens_per_s" in run and "tokens_per_s" in plain:
                ratio = run["tokens_per_s"] / plain["tokens_per_s"]
                words.append(f"tokens a second times {ratio:.2f}")
            words += [run[name] for name in ("failed", "died") if name in run]
            lines.append(f"{case}, {run['tool']}: {'; '.join(words)}")
    return lines


def describe_checked(check: dict[str, Any]) -> str:
    if (counts := check["followed"]) is not None:
        return (
            f"{counts['launches']} launches followed, {counts['captured']} of them into "
            f"{counts['graphs']} graphs, {counts['replays']} replays"
        )
    return (
        f"{check['checked_launches']} of {check['launches']} launches of "
        f"{check['kernels']} kernels checked ({check['share']:.1%})"
    )


def read_pair(word: str) -> list[tuple[str, str]]:
    case, _, named = word.partition("=")
    tools = named.split(",") if named else DEFAULT_TOOLS
    if case not in CASES or not {*tools} <= {*TOOLS}:
        raise argparse.ArgumentTypeError(f"{word} is no case, or names no tool")
    return [(case, tool) for tool in tools]


def add_options(parser: argparse.ArgumentParser) -> None:
    words = f"of {', '.join(CASES)}, each with tools of {', '.join(TOOLS)}"
    parser.add_argument("cases", nargs="*", metavar="CASE[=TOOL,TOOL]", type=read_pair, help=words)
    parser.add_argument("--rounds", type=int, default=4, help="of 16 requests, before the turns")
    parser.add_argument("--patience", type=float, default=400.0, help="until a server is ready")
    parser.add_argument("--limit", type=float, default=60.0, help="until a request is answered")


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    machine.require_device("cuda")
    pairs = [pair for each in options.cases or map(read_pair, CASES) for pair in each]
    with tempfile.TemporaryDirectory() as folder:
        limits = options.rounds, options.patience, options.limit
        yield from serve_side_by_side(pairs, Path(folder), *limits)
