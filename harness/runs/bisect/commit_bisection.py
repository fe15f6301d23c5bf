"""A search over the commits of a checkout: `git bisect run`, with toggles pinned at each commit.

The search has a worktree of its own, so the caller's checkout is unchanged. For each commit git
starts `python -m harness.runs.bisect.commit_bisection REQUEST`, which applies or reverts the pinned
toggles as the commit's sources need it, runs the command, and answers by its exit code.

The invariant: an exit code other than 0, 1 and 125 ends git's search. So an accident of this
process never counts as an outcome of a commit. Both sides of the step are run twice.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path

import msgspec

from harness.core import child_process
from harness.core.errors import UnfixError
from harness.core.files import write_atomically
from harness.core.git_repository import SHORT_HASH_LENGTH, GitRepository, strip_git_variables
from harness.core.outcomes import Verdict
from harness.fixes.matching.toggle_status import find_toggle_status
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.releases.source_trees import open_tree
from harness.runs.bisect.command_runner import CommandRunner
from harness.runs.bisect.outcome_rules import EXIT_CANNOT_TELL
from harness.runs.bisect.release_bisection import check_ends_differ
from harness.runs.bisect.request import BisectRequest
from harness.runs.bisect.search_driver import SearchDriver
from harness.runs.bisect.toggle_candidates import resolve_pinned_choices
from harness.runs.bisect.trial_runner import TrialJob, VersionUnderTest
from harness.store.bisect.values import BisectStep, BisectTrial

EXIT_ONLY_SKIPPED_LEFT = 2  # the exit code of `git bisect run` in that case
EXIT_ABORT = 128  # the exit code at which `git bisect run` gives up
POLL_SECONDS = 0.3
OLD_TERM, NEW_TERM = (
    "as-before",
    "as-after",
)  # git's words for the two outcomes, whichever is the failure


class CommitBisectRequest(msgspec.Struct):
    """The request to run one commit of a search, and its folders."""

    search: BisectRequest
    python: str
    environment_folder: str
    pinned_toggles: dict[str, str]
    state_folder: str
    replay_only: bool = False
    worktree: str = ""
    failure_is_new: bool = True

    def load_catalogue(self) -> ToggleCatalogue:
        return toggle_catalogue.load_catalogue(map(Path, self.search.toggle_folders))


def make_version_under_test(request: CommitBisectRequest, name: str) -> VersionUnderTest:
    """Make the version under test: the release's packages with the commit's SGLang."""
    tree = open_tree(Path(request.worktree))
    return VersionUnderTest(name, tree, Path(request.python), Path(request.environment_folder))


def run_in_worktree(
    request: CommitBisectRequest, name: str, catalogue: ToggleCatalogue
) -> BisectTrial:
    """Run the command on the present content of the worktree."""
    search = request.search
    version = make_version_under_test(request, name)
    source = str(getattr(version.tree, "folder", request.worktree))
    rest = os.environ.get("PYTHONPATH")
    runner = CommandRunner(
        search.command,
        search.rules,
        Path(request.state_folder) / f"run-{os.getpid()}",
        time_limit=search.time_limit,
        server_command=search.server_command,
        ready_url=search.ready_url,
        toggle_folders=[Path(folder) for folder in search.toggle_folders],
        extra_environment={"PYTHONPATH": f"{source}{os.pathsep}{rest}" if rest else source},
        cwd=Path(request.worktree),
    )
    try:
        choices = resolve_pinned_choices(request.pinned_toggles, catalogue, version.tree)
        ((_, trial),) = runner.run(
            [TrialJob(version, tuple(n for n, _ in choices), choices, "search")]
        )
        trial.search_name, trial.replay = "commits", ""  # no release has this code
        return trial
    finally:
        runner.close()


def locate_trial_file(request: CommitBisectRequest, commit: str) -> Path:
    return Path(request.state_folder) / f"{commit[:SHORT_HASH_LENGTH]}.json"


def load_or_run_trial(
    request: CommitBisectRequest, repository: GitRepository, catalogue: ToggleCatalogue, commit: str
) -> BisectTrial:
    """Return the trial of a commit, from an earlier run or run now."""
    file = locate_trial_file(request, commit)
    if file.exists():
        return msgspec.json.decode(file.read_bytes(), type=BisectTrial)
    if request.replay_only:
        raise UnfixError(f"the log holds no run on {commit[:SHORT_HASH_LENGTH]}")
    _check_out_commit(request, repository, commit)
    trial = run_in_worktree(request, commit[:SHORT_HASH_LENGTH], catalogue)
    _write_trial(file, trial)
    return trial


def _write_trial(file: Path, trial: BisectTrial) -> None:
    write_atomically(file, msgspec.json.encode(trial))


def bisect_commits(
    request: CommitBisectRequest,
    repository: GitRepository,
    good: str,
    bad: str,
    driver: SearchDriver,
) -> BisectStep:
    """Find the step between two commits: the ends first, then by git's own search."""
    folder = Path(request.state_folder)
    folder.mkdir(parents=True, exist_ok=True)
    log = driver.take_earlier_trials()
    logged = {trial.where: trial for trial in log if trial.why != "proof"}
    proofs = {trial.where: trial for trial in log if trial.why == "proof"}
    for trial in logged.values():
        _write_trial(locate_trial_file(request, trial.where), trial)
    known = request.load_catalogue()
    good, bad = repository.resolve_commit(good), repository.resolve_commit(bad)
    older, newer = (good, bad) if repository.is_ancestor(good, bad) else (bad, good)
    if good == bad or not repository.is_ancestor(older, newer):
        raise UnfixError("neither of the two commits is an ancestor of the other")
    request.failure_is_new = newer == bad
    with repository.add_worktree(newer) as request.worktree:
        ends = []
        for commit in (good, bad):
            ends.append(load_or_run_trial(request, repository, known, commit))
            driver.record_trial(ends[-1], is_new=ends[-1].where not in logged)
        check_ends_differ(*ends)
        step = _run_git_bisect(request, repository, older, newer, driver, set(logged))
        _confirm_step(step, request, repository, known, driver, proofs)
        if not step.cannot_tell:
            _describe_step(step, repository, request, known)
    shutil.rmtree(folder, ignore_errors=True)
    return step


