"""Servers that are forked from a process which has imported SGLang already."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.core import paths
from harness.releases import checkouts
from harness.workers.servers.json_process import JsonProcess, ProcessEnded, ReplyTimeout
from harness.workers.servers.server import ServerFailed, ServerSetup, SglangServer


class ServerZygote:
    """A process that has imported one SGLang, and forks servers; closed, nothing is left of it."""

    def __init__(self, setup: ServerSetup, log: Path, seconds: float = 600.0) -> None:
        given = {**os.environ, **setup.environment}
        found_by = [str(paths.HARNESS_FOLDER.parent), str(paths.project_folder())]
        rest = [given["PYTHONPATH"]] if given.get("PYTHONPATH") else []
        given |= {
            "PYTHONPATH": os.pathsep.join(dict.fromkeys([*found_by, *rest])),
            "PYTHONUNBUFFERED": "1",
            "UNFIX_RELEASE": setup.release,
        }
        checkouts.set_checkout_variables(given)
        for name in ("SGLANG_DEBUG_REVERT_PR", "SGLANG_DEBUG_ENABLE_PR", "UNFIX_REVERT"):
            given.pop(name, None)
        command = [str(setup.python), "-m", "harness.workers.servers.zygote"]
        self.process = JsonProcess(command, given, log)
        self._timeout = seconds
        self._is_ready = False
        self._start_lock = threading.Lock()

    def start_server(self, server: SglangServer, arguments: Sequence[str]) -> int | None:
        """Fork a server; None if this house had been ready and is gone."""
        setup = server.setup
        asked = {
            "folder": str(server.folder.resolve()),
            "words": list(arguments),
            "environment": setup.environment,
            "revert": list(setup.revert),
            "enable": list(setup.enable),
            "folders": [str(folder.resolve()) for folder in setup.toggle_folders],
            "adaptations": list(setup.adaptations),
            "attestations": str(server.attestations.resolve()),
        }
        with self._start_lock:
            self._wait_until_ready()
            try:
                self.process.send_json(asked)
                while (said := self._receive_message("started"))["folder"] != asked["folder"]:
                    pass  # somebody lost patience before it was started
                return int(said["started"])
            except (ProcessEnded, ServerFailed):
                return None

    def _wait_until_ready(self) -> None:
        if not self._is_ready:
            self._receive_message("ready")
            self._is_ready = True

    def _receive_message(self, expected_key: str) -> dict[str, Any]:
        try:
            said: dict[str, Any] = self.process.receive_json(self._timeout)
        except ReplyTimeout as silent:
            raise ServerFailed(f"SGLang was not imported within {silent}") from None
        except ProcessEnded as gone:
            raise ServerFailed(f"the process that imports SGLang ended: {gone}") from None
        if expected_key not in said:
            raise ServerFailed(f"SGLang cannot be imported here: {said.get('failed', said)}")
        return said

    def end(self) -> None:
        """End its processes; a thread that waits for it hears of that."""
        self.process.end(grace_seconds=5.0)

    def close(self) -> None:
        self.end()
        self.process.close()

    def __enter__(self) -> ServerZygote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
