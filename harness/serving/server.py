"""A server as its user sees it: started, awaited, asked, ended, and why it died if it did."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harness import paths, processes
from harness.errors import NotReady, UnfixError
from harness.patching import attestation, environment
from harness.serving import adaptations, hanging, leftovers, ports
from harness.serving.house import REFUSED
from harness.watch import reports

COLD = "harness.serving.cold"
REFERENCE = "harness.serving.reference"
LOOK = 0.05
UNASKED = {
    # Whether it is ready is asked often: SGLang would wait a second and answer a prompt each time.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
    # Before it ends with a rank that died, it would wait for dumps that nobody reads.
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
}
# So far behind its port a server takes others, unasked, for data-parallel attention.
COUNTED_ON = range(233, 243)
FAREWELL = 15.0
HANG = "hang"
_TAIL = 60_000
# The last line of a traceback: what an exception was, without where.
_ERROR = re.compile(
    r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt|OutOfBounds|Unwritten|Race|"
    r"Wrapped|CannotFollow|FenceCrossed|KernelAssertion)\b.*",
    re.MULTILINE,
)
# Where a process stood that a signal ended, which is no word of its own.
_STACK = re.compile(r'Fatal Python error: |(Current t|T)hread 0x|  File "|Extension modules: ')
_MEMORY = re.compile(
    r"out of memory|not enough memory|(?:cannot|can't) allocate memory|\bbad_alloc\b|^MemoryError",
    re.IGNORECASE,
)
_LATELY = 5  # errors: one of them may have been the cause of those after it


class ServerFailed(NotReady):
    """A server that did not get ready, or is gone; the words say why."""


@dataclass(frozen=True)
class Setup:
    """What is served, by which SGLang, and under what."""

    python: Path
    words: tuple[str, ...]  # SGLang's own arguments
    release: str = "current"
    revert: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    adaptations: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict, hash=False)
    module: str = COLD  # what serves
    check: str = ""  # on a GPU: what its compiled kernels are checked for


class Starts(Protocol):
    """Who may start a server in our place; its keeper's pid, or None."""

    def start(self, server: Server, words: Sequence[str]) -> int | None: ...


class Handle:
    """A process that can be waited for, by a `select` as well.

    It is closed when nobody holds it any more: another thread may be waiting when we are done.
    """

    def __init__(self, pid: int) -> None:
        self._number = -1
        self._number = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._number

    def gone(self, seconds: float) -> bool:
        return bool(select.select([self], [], [], max(0.0, seconds))[0])

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._number, number)

    def __del__(self) -> None:
        if self._number >= 0:
            os.close(self._number)