def _run_git_bisect(
    request: CommitBisectRequest,
    repository: GitRepository,
    older: str,
    newer: str,
    driver: SearchDriver,
    logged_commits: set[str],
) -> BisectStep:
    """Search by `git bisect`, which runs this module on each commit that it chooses."""
    worktree = Path(request.worktree)
    specification = Path(request.state_folder) / "asked.spec"
    specification.write_bytes(msgspec.json.encode(request))
    chain = repository.run_git(
        "rev-list", "--reverse", "--ancestry-path", f"{older}..{newer}"
    ).split()
    step = BisectStep([one[:SHORT_HASH_LENGTH] for one in (older, *chain)])
    repository.run_git(
        *("bisect", "start", f"--term-old={OLD_TERM}", f"--term-new={NEW_TERM}", newer, older),
        folder=worktree,
    )
    try:
        ours = [
            sys.executable,
            "-P",
            "-m",
            "harness.runs.bisect.commit_bisection",
            str(specification),
        ]
        log = Path(request.state_folder) / "git"
        code = _follow_git_bisect(
            ["git", "-C", str(worktree), "bisect", "run", *ours],
            log,
            request,
            driver,
            logged_commits,
        )
        refs = repository.run_git(
            "for-each-ref",
            "--format=%(objectname) %(refname:lstrip=2)",
            "refs/bisect",
            folder=worktree,
        )
        at = [line.split() for line in refs.splitlines()]
        first = next(commit for commit, name in at if name == NEW_TERM)
        olds = [commit for commit, name in at if name.startswith(f"{OLD_TERM}-")]
        skipped = {commit for commit, name in at if name.startswith("skip-")}
        left = repository.run_git("rev-list", "--reverse", first, "--not", *olds).split()
        ran = {trial.where for trial in driver.search.trials}
        # Code 2: only inconclusive commits are left; any other code is an error.
        is_undecided = code == EXIT_ONLY_SKIPPED_LEFT and skipped & set(left)
        if (code and not is_undecided) or first[:SHORT_HASH_LENGTH] not in ran:
            raise UnfixError(f"git bisect run: {log.read_text(errors='replace').strip()[-2000:]}")
        step.after = first[:SHORT_HASH_LENGTH]
        step.undecided = [one[:SHORT_HASH_LENGTH] for one in left if one != first]
        step.before = repository.run_git("rev-parse", f"{left[0]}^")[:SHORT_HASH_LENGTH]
        return step
    finally:
        repository.try_git("bisect", "reset", folder=worktree)


def _confirm_step(
    step: BisectStep,
    request: CommitBisectRequest,
    repository: GitRepository,
    catalogue: ToggleCatalogue,
    driver: SearchDriver,
    proofs: dict[str, BisectTrial],
) -> None:
    """Run both sides of the step once more: git has run each commit once."""
    searched = {trial.where: trial for trial in driver.search.trials}
    for commit in (step.before, step.after):
        if commit not in searched:
            raise UnfixError(f"git names {commit} as one side of the step, and nothing ran on it")
        again = proofs.get(commit)
        if again is None:
            if request.replay_only:
                raise UnfixError(f"the log holds no proof on {commit}")
            _check_out_commit(request, repository, commit)
            again = run_in_worktree(request, commit, catalogue)
            again.why = "proof"
        driver.record_trial(again, is_new=commit not in proofs)
        if again.answer is not searched[commit].answer:
            how = f"{searched[commit].how}, then {again.how}"
            step.cannot_tell = f"on {commit} it came out in two ways ({how})"
            return


