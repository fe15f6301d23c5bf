"""A server with a fix taken out, under `--check` and under compute-sanitizer: who says what, when.

    python bench/sanitizer.py [CASE …] [--tool TOOL …] [--rounds N] [--at-once N] [--record FILE]

Needs a GPU, compute-sanitizer, and SGLang 0.5.23 in this Python. Each server is asked the same
requests, sixteen at a time and near the context's end, until all are answered or it is gone. What
each tool had to say is kept with when it said it, counted from the server's start. `nothing` takes
nothing out: what each tool costs, in the tokens a second of the second half of the requests.
`--at-once` serves so many side by side: their seconds compare with each other alone.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import re
import shutil
import stat
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import recording
from harness.cli import kernel_checks
from harness.core import machine
from harness.core.errors import NotReadyError
from harness.sanitizer.gpu import DEFAULT_CHECKS
from harness.workers.servers.server import (
    DEFAULT_ENVIRONMENT,
    ServerFailed,
    ServerSetup,
    SglangServer,
)

TRAINED = "fixtures/models/trained"
CONTEXT, NEW, AT_ONCE = 512, 24, 16
TOOLS = ("none", "check", "sanitizer")
_SAID = re.compile(r"^========= (?=\S)(?!COMPUTE-SANITIZER)(.*)", re.MULTILINE)
_MOST_MESSAGES = 6  # recorded messages of the sanitizer; the others are counted


@dataclass(frozen=True)
class SanitizerCase:
    revert: tuple[str, ...]
    words: tuple[str, ...]
    model: str = "llama"
    draft: str = "llama-eagle"
    algorithm: str = "EAGLE"


CASES = {
    "nothing": SanitizerCase((), ("--attention-backend", "triton")),
    "27338": SanitizerCase(
        ("27338", "kv-indices-size-check"), ("--attention-backend", "flashinfer")
    ),
    "26972": SanitizerCase(
        ("26972", "req-to-token-row-check"), ("--attention-backend", "fa3", "--page-size", "16")
    ),
    "27360": SanitizerCase(
        ("27360", "draft-page-table-size-check"),
        ("--attention-backend", "fa3", "--page-size", "16"),
    ),
    "24617": SanitizerCase(
        ("24617",), ("--attention-backend", "fa3"), "gpt-oss", "gpt-oss-eagle3", "EAGLE3"
    ),
}


def list_words(case: SanitizerCase) -> tuple[str, ...]:
    return (
        *("--model-path", f"{TRAINED}/{case.model}"),
        *("--speculative-draft-model-path", f"{TRAINED}/{case.draft}"),
        *("--speculative-algorithm", case.algorithm, "--speculative-num-steps", "3"),
        *("--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8"),
        *("--dtype", "bfloat16", "--mem-fraction-static", "0.1", "--max-total-tokens", "16384"),
        *("--max-running-requests", str(AT_ONCE), "--cuda-graph-max-bs-decode", str(AT_ONCE)),
        *("--cuda-graph-backend-prefill", "disabled", *case.words),
    )


def write_sanitizer_script(folder: Path) -> Path:
    """Write a `python` script whose processes all run under compute-sanitizer."""
    program = folder / "python"
    program.parent.mkdir(parents=True, exist_ok=True)
    log = folder / "sanitizer-%p.log"
    watched = f"compute-sanitizer --tool memcheck --target-processes all --log-file '{log}'"
    program.write_text(f"#!/bin/sh\nexec {watched} '{sys.executable}' \"$@\"\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def send_request(server: SglangServer, number: int, limit: float) -> bool:
    """Send one request near the context's end; True if it was answered, and not refused."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        send_question(server, number, limit, 8)
        return True
    return False


def send_question(server: SglangServer, number: int, limit: float, reserved: int) -> None:
    """Send a request that ends so many tokens in front of the context's end, or a few more."""
    length = CONTEXT - NEW - reserved - number % AT_ONCE
    question = {
        "input_ids": [2 + (7 * number + place) % 250 for place in range(length)],
        "sampling_params": {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True},
    }
    server.send_request("/generate", question, limit)


def read_sanitizer_log(folder: Path) -> tuple[list[str], int]:
    """Read the sanitizer's messages, a line each, and their number."""
    files = sorted(folder.glob("sanitizer-*.log"))
    lines = [line for file in files for line in _SAID.findall(file.read_text(errors="replace"))]
    return lines[:_MOST_MESSAGES], len(lines)


