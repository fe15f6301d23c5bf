"""The change of an outcome in a history: simulated outcomes, and commits of real git."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from bisecting import Bisect, Log
from calling import TOY, copy_toy_release
from checkouts import SglangCheckout

from harness.core.errors import UnfixError
from harness.core.outcomes import Verdict
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.releases.source_trees import FolderSourceTree
from harness.runs.bisect.release_bisection import (
    ReleaseBisection,
    ReleaseSeries,
    summarize_release_search,
)
from harness.runs.bisect.search_driver import SearchDriver
from harness.runs.bisect.trial_runner import ToggleChoices, TrialJob, VersionUnderTest
from harness.store.bisect.values import BisectSearch, BisectStep, BisectTrial

NAMES = [f"1.{i}" for i in range(12)]


class MadeUp:
    """Returns fixed answers by release."""

    jobs = 1

    def __init__(self, answers: dict[str, Verdict], is_deterministic: bool = True) -> None:
        self.answers = answers
        self.is_deterministic = is_deterministic
        self.asked: list[str] = []

    def find_unfit_toggles(self, _: VersionUnderTest, __: ToggleChoices) -> dict[str, str]:
        return {}

    def run(self, batch: list[TrialJob]) -> Iterator[tuple[int, BisectTrial]]:
        for index, job in enumerate(batch):
            self.asked.append(job.version.name)
            answer = self.answers[job.version.name]
            name, why = job.version.name, job.why
            yield index, BisectTrial(name, list(job.toggles), why, answer, answer.value)

    def close(self) -> None: ...


Step = tuple[BisectStep, MadeUp, BisectSearch]


def make_step(answers: dict[str, Verdict], good: str, bad: str) -> Step:
    runner = MadeUp(answers)
    search = BisectSearch("s", "releases", "", ["x"])
    hunt = SearchDriver(search, runner)
    make = lambda name: VersionUnderTest(name, FolderSourceTree(TOY, name), Path(), Path())  # noqa: E731
    history = ReleaseSeries(NAMES, make)
    known = ToggleCatalogue([])
    return ReleaseBisection(hunt, history, [], known, {}).run(good, bad), runner, search


def make_outcomes(changes_at: int, first: Verdict = Verdict.PASSES) -> dict[str, Verdict]:
    other = Verdict.FAILS if first is Verdict.PASSES else Verdict.PASSES
    return {name: first if i < changes_at else other for i, name in enumerate(NAMES)}


@pytest.mark.parametrize("at", range(1, 12))
def test_the_step_is_found_either_way_round(at: int) -> None:
    for first, ends in ((Verdict.PASSES, ("1.0", "1.11")), (Verdict.FAILS, ("1.11", "1.0"))):
        found, runner, _ = make_step(make_outcomes(at, first), *ends)
        assert (found.before, found.after) == (NAMES[at - 1], NAMES[at])
        assert found.undecided == []
        assert len(runner.asked) <= 2 + 4


@pytest.mark.parametrize("untold", [{5}, {4, 5, 6}, {1, 2, 3, 4, 5, 6, 7}, set(range(1, 11))])
def test_releases_that_cannot_be_told_are_gone_around(untold: set[int]) -> None:
    answers = make_outcomes(6)
    for i in untold:
        answers[NAMES[i]] = Verdict.CANNOT_TELL
    found, _, search = make_step(answers, "1.0", "1.11")
    tested = [i for i in range(12) if i not in untold]
    before = max(i for i in tested if i < 6)
    after = min(i for i in tested if i >= 6)
    assert (found.before, found.after) == (NAMES[before], NAMES[after])
    assert found.undecided == NAMES[before + 1 : after]
    verdict, text = summarize_release_search(found, search.toggle_searches)
    assert all(name in text for name in found.undecided)
    assert verdict == ("cannot tell" if found.undecided else "found")


def test_ends_that_do_not_differ_as_said_are_told() -> None:
    with pytest.raises(UnfixError, match="wrong way round"):
        make_step(make_outcomes(6), "1.11", "1.0")
    with pytest.raises(UnfixError, match="nothing changes between them: it passes"):
        make_step(dict.fromkeys(NAMES, Verdict.PASSES), "1.0", "1.11")
    with pytest.raises(UnfixError, match="nothing changes between them: it fails"):
        make_step(dict.fromkeys(NAMES, Verdict.FAILS), "1.0", "1.11")
    with pytest.raises(UnfixError, match=r"--bad 1\.11: cannot tell"):
        make_step({**make_outcomes(6), "1.11": Verdict.CANNOT_TELL}, "1.0", "1.11")


def test_a_step_without_toggles_says_that_none_explains_it() -> None:
    found, _, search = make_step(make_outcomes(6), "1.0", "1.11")
    verdict, text = summarize_release_search(found, search.toggle_searches)
    assert verdict == "found"
    assert "between 1.5 and 1.6" in text
    assert "No toggle explains it" in text


CHECK = """
import sys
from sglang import forms
if not hasattr(forms, 'plain'): sys.exit(125)
sys.exit(3 if forms.Forms().width != 8 or forms.Forms.static(5) != 4 else 0)
"""


UNTESTABLE_IF_ANY_FILE_IS_LEFT = """
import pathlib, sys
here = pathlib.Path.cwd()
if list(here.rglob('__pycache__')) or (here / 'left').exists(): sys.exit(125)
(here / 'left').touch()
"""


class Repository(SglangCheckout):
    """A checkout of the toy release, with a history."""

    def __init__(self, folder: Path, origin: Repository | None = None) -> None:
        if origin is None:
            copy_toy_release(folder / "python" / "sglang")
        else:
            shutil.copytree(origin.folder, folder)
        super().__init__(folder)
        self.forms = folder / "python" / "sglang" / "forms.py"
        self.commits: list[str] = [] if origin is None else [*origin.commits]

    def add_commit(self, what: str, *replaced: tuple[str, str]) -> str:
        text = self.forms.read_text()
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        (self.folder / "NOTES").write_text(what)
        self.commits.append(self.commit({"forms.py": text, "srt/__init__.py": ""}, what))
        return self.commits[-1]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repo")


@pytest.fixture(scope="module")
def written_history(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """A history whose seventh commit adds a bug, after another in the third."""
    repository = Repository(tmp_path_factory.mktemp("history") / "repo")
    for i in range(10):
        edits: list[tuple[str, str]] = []
        if i == 2:
            edits = [("return value - 1\n", "return value - 100\n")]
        if i == 6:
            edits = [("width = 8", "width = 80")]
        repository.add_commit(f"commit {i}", *edits)
    return repository


@pytest.fixture
def history(written_history: Repository, tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repo", written_history)


def list_commits(bisect: Bisect, tree: Repository, good: str, bad: str, *options: str) -> list[str]:
    script = bisect.root / "check.py"
    script.write_text(CHECK)
    where = ("--repo", str(tree.folder), "--release", "current", "--good", good, "--bad", bad)
    return [*where, *options, "--", "python", str(script)]


@dataclass(frozen=True)
class RecordedBisect:
    bisect: Bisect
    history: Repository
    found: Log
    record: Path


@pytest.fixture(scope="module")
def recorded_search(
    written_history: Repository, tmp_path_factory: pytest.TempPathFactory
) -> RecordedBisect:
    """A search between the first and the last commit."""
    bisect = Bisect(tmp_path_factory.mktemp("search"))
    history = Repository(bisect.root / "repo", written_history)
    record = bisect.root / "record.json"
    words = list_commits(bisect, history, history.commits[0], "HEAD", "--record", str(record))
    (bisect.root / "check.py").write_text(UNTESTABLE_IF_ANY_FILE_IS_LEFT + CHECK)
    return RecordedBisect(bisect, history, bisect.search(*words, kind="commits"), record)


def test_the_commit_is_found(recorded_search: RecordedBisect) -> None:
    found, history = recorded_search.found, recorded_search.history
    assert found["verdict"] == "found", found["summary"]
    assert history.commits[2].startswith(found["step"]["after"])
    assert "commit 2" in found["step"]["about"]
    assert found["step"]["changed"] == ["toy-static: fixed → buggy"]


def test_a_search_leaves_the_checkout_untouched(
    recorded_search: RecordedBisect, written_history: Repository
) -> None:
    history = recorded_search.history
    status = ("status", "--branch", "--porcelain")
    assert history.git(*status) == written_history.git(*status)
    assert history.git("worktree", "list").count("\n") == 0
    assert not history.git("for-each-ref", "refs/bisect")


def test_the_commit_that_mends_it(bisect: Bisect, history: Repository) -> None:
    edits = (("return value - 100\n", "return value - 1\n"), ("width = 80", "width = 8"))
    mended = history.add_commit("mended", *edits)
    history.add_commit("later")
    words = list_commits(bisect, history, "HEAD", history.commits[4])
    found = bisect.search(*words, kind="commits")
    assert mended.startswith(found["step"]["after"])


def test_commits_that_cannot_be_told_are_named(bisect: Bisect, history: Repository) -> None:
    broken = Repository(bisect.root / "other")
    broken.add_commit("fine")
    broken.add_commit("cannot be told", ("def plain(", "def planned("))
    broken.add_commit("nor this")
    broken.add_commit("bad", ("def planned(", "def plain("), ("width = 8", "width = 80"))
    words = list_commits(bisect, broken, broken.commits[0], "HEAD")
    found = bisect.search(*words, kind="commits")
    assert found["verdict"] == "cannot tell"
    assert broken.commits[3].startswith(found["step"]["after"])
    assert [len(found["step"]["undecided"])] == [2]


@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        ("HEAD", "HEAD~9", "the wrong way round"),
        ("HEAD~9", "HEAD~8", "nothing changes between them"),
        ("HEAD~3", "nosuch", "has no commit 'nosuch'"),
        ("HEAD", "HEAD", "neither of the two"),
    ],
)
def test_wrong_ends_are_refused(
    bisect: Bisect, history: Repository, good: str, bad: str, says: str
) -> None:
    done = bisect.run(*list_commits(bisect, history, good, bad), kind="commits")
    assert done.returncode == 2
    assert says in done.stderr
    assert history.git("worktree", "list").count("\n") == 0


def test_a_commit_that_failed_once_is_no_finding(bisect: Bisect, repository: Repository) -> None:
    for i in range(8):
        repository.add_commit(f"commit {i}")
    count = bisect.root / "count"
    script = bisect.root / "twice.py"
    script.write_text(
        f"import sys\nfrom sglang import forms\nopen({str(count)!r}, 'a').write('x')\n"
        f"sys.exit(len(open({str(count)!r}).read()) in (2, 3))\n"
    )
    words = [*list_commits(bisect, repository, repository.commits[0], "HEAD")[:-1], str(script)]
    found = bisect.search(*words, kind="commits")
    assert found["verdict"] == "cannot tell"
    assert "in two ways" in found["summary"]


def test_what_a_run_leaves_is_gone_before_the_next(recorded_search: RecordedBisect) -> None:
    """Above all cached bytecode, which is matched to its source by size and second only."""
    trials = recorded_search.found["trials"]
    assert {trial["answer"] for trial in trials} == {"passes", "fails"}


def test_an_accident_of_our_own_is_no_answer(bisect: Bisect, history: Repository) -> None:
    """Neither the failure nor the untestable commit before it hides the culprit."""
    words = list_commits(bisect, history, history.commits[0], "HEAD")
    count = bisect.root / "count"
    script = bisect.root / "check.py"
    script.write_text(
        f"import pathlib\nroot = pathlib.Path({str(bisect.root)!r})\n"
        "with open(root / 'count', 'a') as file: file.write('x')\n"
        "if (root / 'count').stat().st_size == 3:\n"
        "    for asked in root.glob('.unfix/searches/*/asked.spec'): asked.write_text('nothing')\n"
        "    raise SystemExit(125)\n"
        f"{CHECK}"
    )
    done = bisect.run(*words, kind="commits")
    assert count.stat().st_size == 3
    assert done.returncode == 2
    assert "git bisect run" in done.stderr
    assert "found" not in done.stdout


def test_a_known_fix_is_held_and_a_commit_that_cannot_be_read_is_no_answer(
    bisect: Bisect, history: Repository
) -> None:
    text = history.forms.read_bytes()
    history.forms.write_bytes(text + b"# \xff\n")
    history.git("commit", "-q", "-am", "not UTF-8")
    history.forms.write_bytes(text)
    last = history.add_commit("and back")
    words = list_commits(bisect, history, history.commits[0], last, "--hold-applied", "toy-static")
    found = bisect.search(*words, kind="commits")
    assert history.commits[6].startswith(found["step"]["after"]), found["summary"]
    assert "toy-class-body: fixed → buggy" in found["step"]["changed"]
    toggles = {tuple(trial["toggles"]) for trial in found["trials"]}
    assert toggles == {(), ("toy-static",)}  # only if it is not applied already
