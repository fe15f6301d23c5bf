"""Servers that are forked from a process which has imported SGLang already."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import paths
from harness.releases import engines
from harness.serving.server import Server, ServerFailed, Setup
from harness.serving.talking import Gone, Silent, Talking


class House:
    """A process that has imported one SGLang, and forks servers; closed, nothing is left of it."""

    def __init__(self, setup: Setup, log: Path, seconds: float = 600.0) -> None:
        given = {**os.environ, **setup.environment}
        found_by = [str(paths.PACKAGE.parent), str(paths.project())]
        rest = [given["PYTHONPATH"]] if given.get("PYTHONPATH") else []
        given |= {
            "PYTHONPATH": os.pathsep.join(dict.fromkeys([*found_by, *rest])),
            "PYTHONUNBUFFERED": "1",
            "UNFIX_RELEASE": setup.release,
        }
        engines.tell(given)
        for name in ("SGLANG_DEBUG_REVERT_PR", "SGLANG_DEBUG_ENABLE_PR", "UNFIX_REVERT"):
            given.pop(name, None)
        command = [str(setup.python), "-m", "harness.serving.house"]
        self.talking = Talking(command, given, log)
        self._limit = seconds
        self._ready = False
        self._one_at_a_time = threading.Lock()

    def start(self, server: Server, words: Sequence[str]) -> int | None:
        """Fork a server; None if this house had been ready and is gone."""
        setup = server.setup
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
        with self._one_at_a_time:
            self._wait()
            try:
                self.talking.say(asked)
                while (said := self._hear("started"))["folder"] != asked["folder"]:
                    pass  # somebody lost patience before it was started
                return int(said["started"])
            except (Gone, ServerFailed):
                return None

    def _wait(self) -> None:
        if not self._ready:
            self._hear("ready")
            self._ready = True

    def _hear(self, what: str) -> dict[str, Any]:
        try:
            said: dict[str, Any] = self.talking.hear(self._limit)
        except Silent as silent:
            raise ServerFailed(f"SGLang was not imported within {silent}") from None
        except Gone as gone:
            raise ServerFailed(f"the process that imports SGLang ended: {gone}") from None
        if what not in said:
            raise ServerFailed(f"SGLang cannot be imported here: {said.get('failed', said)}")
        return said

    def end(self) -> None:
        """End its processes; a thread that waits for it hears of that."""
        self.talking.end(patience=5.0)

    def close(self) -> None:
        self.end()
        self.talking.close()

    def __enter__(self) -> House:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
