"""The hooks for pre-commit, run by pre-commit itself on a checkout of SGLang's real sources.

    python -m bench.commit_hooks FOLDER PRE_COMMIT [--record FILE]

The checkout is built in FOLDER from the wheel of the newest release, and PRE_COMMIT is the program.
It installs unfix from the commit of this checkout, as it does for anyone; the environment for
kernels is this checkout's. Each change is staged, `pre-commit run` is called, and what each hook
says and the code it ends with are recorded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import recording, reviews
from harness.core import paths
from harness.core.git_repository import GitRepository, strip_git_variables
from harness.fixes.patch_plan import Direction, ToggleChoice, make_plan
from harness.fixes.registry import toggle_catalogue
from harness.releases import managed_releases

CONFIG = """\
repos:
  - repo: {repository}
    rev: {commit}
    hooks:
      - id: unfix-drift
      - id: unfix-audit
"""
LINE = re.compile(r"^(?P<name>[^.\n]+)\.{3,}.*?(?P<word>Passed|Failed|Skipped)$", re.MULTILINE)


@dataclass(frozen=True)
class StagedChange:
    """A change of the checkout: toggles whose fixes it takes back, or a line of a file."""

    name: str
    toggles: tuple[str, ...] = ()
    file: str = ""


CHANGES = (
    StagedChange("a comment in a kernel's file", file="srt/layers/attn_residual.py"),
    StagedChange("a file that no kernel is in", file="srt/sampling/sampling_params.py"),
    StagedChange("a fix of a backend taken back", toggles=("20606",)),
    StagedChange("a kernel's offset in 32 bits again", toggles=("28788-stage1",)),
)


def main() -> None:
    parser = recording.make_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("pre_commit", type=Path)
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    release = managed_releases.get_newest_release()
    checkout = build_checkout(folder / "sglang", release)
    home = folder / "home"
    (home / ".releases").mkdir(parents=True, exist_ok=True)
    base = home / ".releases" / "base"
    if not base.exists():
        base.symlink_to(paths.releases_folder() / "base")
    results = []
    for change in CHANGES:
        stage_change(checkout, change, release)
        results.append({"change": change.name, **run_hooks(arguments.pre_commit, checkout, home)})
        print(change.name, results[-1]["hooks"], flush=True)
        reviews.run_git(checkout, "reset", "-q", "--hard")
    for one in results:
        one["output"] = one["output"].replace(str(folder), "FOLDER")
    sys.argv[1:3] = ["FOLDER", "PRE_COMMIT"]
    recording.record_result({"release": release.name, "changes": results}, arguments.record)


def build_checkout(folder: Path, release: managed_releases.Release) -> GitRepository:
    checkout = GitRepository(folder)
    if not (folder / ".git").exists():
        folder.mkdir(parents=True)
        reviews.run_git(checkout, "init", "-q", "-b", "main")
        reviews.write_sources(release, folder / "python")
    own = GitRepository(paths.project_folder())
    commit = own.run_git("rev-parse", "HEAD")
    config = CONFIG.format(repository=own.folder, commit=commit)
    (folder / ".pre-commit-config.yaml").write_text(config)
    reviews.run_git(checkout, "add", "-A")
    reviews.run_git(checkout, "commit", "-q", "--allow-empty", "-m", f"SGLang {release.name}")
    if checkout.try_git("rev-parse", "-q", "--verify", f"v{release.name}").returncode:
        reviews.run_git(checkout, "tag", f"v{release.name}")
    return checkout


def stage_change(
    checkout: GitRepository, change: StagedChange, release: managed_releases.Release
) -> None:
    package = checkout.folder / "python" / "sglang"
    if change.file:
        with (package / change.file).open("a") as file:
            file.write("# A comment.\n")
    wanted = [one for one in toggle_catalogue.load_catalogue() if one.id in change.toggles]
    assert len(wanted) == len(change.toggles), change.toggles
    choices = [ToggleChoice(one, Direction.REVERT) for one in wanted]
    if choices:
        for module in make_plan(choices, release.open_sources(), release.name).modules:
            name = module.module.removeprefix("sglang.").replace(".", "/")
            (package / f"{name}.py").write_text(module.text)
    reviews.run_git(checkout, "add", "-A")


def run_hooks(program: Path, checkout: GitRepository, home: Path) -> dict[str, Any]:
    began = time.monotonic()
    done = subprocess.run(
        [program, "run", "--color", "never"],
        cwd=checkout.folder,
        env={**strip_git_variables(), "UNFIX_HOME": str(home)},
        capture_output=True,
        text=True,
    )
    output = done.stdout + done.stderr
    return {
        "code": done.returncode,
        "hooks": {found["name"].strip(): found["word"] for found in LINE.finditer(output)},
        "seconds": round(time.monotonic() - began, 1),
        "output": output[-3000:],
    }


if __name__ == "__main__":
    os.environ.pop("UNFIX_HOME", None)
    sys.exit(main())
