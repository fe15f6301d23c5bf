"""A search over the commits of a checkout: `git bisect run`, with toggles held at each commit.

It works in a worktree of its own, so the caller's checkout stays as it is. git calls us back for
each commit (`python -m harness.bisect.commits SPEC`): the toggles that are to be held are put in or
taken out as that commit's sources need it, the command runs, and git is told.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.bisect.commands import Commands
from harness.bisect.history import newest_first
from harness.bisect.hunt import Hunt
from harness.bisect.judging import SKIP, Rules
from harness.bisect.runners import Job, Place
from harness.bisect.toggles import held_choices
from harness.errors import UnfixError
from harness.matching.states import find
from harness.registry import catalogue
from harness.registry.catalogue import Catalogue
from harness.releases.sources import open_tree
from harness.store.bisect.values import Answer, Step, Trial

SHORT = 12
ONLY_SKIPPED = 2  # how `git bisect run` ends when it can get no further for them
ABORT = 128  # the exit code at which `git bisect run` gives up
LOOK = 0.3
OLD, NEW = "as-before", "as-after"  # git's words for the two outcomes, whichever is the failure


class Asked(msgspec.Struct):
    """All that the run of one commit must know."""

    python: str
    environment: str
    words: list[str]
    rules: Rules
    seconds: float | None
    serve: str
    ready: str
    held: dict[str, str]
    toggles: list[str]
    folder: str
    replayed: bool = False
    worktree: str = ""
    fails_is_new: bool = True


@dataclass
class Repository:
    """The caller's checkout, and a worktree of it to search in."""

    folder: Path

    def git(self, *words: str, folder: Path | None = None) -> str:
        done = self.try_git(*words, folder=folder)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise UnfixError(f"git {shlex.join(words)}: {said}")
        return done.stdout.strip()

    def try_git(self, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", "-C", str(folder or self.folder), *words],
            capture_output=True,
            text=True,
            env=_without_git(),
        )

    def commit(self, name: str) -> str:
        done = self.try_git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        if done.returncode:
            raise UnfixError(f"{self.folder} has no commit '{name}'")
        return done.stdout.strip()

    def parent(self, commit: str) -> str:
        """The commit before one, the first of several."""
        done = self.try_git("rev-parse", "--verify", "--quiet", f"{commit}^")
        if done.returncode:
            raise UnfixError(
                f"{self.folder} has nothing before {commit[:10]}: it is the first commit there, "
                "or the checkout is shallow (`git fetch --deepen 1`)"
            )
        return done.stdout.strip()

    def holds(self, older: str, newer: str) -> bool:
        return not self.try_git("merge-base", "--is-ancestor", older, newer).returncode

    @contextlib.contextmanager
    def worktree(self, at: str) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="unfix-") as folder:
            place = Path(folder) / "tree"
            self.git("worktree", "add", "--quiet", "--detach", str(place), at)
            try:
                yield str(place)
            finally:
                self.try_git("worktree", "remove", "--force", str(place))
                self.try_git("worktree", "prune")


