"""A server as its user sees it: started, awaited, asked, ended, and why it died if it did."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from harness import paths
from harness.errors import NotReady, UnfixError
from harness.patching import attestation, environment
from harness.prove import processes
from harness.serving import adaptations, ports
from harness.serving.house import REFUSED

REFERENCE = "harness.serving.reference"
LOOK = 0.2
FAREWELL = 15.0
_TAIL = 60_000
# The last line of a traceback: what an exception was, without where.
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt|OutOfBounds|Unwritten|Race|"
                    r"Wrapped|CannotFollow|FenceCrossed|KernelAssertion)\b.*", re.MULTILINE)
_MEMORY = re.compile(r"out of memory|not enough memory|cannot allocate memory", re.IGNORECASE)


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
    module: str = "harness.serving.cold"  # what serves

    @property
    def at_import(self) -> dict[str, str]:
        """What has to be in the environment before SGLang is imported."""
        return {name: value for name, value in self.environment.items() if name in _EARLY}


_EARLY = ("TRITON_INTERPRET", "OMP_NUM_THREADS", "TORCH_COMPILE_DISABLE")


class Server:
    """One server and all of its processes. Use `with`: at the end none of them is left."""

    def __init__(self, setup: Setup, folder: Path, house: Any = None) -> None:
        self.setup = setup
        self.folder = folder
        self.log = folder / "log"
        self.attestations = folder / "attestations"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("ended.json", "refused", "log"):
            (folder / name).unlink(missing_ok=True)
        self._held = ports.reserve(2)
        self.port = self._held[0].port
        self.url = f"http://127.0.0.1:{self.port}"
        self.warm = False
        self.started = time.monotonic()
        self.seconds = 0.0  # until it was ready
        self._process: subprocess.Popen[bytes] | None = None
        words = _words(setup, self.port, self._held[1].port)
        try:
            pid = house.start(self, words) if house is not None else None
            self._pid = self._start_afresh(words) if pid is None else pid
        except BaseException:
            self._let_go()
            raise
        self.warm = pid is not None
        self._handle = os.pidfd_open(self._pid)

    def _start_afresh(self, words: list[str]) -> int:
        setup = self.setup
        command = [str(setup.python), "-m", setup.module, *words]
        given = {**os.environ, **setup.environment}
        given[adaptations.VARIABLE] = ",".join(setup.adaptations)
        engine = os.pathsep.join(
            dict.fromkeys([str(paths.PACKAGE.parent), *filter(None, [given.get("PYTHONPATH")])])
        )
        given |= {"PYTHONPATH": engine, "PYTHONUNBUFFERED": "1"}
        environment.put_in(
            given, setup.revert, setup.enable, list(setup.folders), self.attestations
        )
        asked = {"command": command, "environment": given, "cwd": str(Path.cwd())}
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
            if self._gone(LOOK):
                raise ServerFailed(f"the server ended before it was ready: {self.why()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.ask("/health", seconds=10)
                self.seconds = time.monotonic() - self.started
                return
            if time.monotonic() > ends:
                raise ServerFailed(
                    f"the server was not ready after {seconds:.0f} s: {self._last_word()}"
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

    @property
    def handle(self) -> int:
        """Readable once the server is gone: for a `select` beside whatever is waited for."""
        return self._handle

    @property
    def dead(self) -> bool:
        return self._gone(0)

    def _gone(self, seconds: float) -> bool:
        return bool(select.select([self._handle], [], [], seconds)[0])

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

    def _last_word(self) -> str:
        text = self.text()
        errors = _ERROR.findall(text)
        if errors and _MEMORY.search(errors[-1]):
            return f"out of memory: {errors[-1].strip()[:300]}"
        if errors:
            return errors[-1].strip()[:400]
        lines = [line for line in text.splitlines() if line.strip()]
        return lines[-1].strip()[:400] if lines else "it said nothing"

    def text(self) -> str:
        try:
            with open(self.log, "rb") as log:
                log.seek(max(0, self.log.stat().st_size - _TAIL))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

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
            return (self.folder / "refused").read_text()
        return ""

    def reach(self) -> dict[str, int]:
        """How often each toggle's code ran, in all of the server's processes."""
        found = attestation.read(self.attestations)
        names = [(name, "revert") for name in self.setup.revert]
        names += [(name, "enable") for name in self.setup.enable]
        return {name: sum(one.reach(name, how) for one in found) for name, how in names}

    # Its end

    def stop(self) -> None:
        if not self._gone(0):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGTERM)
            if not self._gone(FAREWELL):
                self._kill_all()
        if self._process is not None:
            self._process.wait()
        with contextlib.suppress(OSError):
            os.close(self._handle)
        self._let_go()

    def _kill_all(self) -> None:
        for pid in [*processes.below(self._pid), self._pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _let_go(self) -> None:
        for one in self._held:
            one.close()
        self._held = []

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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


class House:
    """A process that has imported one SGLang, and forks servers; closed, nothing is left of it."""

    def __init__(self, setup: Setup, log: Path, seconds: float = 600.0) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._rest = b""
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        given = {**os.environ, **setup.at_import}
        found_by = [str(paths.PACKAGE.parent), str(paths.project())]
        rest = [given["PYTHONPATH"]] if given.get("PYTHONPATH") else []
        given |= {
            "PYTHONPATH": os.pathsep.join(dict.fromkeys([*found_by, *rest])),
            "PYTHONUNBUFFERED": "1",
            "UNFIX_RELEASE": setup.release,
            "UNFIX_HOME": str(paths.workspace()),
            "UNFIX_PLANNER": sys.executable,
        }
        for name in ("SGLANG_DEBUG_REVERT_PR", "SGLANG_DEBUG_ENABLE_PR", "UNFIX_REVERT"):
            given.pop(name, None)
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [str(setup.python), "-m", "harness.serving.house", str(there), str(back)],
                env=given,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(there, back),
                start_new_session=True,
            )
        os.close(there)
        os.close(back)
        self._limit = seconds
        self._ready = False

    def start(self, server: Server, words: Sequence[str]) -> int | None:
        """Fork a server; None if this house is gone."""
        setup = server.setup
        self._wait()
        asked = {
            "folder": str(server.folder.resolve()),
            "words": list(words),
            "environment": setup.environment,
            "revert": list(setup.revert),
            "enable": list(setup.enable),
            "folders": [str(folder.resolve()) for folder in setup.folders],
            "adaptations": list(setup.adaptations),
            "attestations": str(server.attestations.resolve()),
        }
        os.write(self._write, json.dumps(asked).encode() + b"\n")
        return int(self._hear("started")["started"])

    def _wait(self) -> None:
        if not self._ready:
            self._hear("ready")
            self._ready = True

    def _hear(self, what: str) -> dict[str, Any]:
        ends = time.monotonic() + self._limit
        while b"\n" not in self._rest:
            left = ends - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise ServerFailed(f"SGLang was not imported within {self._limit:.0f} s")
            data = os.read(self._read, 1 << 16)
            if not data:
                raise ServerFailed(f"the process that imports SGLang ended: {self._tail()}")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        if what not in said:
            raise ServerFailed(f"SGLang cannot be imported here: {said.get('failed', said)}")
        return said

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:400] if lines else "it said nothing"

    def close(self) -> None:
        for end in (self._write, self._read):
            with contextlib.suppress(OSError):
                os.close(end)
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> House:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
