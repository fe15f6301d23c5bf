"""Reviews of real changes of SGLang, each taken from the difference of two wheels.

    python bench/reviews.py FOLDER [--record FILE] [NAME…]

A checkout is built in FOLDER from the sources of the wheels, one commit and tag for each, and a
branch for each change: the files of one fix or feature, as the later wheel has them. Each branch is
reviewed by `unfix pr`; a review that is in FOLDER already is not run again. What each report says
was read by eye against the diff; `JUDGEMENTS` has the result, which the record repeats.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import recording

from harness.core import paths
from harness.core.git_repository import GitRepository, strip_git_variables
from harness.releases import managed_releases, pins
from harness.releases.managed_releases import Release

OLDER, NEWER = "0.5.22", "0.5.23"
AUTHOR = ("-c", "user.name=bench", "-c", "user.email=bench@example.org")


@dataclass(frozen=True)
class WheelChange:
    """The files of one fix or feature, and what it is by its diff."""

    name: str
    kind: str
    about: str
    files: tuple[str, ...]


CHANGES = (
    WheelChange(
        "attn-residual-int64",
        "fix",
        "rows of attention residuals are found in 64 bits (38912, and its twin for HIP)",
        ("kernels/ops/attention/attn_res_hip.py", "srt/layers/attn_residual.py"),
    ),
    WheelChange(
        "kv-layout-interleaved",
        "feature",
        "page layouts with each token's scales behind its data",
        ("kernels/ops/attention/dsv4/kv_layout.py",),
    ),
    WheelChange(
        "dcp-reference-removed",
        "clean-up",
        "a reference implementation for a CPU that nothing calls is removed",
        ("kernels/ops/attention/dcp_kernels.py",),
    ),
    WheelChange(
        "translator-token-blocks",
        "feature",
        "the gather of KV indices is cut into blocks of tokens, sized from the sum of lengths",
        ("srt/speculative/eagle_info.py", "srt/mem_cache/kv_loc_plan.py"),
    ),
    WheelChange(
        "window-only-pools",
        "feature",
        "a pool without a full-attention side answers for its window side",
        ("srt/mem_cache/swa_memory_pool.py",),
    ),
    WheelChange(
        "spec-platform-worker",
        "feature",
        "a platform out of the tree may bring its own speculative worker",
        ("srt/speculative/spec_info.py",),
    ),
    WheelChange(
        "cyclic-allocation",
        "feature",
        "whole pages of one chain are allocated at a fixed rotation of owners",
        ("srt/mem_cache/allocator/page_interleave.py", "srt/mem_cache/allocator/base.py"),
    ),
    WheelChange(
        "logical-page-table",
        "feature",
        "an indexer's page table before any translation of addresses",
        ("srt/layers/attention/dsa/dsa_indexer_metadata.py",),
    ),
    WheelChange(
        "transform-index-renamed",
        "clean-up",
        "two wrappers go, the functions behind them take their names, references are removed",
        ("kernels/ops/attention/dsa/transform_index.py",),
    ),
    WheelChange(
        "moe-lora-slots",
        "fix",
        "slots and experts out of range are masked in the kernels of MoE LoRA",
        ("kernels/ops/lora/moe/virtual_experts.py",),
    ),
)
# What was read by eye: whether what the report says is right, and what it does not say.
JUDGEMENTS = {
    "attn-residual-int64": (
        "Right: the diff casts three program ids to int64, and the report says that it brings "
        "in these three fixes, that their guards fail before it and pass after it, and that "
        "each fault in the three lines is noticed. `same bits` is right too: the captured "
        "launches are too small to overflow. Two of the five audited kernels are ones that no "
        "release can load."
    ),
    "kv-layout-interleaved": (
        "Right: the guards of this module run `KVLayout.parse` alone, so no guard runs a "
        "changed line; the report says so, and lists the conditions that nothing tests. What "
        "the new layouts do is not judged."
    ),
    "dcp-reference-removed": (
        "Right: nothing called the function, no kernel changed, and no fault can be made in the "
        "one line that is left. Two kernels that no release can load were counted as audited."
    ),
    "translator-token-blocks": (
        "Right: 23 tests run changed lines and end as before, the four cells are proven on both "
        "ends, and 32087 fails on both as it is (the releases have that bug). That no operator "
        "makes a fault in these lines is a limit of the operators. The seconds are those of a "
        "crowded machine."
    ),
    "cyclic-allocation": (
        "Right: both methods are new and nothing calls them, so no guard runs a changed "
        "line and no kernel changed. The three faults in `alloc_cyclic` are unreached, and the "
        "nearest guard runs another function of the module. The other method returns its argument, "
        "where no fault can be made."
    ),
    "logical-page-table": (
        "Right: two new methods without a caller; no guard, kernel or fault. It does not say that "
        "`indexer_logical_page_table`, which one of them reads, is nowhere in this tree, since the "
        "files that bring it are not part of the branch."
    ),
    "spec-platform-worker": (
        "Right: no guard creates a speculative worker, so nothing is proven and the one fault is "
        "unreached. It does not say that `get_speculative_worker_cls` is nowhere in this tree. "
        "Which deployments create such a worker was not known: the records had no functions."
    ),
    "window-only-pools": (
        "Right: six guards run the five lines that give each pool its layers' ids, and end as "
        "before; that nothing looks at these ids is shown by the one fault, which survives. That "
        "no guard and no fault is in `get_v_head_dim` is not said. Architectures and deployments "
        "are those with windows, and what was run of them is as before. It said `holds` of a base "
        "whose architectures did not run, since nothing failed after; they are untested there now."
    ),
    "transform-index-renamed": (
        "Wrong in one line: `topk-table-stride` is gone, it says. The function with that fix only "
        "took the name of its wrapper, and its fixed code is there. Mending now follows such a "
        "function, and a toggle for which nothing is proposed stays stale in place of absent. "
        "The rest is right: two kernels answer with the same bits on 34 launches, two cells are "
        "proven on both ends, and no fault can be made where lines are only removed and renamed."
    ),
    "moe-lora-slots": (
        "Right: the kernel returns before it divides by an empty group, so "
        "`moe-lora-shrink-programs` is brought in (its toggle has no guard); no guard launches "
        "these kernels, and all 40 faults are unreached. The other half of the fix, slots and "
        "experts out of range, is no toggle and no finding of the audit, so nothing is said of "
        "it. Forty rows said that no guard runs the module; there is one now."
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    checkout = build_checkout(folder / "sglang")
    chosen = [one for one in CHANGES if not arguments.names or one.name in arguments.names]
    results = [review_change(checkout, folder, change) for change in chosen]
    recording.record_result({"older": OLDER, "newer": NEWER, "reviews": results}, arguments.record)


def build_checkout(folder: Path) -> GitRepository:
    """Build a checkout with a commit for each wheel, and a branch for each change."""
    repository = GitRepository(folder)
    if not (folder / ".git").exists():
        folder.mkdir(parents=True)
        run_git(repository, "init", "-q", "-b", "main")
        for version in (OLDER, NEWER):
            write_sources(managed_releases.get_release(version), folder / "python")
            run_git(repository, "add", "-A")
            run_git(repository, "commit", "-q", "-m", f"SGLang {version}")
            run_git(repository, "tag", f"v{version}")
    for change in CHANGES:
        if repository.try_git("rev-parse", "--verify", "-q", change.name).returncode:
            run_git(repository, "checkout", "-q", "-B", change.name, f"v{OLDER}")
            files = [f"python/sglang/{file}" for file in change.files]
            run_git(repository, "checkout", "-q", f"v{NEWER}", "--", *files)
            run_git(repository, "commit", "-q", "-m", change.about)
            run_git(repository, "checkout", "-q", "main")
    return repository


def write_sources(release: Release, folder: Path) -> None:
    """Write a wheel's sources and its pins as a checkout has them."""
    wheel = release.any_wheel
    assert wheel is not None, f"`unfix releases add --sources {release.name}` fetches its wheel"
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        names = [one for one in archive.namelist() if one.startswith("sglang/")]
        built = (".so", "/_version.py")  # no checkout has them
        archive.extractall(folder, [one for one in names if not one.endswith(built)])
    required = ",\n".join(f"  {str(one)!r}" for one in pins.read_wheel_requirements(wheel))
    project = (
        f'[project]\nname = "sglang"\ndynamic = ["version"]\ndependencies = [\n{required}\n]\n'
    )
    (folder / "pyproject.toml").write_text(project)


def run_git(repository: GitRepository, *words: str) -> None:
    subprocess.run(
        ["git", "-C", str(repository.folder), *AUTHOR, *words],
        check=True,
        env=strip_git_variables(),
    )


def review_change(checkout: GitRepository, folder: Path, change: WheelChange) -> dict[str, Any]:
    record = folder / f"{change.name}.json"
    if not record.exists():
        ends = f"v{OLDER}..{change.name}"
        words = ["pr", str(checkout.folder), ends, "--record", str(record)]
        words += ["--markdown", str(record.with_suffix(".md"))]
        done = subprocess.run([paths.project_folder() / "unfix", *words], stdout=subprocess.DEVNULL)
        assert done.returncode in (0, 1), done.returncode
    report = json.loads(record.read_text())
    for name in ("machine", "settings", "checkout", "runs", "command"):
        report.pop(name, None)
    about = {"name": change.name, "kind": change.kind, "about": change.about}
    return {**about, "judgement": JUDGEMENTS.get(change.name, "not read"), "review": report}


if __name__ == "__main__":
    sys.exit(main())
