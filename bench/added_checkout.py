"""From a clone of SGLang's main to a proof on it, on a machine that has the base.

    python -m bench.added_checkout FOLDER [--record FILE]

The main is built in FOLDER from the newest wheel's sources with three commits on top: one adds a
file, one renames a parameter in a function with a known fix, so that its toggle is stale there, one
is empty. The workspace is new and shares nothing but the base, the wheels and that release.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import recording, reviews
from harness.core import paths
from harness.core.git_repository import GitRepository
from harness.releases import managed_releases

TOGGLE, SUITE = "20606", "suites/topk_offset"
FILE = "srt/layers/attention/dsa_backend.py"
FUNCTION = ("def get_topk_transform_method(", "def get_indexer_metadata(")
LIMIT_SECONDS = 180


def build_main(folder: Path) -> GitRepository:
    """Build the repository that stands for upstream's."""
    newest = managed_releases.get_newest_release()
    repository = GitRepository(folder)
    folder.mkdir(parents=True)
    reviews.run_git(repository, "init", "-q", "-b", "main")
    reviews.commit_release(repository, newest)
    package = folder / "python" / "sglang"
    (package / "srt" / "notes_of_a_bench.py").write_text("NOTE = 1\n")
    reviews.commit_all(repository, "a new file")
    text = (package / FILE).read_text()
    before, start, rest = text.partition(FUNCTION[0])
    body, end, after = rest.partition(FUNCTION[1])
    renamed = body.replace("forward_mode", "batch_mode")
    assert renamed != body
    (package / FILE).write_text("".join((before, start, renamed, end, after)))
    reviews.commit_all(repository, "a parameter has another name")
    reviews.run_git(repository, "commit", "-q", "--allow-empty", "-m", "nothing")
    return repository


def make_home(folder: Path) -> Path:
    newest = managed_releases.get_newest_release()
    (folder / ".releases").mkdir(parents=True)
    for name in ("base", "wheels", newest.name):
        (folder / ".releases" / name).symlink_to(paths.releases_folder() / name)
    return folder


def run_timed(words: list[str], home: Path) -> dict[str, Any]:
    begun = time.monotonic()
    environment = {**os.environ, "UNFIX_HOME": str(home)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    seconds = round(time.monotonic() - begun, 1)
    assert done.returncode == 0, done.stdout + done.stderr
    messages = [
        line for line in done.stderr.splitlines() if "lock of ours" in line or "mended" in line
    ]
    lines = [line for line in done.stdout.splitlines() if TOGGLE in line] or messages
    return {"seconds": seconds, "log": messages, "output": lines[:4]}


def main() -> None:
    parser = recording.make_parser(__doc__)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    for name in ("upstream", "sglang", "home"):
        shutil.rmtree(folder / name, ignore_errors=True)
    upstream, home = build_main(folder / "upstream"), make_home(folder / "home")
    checkout = str(folder / "sglang")
    unfix = [sys.executable, "-m", "harness"]
    named = ["--release", checkout]
    steps = {
        "clone": ["git", "clone", "-q", str(upstream.folder), checkout],
        "releases add": [*unfix, "releases", "add", checkout],
        "prove": [*unfix, "prove", TOGGLE, SUITE, *named, "--profile", "smoke"],
        "list": [*unfix, "list", TOGGLE, *named],
    }
    results = {name: run_timed(words, home) for name, words in steps.items()}
    total = sum(results[name]["seconds"] for name in ("clone", "releases add", "prove"))
    result = {"steps": results, "seconds to a proof": round(total, 1), "limit": LIMIT_SECONDS}
    result["load"] = os.getloadavg()[0]
    recording.record_result(result, arguments.record)


if __name__ == "__main__":
    main()