def serve_case(
    case: SanitizerCase, tool: str, folder: Path, rounds: int, patience: float, limit: float
) -> dict[str, Any]:
    setup = ServerSetup(
        write_sanitizer_script(folder) if tool == "sanitizer" else Path(sys.executable),
        list_words(case),
        revert=case.revert,
        environment=dict(DEFAULT_ENVIRONMENT),
        kernel_checks=",".join(DEFAULT_CHECKS) if tool == "check" else "",
    )
    found: dict[str, Any] = {"tool": tool, "answered": 0, "sent": 0}
    began = time.monotonic()

    def has_message() -> bool:
        if tool == "check":
            return bool((checked := server.read_check_reports()) and checked.reports)
        return tool == "sanitizer" and read_sanitizer_log(folder)[1] > 0

    def notes() -> None:
        if "first_message_s" not in found and has_message():
            found["first_message_s"] = round(time.monotonic() - began, 1)

    with SglangServer(setup, folder) as server:
        try:
            server.wait_until_ready(patience)
            before = 0
            found["ready_s"] = round(server.seconds_to_ready, 1)
            notes()
            began_requests = half = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                waiting = {
                    pool.submit(send_request, server, n, limit) for n in range(AT_ONCE * rounds)
                }
                found["sent"] = len(waiting)
                while waiting:
                    done, waiting = concurrent.futures.wait(waiting, 0.05)
                    found["answered"] += sum(one.result() for one in done)
                    if len(waiting) >= found["sent"] // 2:
                        half, before = time.monotonic(), found["answered"]
                    notes()
            ended = time.monotonic()
            found["requests_s"] = round(ended - began_requests, 1)
            found["tokens_per_s"] = round((found["answered"] - before) * NEW / (ended - half), 1)
        except ServerFailed as error:
            found["failed"] = str(error)
        if server.has_exited:
            found["died"] = server.describe_exit()
    notes()
    found["seconds"] = round(time.monotonic() - began, 1)
    found["reach"] = server.read_reach()
    if (checked := server.read_check_reports()) is not None:
        found["check"] = kernel_checks.to_json(checked)
    elif tool == "sanitizer":
        found["messages"], found["lines"] = read_sanitizer_log(folder)
        found["logs"] = len(list(folder.glob("sanitizer-*.log")))
    return found


def in_short(name: str, found: dict[str, Any]) -> str:
    first = f", first after {found['first_message_s']} s" if "first_message_s" in found else ""
    if "check" in found:
        words = [report["headline"] for report in found["check"]["reports"]] or ["nothing"]
    else:
        words = found.get("messages") or ["nothing"]
    end = found.get("failed") or found.get("died") or "it lives"
    return (
        f"{name}, {found['tool']}: {found['answered']} of {found['sent']} answered in "
        f"{found['seconds']} s{first}; {end[:120]}; messages: {'; '.join(words)[:400]}"
    )


def main() -> int:
    parser = recording.make_parser(__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--tool", choices=TOOLS, action="append", help="only this one")
    parser.add_argument("--rounds", type=int, default=2, help="of sixteen requests")
    parser.add_argument("--patience", type=float, default=240.0, help="until a server is ready")
    parser.add_argument("--limit", type=float, default=90.0, help="until a request is answered")
    parser.add_argument("--at-once", type=int, default=1, help="servers side by side")
    arguments = parser.parse_args()
    strange = set(arguments.cases) - set(CASES)
    if strange:
        parser.error(f"no case is called {', '.join(sorted(strange))}")
    machine.require_device("cuda")
    if shutil.which("compute-sanitizer") is None:
        raise NotReadyError("compute-sanitizer is not on the PATH: it comes with the CUDA toolkit")
    chosen = arguments.cases or list(CASES)
    cases: dict[str, dict[str, Any]] = {
        name: {"revert": CASES[name].revert, "serve": list_words(CASES[name]), "runs": []}
        for name in chosen
    }
    pairs = [
        (name, tool)
        for name in chosen
        for tool in arguments.tool or TOOLS[bool(CASES[name].revert) :]
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool,
    ):
        limits = arguments.rounds, arguments.patience, arguments.limit
        waiting = {
            pool.submit(
                serve_case, CASES[name], tool, Path(folder, f"{name}-{tool}"), *limits
            ): name
            for name, tool in pairs
        }
        for future in concurrent.futures.as_completed(waiting):
            name, found = waiting[future], future.result()
            cases[name]["runs"].append(found)
            print(in_short(name, found), flush=True)
            # After each server, since the next one may hang.
            result = {"at_once": arguments.at_once, "cases": cases}
            recording.record_result(result, arguments.record, say=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