def _check_out_commit(request: CommitBisectRequest, repository: GitRepository, commit: str) -> None:
    """Check out a commit, and remove what runs on other commits left.

    Cached bytecode most of all: Python recognizes stale bytecode only by size and time in seconds.
    """
    worktree = Path(request.worktree)
    repository.run_git("checkout", "--quiet", "--force", commit, folder=worktree)
    repository.run_git("clean", "-ffdxq", folder=worktree)


def _follow_git_bisect(
    command: list[str],
    log: Path,
    request: CommitBisectRequest,
    driver: SearchDriver,
    logged_commits: set[str],
) -> int:
    """Run `git bisect`, and record the outcome of each commit as it comes."""
    recorded = {trial.where for trial in driver.search.trials}
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=strip_git_variables(),
            start_new_session=True,  # this process handles Ctrl-C
        )
    try:
        over = False
        while not over:
            over = process.poll() is not None
            for file in sorted(
                Path(request.state_folder).glob("*.json"), key=lambda f: f.stat().st_mtime
            ):
                if file.stem not in recorded:
                    recorded.add(file.stem)
                    trial = msgspec.json.decode(file.read_bytes(), type=BisectTrial)
                    driver.record_trial(trial, is_new=file.stem not in logged_commits)
            time.sleep(0 if over else POLL_SECONDS)
    finally:
        child_process.kill_process_group(process.pid)
    return process.wait()


def _describe_step(
    step: BisectStep,
    repository: GitRepository,
    request: CommitBisectRequest,
    catalogue: ToggleCatalogue,
) -> None:
    """Add the commit's author, and the toggles and modules that differ across it."""
    step.about = repository.run_git("show", "--no-patch", "--format=%h %an, %as: %s", step.after)
    step.modules = [
        line.rpartition("python/")[2].removesuffix(".py").replace("/", ".")
        for line in repository.run_git("diff", "--name-only", step.before, step.after).splitlines()
    ]
    states = []
    for commit in (step.before, step.after):
        repository.run_git("checkout", "--quiet", "--force", commit, folder=Path(request.worktree))
        tree = open_tree(Path(request.worktree))
        states.append({toggle.id: find_toggle_status(toggle, tree).state for toggle in catalogue})
    step.changed = [
        f"{name}: {states[0][name].value} → {states[1][name].value}"
        for name in states[0]
        if states[0][name] is not states[1][name]
    ]


def summarize_step(step: BisectStep) -> tuple[str, str]:
    """Return the verdict of a search over commits, in a sentence or two."""
    if step.cannot_tell:
        return "cannot tell", f"The search cannot tell: {step.cannot_tell}."
    text = f"The outcome changes with {step.about}"
    if step.undecided:
        text += f", or with one of {len(step.undecided)} before it without an answer"
    why = f"in it, {'; '.join(step.changed)}" if step.changed else "no toggle changes in it"
    return ("cannot tell" if step.undecided else "found"), f"{text}; {why}."


def to_exit_code(trial: BisectTrial, failure_is_new: bool) -> int:
    """Return an exit code for `git bisect run`: 0 for the old outcome, 1 for the new one."""
    if trial.answer is Verdict.CANNOT_TELL:
        return EXIT_CANNOT_TELL
    return int((trial.answer is Verdict.FAILS) == failure_is_new)


def main(request_file: str) -> int:
    try:
        return _answer_git(request_file)
    except Exception:
        # Any other code would be an answer to git; this one ends its search.
        traceback.print_exc()
        return EXIT_ABORT


def _answer_git(request_file: str) -> int:
    request = msgspec.json.decode(Path(request_file).read_bytes(), type=CommitBisectRequest)
    catalogue = request.load_catalogue()
    repository = GitRepository(Path(request.worktree))
    commit = repository.run_git("rev-parse", "HEAD")
    try:
        trial = load_or_run_trial(request, repository, catalogue, commit)
    except UnfixError as error:  # such as a toggle that is stale in this commit
        trial = BisectTrial(
            commit[:SHORT_HASH_LENGTH], [], "search", Verdict.CANNOT_TELL, str(error)
        )
        _write_trial(locate_trial_file(request, commit), trial)
    return to_exit_code(trial, request.failure_is_new)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
