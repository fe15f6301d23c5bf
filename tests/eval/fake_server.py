"""A server that answers as SGLang does, with faults on request: `--be '{"wrong": [10, 3]}'`.

A share is [of, below]: it applies to prompts whose checksum, modulo `of`, is below `below`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

from harness.workers.servers.reference_server import BacklogHTTPServer, JsonRequestHandler

PERSIST = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.setsid()
if os.fork(): os._exit(0)
if sys.argv[2] == "mute":
    for handle in range(64):
        try: os.close(handle)
        except OSError: pass
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
time.sleep(600)
"""


def answer_of(prompt: str) -> str:
    """Return the right answer to a task of fixtures/tasks: the value of the key."""
    context, _, key = prompt.rpartition("?")
    return context.rpartition(key)[2].partition(";")[0]


def has_answer(share: list[int] | None, prompt: str) -> bool:
    return bool(share) and zlib.crc32(prompt.encode()) % share[0] < share[1]  # type: ignore[index]


class Fake:
    def __init__(self, be: dict[str, Any]) -> None:
        self.be = be
        self.count = 0
        self.load = 0  # requests since the cache was emptied
        self.lock = threading.Lock()

    def complete(self, request: dict[str, Any]) -> tuple[int, bytes]:
        be, prompt = self.be, request["prompt"]
        with self.lock:
            self.count += 1
            self.load += 1
            number, load = self.count, self.load
            if be.get("record"):
                with open(be["record"], "a") as record:
                    record.write(json.dumps(request) + "\n")
        time.sleep(be.get("slow", 0))
        if be.get("dies_at") and number >= be["dies_at"]:
            self.die()
        if has_answer(be.get("hang"), prompt):
            time.sleep(600)
        if has_answer(be.get("http"), prompt):
            return 500, b"the scheduler fell over"
        if has_answer(be.get("garbage"), prompt):
            return 200, b"<html>busy</html>"
        text: Any = answer_of(prompt)
        first, last = be.get("wrong_between", (0, 10**9))  # requests, counted from 1
        is_wrong = has_answer(be.get("wrong"), prompt) and first <= number <= last
        if is_wrong and load > be.get("wrong_after", 0):
            text = "?" + text[1:]
        chance = float("nan") if has_answer(be.get("nan"), prompt) else -0.125
        logprobs = {
            "tokens": list(text),
            "token_logprobs": [chance] * len(text),
            "top_logprobs": [{token: chance, "#": -4.125} for token in text],
        }
        if has_answer(be.get("null"), prompt):
            text = None
        choice = {"text": text, "logprobs": logprobs, "finish_reason": "stop"}
        if has_answer(be.get("abort"), prompt):
            choice["finish_reason"] = "abort"
        return 200, json.dumps({"choices": [choice]}).encode()

    def empty_cache(self) -> None:
        with self.lock:
            self.load = 0

    def die(self) -> None:
        with self.lock:  # once
            print(self.be.get("last", "Traceback (most recent call last):\nRuntimeError: no more"))
            sys.stdout.flush()
            code = self.be.get("code", 1)
            if code < 0:
                os.kill(os.getpid(), -code)
                time.sleep(600)
            os._exit(code)


def serve_fake(fake: Fake, port: int) -> None:
    class FakeServerHandler(JsonRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if fake.be.get("health_hangs"):
                time.sleep(600)
            self.send_json({"internal_states": [{"avg_spec_accept_length": 2.5}]})

        def do_POST(self) -> None:
            request = self.read_json()
            if self.path == "/v1/completions":
                code, data = fake.complete(request)
                self.send_json(data, code)
            else:
                fake.empty_cache()
                self.send_json(b"Cache flushed.")

    BacklogHTTPServer(("127.0.0.1", port), FakeServerHandler).serve_forever()


def record_operator() -> None:
    """Write the record of a server on the virtual GPU: it called one operator with a stand-in."""
    from harness.sanitizer.device import record

    record.RECORD.write_to(Path(os.environ[record.FOLDER_VARIABLE]))
    record.RECORD.count_stand_in("toy.operator")


def leave_reports(folder: Path, be: dict[str, Any]) -> None:
    """Write the report of a server under check: its number of launches, and one violation."""
    from harness.sanitizer.gpu.kernel_summaries import KernelSummaries
    from harness.sanitizer.watch import report_files

    left = report_files.ReportWriter(folder)
    if launches := be.get("launches"):
        summaries = KernelSummaries()
        summaries.get_summary("scatter", "a.py:1").count_launches(launches)
        left.write_kernels(summaries)
    if headline := be.get("reports"):
        place = ("bounds", "scatter", "a.py", 7, "", (0, 1, 2))
        left.write_report(report_files.KernelReport(*place, headline, (), 1, 0.5))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nccl-port", type=int, required=True)
    parser.add_argument("--be", type=json.loads, default={})
    arguments, _ = parser.parse_known_args()
    be = arguments.be
    toggles = os.environ.get("SGLANG_DEBUG_REVERT_PR", "").split(",")
    for toggle in toggles:
        be |= be.get("without", {}).get(toggle, {})
    if any(toggles) and be.get("reach", True):
        from sglang import forms  # the toy

        forms.plain(1, 2)
    print(f"fake: on port {arguments.port}, {arguments.nccl_port}", flush=True)
    if be.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for how in be.get("brood", ()):
        subprocess.Popen([sys.executable, "-c", PERSIST, be["pids"], how])
    fake = Fake(be)
    # The names of these variables are the harness's; most servers need none of its modules.
    if os.environ.get("UNFIX_DEVICE") == "virtual":
        record_operator()
    if folder := os.environ.get("UNFIX_CHECK_REPORTS"):
        leave_reports(Path(folder), be)
    if be.get("never"):
        print("loading the weights, 3 of 90", flush=True)
        time.sleep(600)
    if once := be.get("dies_once"):
        if Path(once).exists():
            be.pop("dies_at")
        Path(once).touch()
    if be.get("stillborn"):
        fake.die()
    serve_fake(fake, arguments.port)


if __name__ == "__main__":
    main()