def _without_git() -> dict[str, str]:
    """The environment without what a git hook around us would have set."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


def open_repository(folder: Path) -> Repository:
    if not folder.is_dir():
        raise UnfixError(f"there is no folder {folder}")
    repository = Repository(folder)
    if repository.try_git("rev-parse", "--git-dir").returncode:
        raise UnfixError(f"{folder} is no git repository")
    return repository


def place(asked: Asked, name: str) -> Place:
    """A commit as something a command runs on: the release's packages, the commit's SGLang."""
    tree = open_tree(Path(asked.worktree))
    return Place(name, tree, Path(asked.python), Path(asked.environment))


def run_here(asked: Asked, name: str, known: Catalogue) -> Trial:
    """The command on what the worktree holds now."""
    here = place(asked, name)
    source = str(getattr(here.tree, "folder", asked.worktree))
    rest = os.environ.get("PYTHONPATH")
    runner = Commands(
        asked.words,
        asked.rules,
        Path(asked.folder) / f"run-{os.getpid()}",
        seconds=asked.seconds,
        serve=asked.serve,
        ready=asked.ready,
        toggles=[Path(folder) for folder in asked.toggles],
        extra={"PYTHONPATH": f"{source}{os.pathsep}{rest}" if rest else source},
        cwd=Path(asked.worktree),
    )
    try:
        choices = held_choices(asked.held, known, here.tree)
        ((_, trial),) = runner.run([Job(here, tuple(n for n, _ in choices), choices, "search")])
        trial.part, trial.replay = "commits", ""  # no release is like it
        return trial
    finally:
        runner.close()


def kept(asked: Asked, commit: str) -> Path:
    return Path(asked.folder) / f"{commit[:SHORT]}.json"


def at_commit(asked: Asked, repository: Repository, known: Catalogue, commit: str) -> Trial:
    """What the command says at a commit, from before or run now."""
    file = kept(asked, commit)
    if file.exists():
        return msgspec.json.decode(file.read_bytes(), type=Trial)
    if asked.replayed:
        raise UnfixError(f"the log holds no run on {commit[:SHORT]}")
    _check_out(asked, repository, commit)
    trial = run_here(asked, commit[:SHORT], known)
    _keep(file, trial)
    return trial


def _keep(file: Path, trial: Trial) -> None:
    part = file.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(trial))
    os.replace(part, file)


def go(asked: Asked, repository: Repository, good: str, bad: str, hunt: Hunt) -> Step:
    """The step between two commits: the ends first, then git's own search, then what it found."""
    folder = Path(asked.folder)
    folder.mkdir(parents=True, exist_ok=True)
    log = hunt.take_known()
    logged = {trial.where: trial for trial in log if trial.why != "proof"}
    proofs = {trial.where: trial for trial in log if trial.why == "proof"}
    for trial in logged.values():
        _keep(kept(asked, trial.where), trial)
    known = catalogue.load(map(Path, asked.toggles))
    good, bad = repository.commit(good), repository.commit(bad)
    older, newer = (good, bad) if repository.holds(good, bad) else (bad, good)
    if good == bad or not repository.holds(older, newer):
        raise UnfixError("neither of the two commits is an ancestor of the other")
    asked.fails_is_new = newer == bad
    with repository.worktree(newer) as asked.worktree:
        ends = []
        for commit in (good, bad):
            ends.append(at_commit(asked, repository, known, commit))
            hunt.keep(ends[-1], fresh=ends[-1].where not in logged)
        newest_first(*ends)
        step = _search(asked, repository, older, newer, hunt, set(logged))
        _prove(step, asked, repository, known, hunt, proofs)
        if not step.cannot_tell:
            _describe(step, repository, asked, known)
    shutil.rmtree(folder, ignore_errors=True)
    return step


def _search(
    asked: Asked,
    repository: Repository,
    older: str,
    newer: str,
    hunt: Hunt,
    logged: set[str],
) -> Step:
    """git's own search, in which it asks us about one commit after the other."""
    worktree = Path(asked.worktree)
    specification = Path(asked.folder) / "asked.spec"
    specification.write_bytes(msgspec.json.encode(asked))
    chain = repository.git("rev-list", "--reverse", "--ancestry-path", f"{older}..{newer}").split()
    step = Step([one[:SHORT] for one in (older, *chain)])
    repository.git(
        *("bisect", "start", f"--term-old={OLD}", f"--term-new={NEW}", newer, older),
        folder=worktree,
    )
    try:
        ours = [sys.executable, "-P", "-m", "harness.bisect.commits", str(specification)]
        log = Path(asked.folder) / "git"
        code = _run(["git", "-C", str(worktree), "bisect", "run", *ours], log, asked, hunt, logged)
        refs = repository.git(
            "for-each-ref",
            "--format=%(objectname) %(refname:lstrip=2)",
            "refs/bisect",
            folder=worktree,
        )
        at = [line.split() for line in refs.splitlines()]
        first = next(commit for commit, name in at if name == NEW)
        olds = [commit for commit, name in at if name.startswith(f"{OLD}-")]
        skipped = {commit for commit, name in at if name.startswith("skip-")}
        left = repository.git("rev-list", "--reverse", first, "--not", *olds).split()
        ran = {trial.where for trial in hunt.search.trials}
        # Its code is 2 when only commits are left that cannot be told; any other is an accident.
        untold = code == ONLY_SKIPPED and skipped & set(left)
        if (code and not untold) or first[:SHORT] not in ran:
            raise UnfixError(f"git bisect run: {log.read_text(errors='replace').strip()[-2000:]}")
        step.after = first[:SHORT]
        step.between = [one[:SHORT] for one in left if one != first]
        step.before = repository.git("rev-parse", f"{left[0]}^")[:SHORT]
        return step
    finally:
        repository.try_git("bisect", "reset", folder=worktree)