class Server:
    """One server and all of its processes. Use `with`: at the end none of them is left."""

    def __init__(self, setup: Setup, folder: Path, house: Starts | None = None) -> None:
        self.setup = setup
        self.folder = folder
        self.log = folder / "log"
        self.attestations = folder / "attestations"
        self.checks = (folder / "check").resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("ended.json", "refused", "log"):
            (folder / name).unlink(missing_ok=True)
        self._held = ports.reserve(2, COUNTED_ON)
        self.port = self._held[0].port
        self.url = f"http://127.0.0.1:{self.port}"
        self.warm = False
        self.started = time.monotonic()
        self.seconds = 0.0  # until it was ready
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = secrets.token_hex(8)
        self._stopping, self._stopped = threading.Lock(), False
        try:
            words = _words(setup, self.port, self._held[1].port)
            pid = house.start(self, words) if house is not None else None
            self._pid = self._start_afresh(words) if pid is None else pid
            self.handle = Handle(self._pid)
        except ProcessLookupError:
            self._let_go()
            raise ServerFailed(f"the server ended before it was ready: {self.why()}") from None
        except BaseException:
            self._let_go()
            raise
        self.warm = pid is not None

    def _start_afresh(self, words: list[str]) -> int:
        setup = self.setup
        command = [str(setup.python), "-m", setup.module, *words]
        given = {**os.environ, **setup.environment}
        given[adaptations.VARIABLE] = ",".join(setup.adaptations)
        engine = os.pathsep.join(
            dict.fromkeys([str(paths.PACKAGE.parent), *filter(None, [given.get("PYTHONPATH")])])
        )
        given |= {"PYTHONPATH": engine, "PYTHONUNBUFFERED": "1", leftovers.MARK: self._mark}
        given["PYTHONFAULTHANDLER"] = "1"  # says where a rank hangs
        environment.put_in(
            given, setup.revert, setup.enable, list(setup.folders), self.attestations
        )
        if setup.check:
            reports.ask(given, setup.check, self.checks)
        asked = {
            "command": command,
            "environment": given,
            "cwd": str(Path.cwd()),
            "parent": os.getpid(),
        }
        (self.folder / "start.json").write_text(json.dumps(asked))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.serving.keeper", str(self.folder)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is ours to handle
            env={**os.environ, "PYTHONPATH": engine},
        )
        return self._process.pid

    # While it lives

    def wait(self, seconds: float) -> None:
        """Until it answers; says why if it never does."""
        ends = time.monotonic() + seconds
        while True:
            if self.handle.gone(LOOK):
                raise ServerFailed(f"the server ended before it was ready: {self.why()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.ask("/health", seconds=max(0.1, min(10, ends - time.monotonic())))
                self.seconds = time.monotonic() - self.started
                return
            if time.monotonic() > ends:
                said = [self._last_word(), *map(str, hanging.ranks(self._pid, self.log))]
                raise ServerFailed(
                    f"the server was not ready after {seconds:.0f} s: {'; '.join(said)}"
                )

    @property
    def seconds_since_ready(self) -> float:
        return time.monotonic() - self.started - self.seconds

    def ask(self, path: str, question: Any = None, seconds: float = 600.0) -> bytes:
        request = urllib.request.Request(
            self.url + path,
            data=None if question is None else json.dumps(question).encode(),
            headers={"content-type": "application/json"},
        )
        # A proxy of the environment has no business here.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=seconds) as answer:
            data: bytes = answer.read()
            return data

    def answers(self, seconds: float) -> bool:
        """Whether it still says anything, be it that it does not understand."""
        began = time.monotonic()
        try:
            question = {"model": "default", "prompt": "a", "max_tokens": 1}
            self.ask("/v1/completions", question, seconds)
        except (OSError, http.client.HTTPException):
            return time.monotonic() - began < seconds
        return True

    @property
    def dead(self) -> bool:
        return self.handle.gone(0)

    def why(self) -> str:
        """How it ended, and the last thing that it said went wrong."""
        said = self._ended()
        code = said.get("code")
        if said.get("out_of_memory") and code in (-signal.SIGKILL, None):
            return "the kernel killed it: out of memory"
        if not said:
            how = "whoever looked after it was killed"
        elif code is not None and code < 0:
            how = processes.signal_name(-code)
        else:
            how = f"exit code {code}"
        return f"{self._last_word()} ({how})"

    def hang(self) -> str:
        """Where each of its ranks stands, for one that lives and answers no more; ends them."""
        found = hanging.ranks(self._pid, self.log)
        places = "; ".join(map(str, found)) or "it has no rank that could say where it stands"
        return f"{HANG}: {places}"

    def checked(self) -> reports.Checked | None:
        """What its compiled kernels were checked for came to."""
        return reports.read(self.checks) if self.setup.check else None

    def _last_word(self) -> str:
        if (checked := self.checked()) is not None and checked.reports:
            return checked.reports[0].in_a_line
        text = self.text()
        errors = _ERROR.findall(text)
        lines = [line for line in text.splitlines() if line.strip() and not _STACK.match(line)]
        said = errors[-_LATELY:] or lines[-_LATELY:]
        memory = [line for line in said if _MEMORY.search(line)]
        if memory:
            return f"out of memory: {memory[-1].strip()[:300]}"
        return said[-1].strip()[:400] if said else "it said nothing"

    def text(self) -> str:
        return processes.said_last(self.log, _TAIL)

    def _ended(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / "ended.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    @property
    def refused(self) -> str:
        """Why a warm start was refused: the toggles need an import of their own."""
        if self._ended().get("code") != REFUSED:
            return ""
        with contextlib.suppress(OSError):
            return str((self.folder / "refused").read_text())
        return ""

    def reach(self) -> dict[str, int]:
        """How often each toggle's code ran, in all of the server's processes."""
        found = attestation.read(self.attestations)
        names = [(name, "revert") for name in self.setup.revert]
        names += [(name, "enable") for name in self.setup.enable]
        return {name: sum(one.reach(name, how) for one in found) for name, how in names}

    # Its end

    def tell(self) -> None:
        """Have it end, without waiting until it did."""
        self.handle.send(signal.SIGTERM)

    def stop(self) -> None:
        """End all of it; whoever else does so meanwhile waits until it is done."""
        with self._stopping:
            if self._stopped:
                return
            if not self.dead:
                self.tell()
                if not self.handle.gone(FAREWELL):
                    self._kill_all()
            if not self._ended():
                leftovers.end_all(self._mark, self.log)
            if self._process is not None:
                self._process.wait()
            self._let_go()
            self._stopped = True

    def _kill_all(self) -> None:
        for pid in [self._pid, *processes.below(self._pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _let_go(self) -> None:
        for one in self._held:
            one.close()
        self._held = []

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _words(setup: Setup, port: int, inner: int) -> list[str]:
    """SGLang's arguments, with ports that nobody else has."""
    ours = ("--port", "--host", "--nccl-port")
    for word in setup.words:
        if word.partition("=")[0] in ours:
            raise UnfixError(f"{word} is not a server's to choose here: each is given a free port")
    if setup.module == REFERENCE:
        return [*setup.words, "--port", str(port)]
    named = ["--host", "127.0.0.1", "--port", str(port), "--nccl-port", str(inner)]
    return [*setup.words, *named]
