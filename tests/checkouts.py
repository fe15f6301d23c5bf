"""A checkout of SGLang with a few commits, made in the test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class SglangCheckout:
    """A git repository with SGLang's layout and a few commits."""

    def __init__(self, folder: Path, root: str = "python/") -> None:
        self.folder = folder
        self.root = root
        folder.mkdir(exist_ok=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str) -> str:
        quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        name = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", "-C", str(self.folder), *name, *words],
            env={**os.environ, **quiet},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def commit(self, files: dict[str, str | None], message: str = "a change") -> str:
        for name, content in files.items():
            path = self.folder / self.root / "sglang" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink()
            else:
                path.write_text(content)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")