def _prove(
    step: Step,
    asked: Asked,
    repository: Repository,
    known: Catalogue,
    hunt: Hunt,
    proofs: dict[str, Trial],
) -> None:
    """Both sides of the step once more: each commit was run but once."""
    searched = {trial.where: trial for trial in hunt.search.trials}
    for commit in (step.before, step.after):
        if commit not in searched:
            raise UnfixError(f"git names {commit} as one side of the step, and nothing ran on it")
        again = proofs.get(commit)
        if again is None:
            if asked.replayed:
                raise UnfixError(f"the log holds no proof on {commit}")
            _check_out(asked, repository, commit)
            again = run_here(asked, commit, known)
            again.why = "proof"
        hunt.keep(again, fresh=commit not in proofs)
        if again.answer is not searched[commit].answer:
            how = f"{searched[commit].how}, then {again.how}"
            step.cannot_tell = f"on {commit} it came out in two ways ({how})"
            return


def _check_out(asked: Asked, repository: Repository, commit: str) -> None:
    """A commit as it is, without what a run on another one left.

    Least of all its cached bytecode, which is told from another commit's by size and second alone.
    """
    worktree = Path(asked.worktree)
    repository.git("checkout", "--quiet", "--force", commit, folder=worktree)
    repository.git("clean", "-ffdxq", folder=worktree)


def _run(command: list[str], log: Path, asked: Asked, hunt: Hunt, logged: set[str]) -> int:
    """git, with each commit's outcome taken in as it comes."""
    told = {trial.where for trial in hunt.search.trials}
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_without_git(),
            start_new_session=True,  # a Ctrl-C is ours to handle
        )
    try:
        over = False
        while not over:
            over = process.poll() is not None
            for file in sorted(Path(asked.folder).glob("*.json"), key=lambda f: f.stat().st_mtime):
                if file.stem not in told:
                    told.add(file.stem)
                    trial = msgspec.json.decode(file.read_bytes(), type=Trial)
                    hunt.keep(trial, fresh=file.stem not in logged)
            time.sleep(0 if over else LOOK)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _describe(step: Step, repository: Repository, asked: Asked, known: Catalogue) -> None:
    """Whose commit it is, and which toggles and modules differ across it."""
    step.about = repository.git("show", "--no-patch", "--format=%h %an, %as: %s", step.after)
    step.modules = [
        line.rpartition("python/")[2].removesuffix(".py").replace("/", ".")
        for line in repository.git("diff", "--name-only", step.before, step.after).splitlines()
    ]
    states = []
    for commit in (step.before, step.after):
        repository.git("checkout", "--quiet", "--force", commit, folder=Path(asked.worktree))
        tree = open_tree(Path(asked.worktree))
        states.append({toggle.id: find(toggle, tree).state for toggle in known})
    step.changed = [
        f"{name}: {states[0][name].value} → {states[1][name].value}"
        for name in states[0]
        if states[0][name] is not states[1][name]
    ]


def summary(step: Step) -> tuple[str, str]:
    """The verdict of a search over commits, in a sentence or two."""
    if step.cannot_tell:
        return "cannot tell", f"It cannot be told: {step.cannot_tell}."
    text = f"The outcome changes with {step.about}"
    if step.between:
        text += f", or with one of {len(step.between)} before it that cannot be told"
    why = f"in it, {'; '.join(step.changed)}" if step.changed else "no toggle changes in it"
    return ("cannot tell" if step.between else "found"), f"{text}; {why}."


def exit_code(trial: Trial, fails_is_new: bool) -> int:
    """As `git bisect run` reads it: 0 is the old kind, 1 the new one."""
    if trial.answer is Answer.CANNOT_TELL:
        return SKIP
    return int((trial.answer is Answer.FAILS) == fails_is_new)


def main(specification: str) -> int:
    try:
        return _main(specification)
    except Exception:
        # Any other code would be an answer to git; this one ends its search.
        traceback.print_exc()
        return ABORT


def _main(specification: str) -> int:
    asked = msgspec.json.decode(Path(specification).read_bytes(), type=Asked)
    known = catalogue.load(map(Path, asked.toggles))
    repository = Repository(Path(asked.worktree))
    commit = repository.git("rev-parse", "HEAD")
    try:
        trial = at_commit(asked, repository, known, commit)
    except UnfixError as error:  # a toggle that is stale in this commit, sources that are not there
        trial = Trial(commit[:SHORT], [], "search", Answer.CANNOT_TELL, str(error))
        _keep(kept(asked, commit), trial)
    return exit_code(trial, asked.fails_is_new)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
