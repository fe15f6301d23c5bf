"""The start of servers as forks of a process that has already imported SGLang."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.patching.child_environment import HARNESS_PATH, RELEASE_VARIABLE, ChildEnvironment
from harness.workers.servers.json_process import JsonProcess, ProcessEnded, ReplyTimeout
from harness.workers.servers.server import ServerFailed, ServerSetup, SglangServer


class ServerZygote:
    """A process that has imported one SGLang and forks servers; `close` leaves no process."""

    def __init__(self, setup: ServerSetup, log: Path, seconds: float = 600.0) -> None:
        environment = ChildEnvironment(
            {**setup.environment, "PYTHONUNBUFFERED": "1", RELEASE_VARIABLE: setup.release}
        )
        environment.add_python_path(*HARNESS_PATH)
        environment.use_checkout()
        environment.require_release(setup.python)
        if setup.is_virtual:
            environment.use_virtual_device(None, log.parent.resolve())
        environment.clear_toggles()
        command = [str(setup.python), "-m", "harness.workers.servers.zygote"]
        self.process = JsonProcess(command, environment, log)
        self._timeout = seconds
        self._is_ready = False
        self._start_lock = threading.Lock()

    def start_server(self, server: SglangServer, arguments: Sequence[str]) -> int | None:
        """Fork a server; return None if this process was ready before and has ended."""
        request = server.make_zygote_request(arguments)
        with self._start_lock:
            self._wait_until_ready()
            try:
                self.process.send_json(msgspec.to_builtins(request))
                while (reply := self._receive_message("started"))["folder"] != request.folder:
                    pass  # the reply to an earlier request whose caller timed out
                return int(reply["started"])
            except (ProcessEnded, ServerFailed):
                return None

    def _wait_until_ready(self) -> None:
        if not self._is_ready:
            self._receive_message("ready")
            self._is_ready = True

    def _receive_message(self, expected_key: str) -> dict[str, Any]:
        try:
            message: dict[str, Any] = self.process.receive_json(self._timeout)
        except ReplyTimeout as limit:
            raise ServerFailed(f"SGLang was not imported within {limit}") from None
        except ProcessEnded as last_line:
            raise ServerFailed(f"the process that imports SGLang ended: {last_line}") from None
        if expected_key not in message:
            reason = message.get("failed", message)
            raise ServerFailed(f"SGLang cannot be imported here: {reason}")
        return message

    def end(self) -> None:
        """End all processes; a thread that waits for a message gets ProcessEnded."""
        self.process.end(grace_seconds=5.0)

    def close(self) -> None:
        self.end()
        self.process.close()

    def __enter__(self) -> ServerZygote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
