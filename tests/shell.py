"""Runs Python programs over the toy release under toggles, as a user's processes would."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import forked
from calling import PATIENCE_SECONDS, run_program

from harness.core import paths
from harness.patching import attestation
from harness.patching.child_environment import STARTUP_FOLDER

TOY = Path(__file__).parent / "toy"
REVERT, ENABLE = "SGLANG_DEBUG_REVERT_PR", "SGLANG_DEBUG_ENABLE_PR"
PLAIN = "from sglang import users\nprint(users.use(3, 5))\n"


class Shell:
    """Runs Python programs over the toy release under toggles."""

    def __init__(self, tmp: Path, home: Path) -> None:
        self.tmp = tmp
        self.attestations = tmp / "attestations"
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{STARTUP_FOLDER}{os.pathsep}{TOY}",
            "PYTHONDONTWRITEBYTECODE": "",
            "UNFIX_HOME": str(home),
            "UNFIX_TOGGLES": str(TOY / "toggles"),
            "UNFIX_ATTESTATIONS": str(self.attestations),
        }

    def python(self, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
        script = self.tmp / "program.py"
        script.write_text(textwrap.dedent(program))
        command = [sys.executable, script]
        return run_program(command, env={**self.environment, **variables}, timeout=PATIENCE_SECONDS)

    def unfix(self, *words: str) -> subprocess.CompletedProcess[str]:
        folders = ["--toggles", str(TOY / "toggles"), "--attestations", str(self.attestations)]
        search_path = f"{TOY}{os.pathsep}{paths.HARNESS_FOLDER.parent}"
        environment = {**self.environment, "PYTHONPATH": search_path}
        return forked.run_unfix([*forked.UNFIX, "exec", *folders, *words], Path.cwd(), environment)

    def read_attestations(self) -> list[attestation.Attestation]:
        return attestation.read_attestations(self.attestations)
