"""Releases without a lock of ours: a version of the index, a wheel, a checkout or a commit of one.

Here pip is a function, as in `test_releases.py`; a real checkout is added, proven and reviewed in
`test_real_checkout.py`, every night.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from checkouts import SglangCheckout
from fake_releases import FakePip, read_refusal
from fixture_types import Output
from packaging.utils import canonicalize_name

from harness.cli import guard_runs
from harness.cli.audit import execution as audit_execution
from harness.cli.eval import execution as eval_execution
from harness.cli.main import build_parser, main
from harness.releases import (
    added_releases,
    installer,
    lock_solver,
    managed_releases,
    pins,
    source_trees,
)
from harness.releases.managed_releases import Release
from harness.releases.source_trees import FolderSourceTree
from harness.runs.eval import evaluation_request
from harness.runs.matrix import plan_builder, release_setup

UNLOCKED = "0.5.22"
PINS = ["transformers==5.19.0", "tokenizers==0.23.2", "xgrammar==0.2.7", "timm==1.0.25"]
PINS_OF_NEWEST = [*PINS, "openai==2.8.0", "torch==2.13.0", "flashinfer_python==9.9"]
PROJECT = "[project]\nname = 'sglang'\ndynamic = ['version']\ndependencies = {}\n"


@pytest.fixture
def checkout(tmp_path: Path, pip: FakePip) -> SglangCheckout:
    """A checkout with one commit after the tag v0.5.23, and the pins of 0.5.23."""
    repository = SglangCheckout(tmp_path / "sglang")
    (repository.folder / "python").mkdir()
    (repository.folder / "python" / "pyproject.toml").write_text(PROJECT.format(PINS_OF_NEWEST))
    repository.commit({"srt/__init__.py": "", "__init__.py": "", "srt/a.py": "VALUE = 1\n"})
    repository.git("tag", "v0.5.23")
    repository.commit({"srt/a.py": "VALUE = 2\n"})
    return repository


def add_release(word: str | Path, capsys: Output) -> tuple[Release, str]:
    capsys.readouterr()
    assert main(["releases", "add", str(word), "--json"]) == 0
    output = capsys.readouterr()
    return managed_releases.get_release(json.loads(output.out)[0]["release"]), output.err


def read_source(release: Release) -> str | None:
    return release.open_sources().read_text("sglang/srt/a.py")


def test_a_version_without_a_lock_is_installed_from_the_index(pip: FakePip, capsys: Output) -> None:
    pip.requirements[UNLOCKED] = PINS_OF_NEWEST
    release, log = add_release(UNLOCKED, capsys)
    assert (release.name, release.is_ready) == (UNLOCKED, True)
    assert f"the lock of SGLang 0.5.23 fits {UNLOCKED}" in log
    assert pip.resolutions == []
    assert pins.read_lock(release.lock_file)["transformers"] == "5.19.0"
    calls = len(pip.calls)
    assert main(["exec", "--release", UNLOCKED, "--", "true"]) == 0
    assert len(pip.calls) == calls


def test_an_added_release_is_listed_and_all_leaves_it_out(pip: FakePip, capsys: Output) -> None:
    pip.requirements[UNLOCKED] = PINS_OF_NEWEST
    add_release(UNLOCKED, capsys)
    assert main(["releases", "list", "--json"]) == 0
    rows = {row["release"]: row for row in json.loads(capsys.readouterr().out)["managed"]}
    assert list(rows)[-2:] == [UNLOCKED, "0.5.23"]
    assert rows[UNLOCKED]["added from"] == "the package index"
    assert "added from" not in rows["0.5.23"]
    assert UNLOCKED not in [release.name for release in managed_releases.list_releases()]


def test_a_pin_that_no_lock_has_is_solved_with_what_it_requires(
    pip: FakePip, capsys: Output
) -> None:
    pip.requirements[UNLOCKED] = ["transformers==5.20.0", *PINS[2:], "openai==2.6.1", "newly>=1"]
    pip.index = {
        "transformers": {"5.20.0": ["tokenizers<0.25,>=0.24", "numpy>=1", "unused; extra == 'x'"]},
        "tokenizers": {"0.23.2": [], "0.24.0": [], "0.24.1": [], "0.25.0": []},
        "newly": {"1.5": ["newer"], "0.9": []},
        "newer": {"2": []},
    }
    release, log = add_release(UNLOCKED, capsys)
    lock = pins.read_lock(release.lock_file)
    assert (lock["transformers"], lock["tokenizers"]) == ("5.20.0", "0.24.1")
    assert (lock["newly"], lock["newer"], lock["xgrammar"]) == ("1.5", "2", "0.2.7")
    assert "openai" not in lock  # the base has this version
    assert "numpy" not in lock
    assert (
        f"no lock of ours fits SGLang {UNLOCKED}: solved from that of 0.5.23, with newer 2 (new), "
        "newly 1.5 (new), openai 2.6.1 (was 2.8.0), tokenizers 0.24.1 (was 0.23.2), "
        "transformers 5.20.0 (was 5.19.0)"
    ) in log
    assert release.is_ready


def test_a_pin_of_sglang_counts_for_more_than_a_dependency(pip: FakePip, capsys: Output) -> None:
    pip.requirements[UNLOCKED] = ["transformers==5.20.0", "tokenizers==0.23.2"]
    pip.index = {"transformers": {"5.20.0": ["tokenizers>=0.24"]}}
    release, _ = add_release(UNLOCKED, capsys)
    assert pins.read_lock(release.lock_file)["tokenizers"] == "0.23.2"


def test_pins_that_the_base_does_not_follow_are_reported(pip: FakePip, capsys: Output) -> None:
    pip.requirements[UNLOCKED] = [*PINS, "openai==2.8.0", "torch==2.99"]
    release, log = add_release(UNLOCKED, capsys)
    assert "the shared base differs from its pins: torch 2.13.0 for ==2.99" in log
    assert "torch" not in pins.read_lock(release.lock_file)


def test_a_clean_checkout_is_named_by_its_commit(checkout: SglangCheckout, capsys: Output) -> None:
    commit = checkout.git("rev-parse", "HEAD")
    release, log = add_release(checkout.folder, capsys)
    assert release.name == f"g{commit[:12]}"
    assert release.is_ready
    assert str(release.open_sources().version) == f"0.5.23.post1+g{commit[:12]}"
    assert read_source(release) == "VALUE = 2\n"
    assert "the lock of SGLang 0.5.23 fits" in log


def test_a_changed_checkout_is_dirty_and_packed_as_it_is(
    checkout: SglangCheckout, pip: FakePip, capsys: Output
) -> None:
    file = checkout.folder / "python" / "sglang" / "srt" / "a.py"
    (checkout.folder / "README").write_text("not packed")
    assert not add_release(checkout.folder, capsys)[0].name.endswith("+dirty")
    file.write_text("VALUE = 3\n")
    release, _ = add_release(checkout.folder, capsys)
    assert release.name == f"g{checkout.git('rev-parse', 'HEAD')[:12]}+dirty"
    assert read_source(release) == "VALUE = 3\n"
    calls = len(pip.calls)
    assert "packing" not in add_release(checkout.folder, capsys)[1]
    assert len(pip.calls) == calls
    lock = release.lock_file.read_text()
    file.write_text("VALUE = 5\n")
    assert read_source(add_release(checkout.folder, capsys)[0]) == "VALUE = 5\n"
    assert release.lock_file.read_text() != lock  # so an environment for CUDA is outdated as well
    file.write_text("VALUE = 4\n")
    (file.parent / "untracked.py").write_text("")
    release, log = add_release(checkout.folder, capsys)
    assert "with 2 changed files" in log
    assert str(release.open_sources().version) == f"0.5.23.post2+{release.name.replace('+', '.')}"
    assert read_source(release) == "VALUE = 4\n"
    assert "sglang.srt.untracked" in set(release.open_sources().modules())


def test_a_commit_is_one_release_whichever_checkout_has_it(
    checkout: SglangCheckout, tmp_path: Path, capsys: Output
) -> None:
    first, _ = add_release(checkout.folder, capsys)
    checkout.git("clone", "-q", str(checkout.folder), str(tmp_path / "clone"))
    second, log = add_release(tmp_path / "clone", capsys)
    assert (second.name, "packing" in log, "installing" in log) == (first.name, False, False)


def test_a_commit_or_branch_of_a_checkout_leaves_its_files_alone(
    checkout: SglangCheckout, capsys: Output
) -> None:
    checkout.git("branch", "before", "HEAD~1")
    (checkout.folder / "python" / "sglang" / "srt" / "a.py").write_text("VALUE = 3\n")
    release, _ = add_release(f"{checkout.folder}@before", capsys)
    assert release.name == f"g{checkout.git('rev-parse', 'before')[:12]}"
    assert read_source(release) == "VALUE = 1\n"
    assert checkout.git("status", "--porcelain") == "M python/sglang/srt/a.py"


def test_every_run_takes_a_checkout_by_its_path(checkout: SglangCheckout, capsys: Output) -> None:
    (target,) = guard_runs.prepare_targets([str(checkout.folder)])
    assert target.name == f"g{checkout.git('rev-parse', 'HEAD')[:12]}"
    assert target.python == managed_releases.get_release(target.name).python
    assert main(["exec", "--release", f"{checkout.folder}@HEAD~1", "--", "true"]) == 0
    words = [str(checkout.folder), target.name]
    code, message = read_refusal(["prove", "--release", ",".join(words), "27460"], capsys)
    assert (code, "twice" in message, words[0] in message) == (2, True, True)


def test_an_evaluation_takes_checkouts_by_their_paths(checkout: SglangCheckout) -> None:
    commit = checkout.git("rev-parse", "HEAD")
    earlier = checkout.git("rev-parse", "HEAD~1")
    words = ["eval", "--release", str(checkout.folder), "--against", f"{checkout.folder}@HEAD~1"]
    parsed = build_parser("eval").parse_args(words)
    parsed.words = []
    request = eval_execution.make_request(parsed)
    assert (request.release, request.against) == (f"g{commit[:12]}", f"g{earlier[:12]}")
    matrix = evaluation_request.make_matrix(request)
    assert matrix.release == request.release
    assert matrix.configurations[0].release == request.against


def test_a_checkout_in_this_folder_is_found_by_its_name(
    checkout: SglangCheckout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout.folder.parent)
    before = checkout.git("rev-parse", "HEAD~1")[:12]
    for word in (f"sglang@{before}", "sglang@HEAD~1"):
        assert added_releases.find_release(word, "cpu", print).name == f"g{before}"
    assert managed_releases.is_path("sglang")
    assert not managed_releases.is_path("0.5.23")
    assert not managed_releases.is_path("another@HEAD")


def test_audit_reads_a_checkout_in_this_folder_and_a_commit_of_it(
    checkout: SglangCheckout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout.folder.parent)
    value = {
        word: audit_execution.open_tree(word).read_text("sglang/srt/a.py")
        for word in ("sglang", "sglang@HEAD~1")
    }
    assert value == {"sglang": "VALUE = 2\n", "sglang@HEAD~1": "VALUE = 1\n"}


def test_current_is_the_release_though_a_checkout_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "current" / ".git").mkdir(parents=True)
    (tmp_path / "current" / "sglang" / "srt").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    installed = FolderSourceTree(tmp_path / "installed", "current")
    monkeypatch.setattr(source_trees, "find_installed_tree", lambda: installed)
    assert guard_runs.name_release("current") == "current"
    assert audit_execution.open_tree("current") is installed


def test_a_matrix_takes_checkouts_by_their_paths(checkout: SglangCheckout, tmp_path: Path) -> None:
    word = f"{checkout.folder}@HEAD~1"
    file = tmp_path / "matrix.yaml"
    axes = f"axes: {{release: ['{word}'], page: [1, 16]}}\n"
    run = "run: {proof: {command: 'unfix prove {page} --release {release}'}}\n"
    file.write_text(f"name: paths\n{axes}{run}")
    cell = plan_builder.plan_matrix(file).cells[0]
    needed = release_setup.find_needed_release(cell.values, cell.command)
    assert needed == word
    fails, does_nothing = ([sys.executable, "-c", f"raise SystemExit({code})"] for code in (1, 0))
    reason = release_setup.prepare_release(needed, "run", fails, tmp_path / "log")
    assert "is not ready: `unfix releases add" in reason
    added_releases.find_release(word, "cpu", print)
    release = managed_releases.get_release(f"g{checkout.git('rev-parse', 'HEAD~1')[:12]}")
    installer.install_release(release, print)
    assert release_setup.prepare_release(needed, "again", does_nothing, tmp_path / "log") == ""


def test_a_wheel_is_named_by_its_version(pip: FakePip, tmp_path: Path, capsys: Output) -> None:
    pip.requirements |= {"0.5.24": PINS, "0.5.23": PINS}
    for version in ("0.5.24", "0.5.23"):
        pip.download(tmp_path, version)
    release, _ = add_release(tmp_path / "sglang-0.5.24-py3-none-any.whl", capsys)
    assert (release.name, release.is_ready) == ("0.5.24", True)
    # A wheel of a version that we have a lock for may differ from that of the index.
    other, _ = add_release(tmp_path / "sglang-0.5.23-py3-none-any.whl", capsys)
    assert other.name.startswith("0.5.23+whl")
    assert other.is_ready
    assert managed_releases.get_newest_release().any_wheel is None


def test_a_removed_release_is_gone(checkout: SglangCheckout, capsys: Output) -> None:
    release, _ = add_release(checkout.folder, capsys)
    assert main(["releases", "remove", release.name]) == 0
    assert not release.folder.exists()
    assert not release.added_folder.exists()
    code, message = read_refusal(["exec", "--release", release.name, "--", "true"], capsys)
    assert (code, "`unfix releases add PATH`" in message) == (2, True)


def test_without_a_tag_the_nearest_pins_give_the_version(
    checkout: SglangCheckout, capsys: Output
) -> None:
    checkout.git("tag", "-d", "v0.5.23")
    release, log = add_release(checkout.folder, capsys)
    assert str(release.open_sources().version).startswith("0.5.23.post1+g")
    assert "has no version tag: taken for 0.5.23" in log
    assert "git fetch --tags" in log


@pytest.mark.parametrize(
    ("word", "hint"),
    {
        "0.5.8": "from 0.5.9 on",
        "newest": "a checkout of SGLang (~/sglang)",
        "{tmp}/nowhere": "there is no checkout",
        "{tmp}/a.whl": "there is no wheel",
        "{tmp}/plain": "is no git repository, and a checkout is named by its commit",
        "{tmp}/sglang@nothing": "has no commit 'nothing'",
    }.items(),
)
def test_a_word_that_is_no_release_is_refused_with_a_hint(
    checkout: SglangCheckout, tmp_path: Path, word: str, hint: str, capsys: Output
) -> None:
    (tmp_path / "plain").mkdir()
    code, message = read_refusal(["releases", "add", word.format(tmp=tmp_path)], capsys)
    assert code == 2
    assert hint in message


def test_a_checkout_without_pins_says_where_they_are_looked_for(
    checkout: SglangCheckout, capsys: Output
) -> None:
    (checkout.folder / "python" / "pyproject.toml").unlink()
    assert main(["releases", "add", str(checkout.folder)]) == 2
    assert "python/pyproject.toml" in capsys.readouterr().err


def test_each_lock_of_ours_is_the_nearest_to_its_own_wheel() -> None:
    """The wheels on this machine: every pin is in their lock, in the base or left out."""
    releases = [one for one in managed_releases.list_releases() if one.any_wheel]
    if not releases:
        pytest.skip("no wheel is here")
    base = pins.read_lock(managed_releases.CPU_BASE.lock_file)
    for release in releases:
        assert release.any_wheel is not None
        packages = base | pins.read_lock(release.lock_file)
        required = pins.read_wheel_requirements(release.any_wheel)
        unmet = [
            str(one)
            for one in required
            if canonicalize_name(one.name) not in lock_solver.read_left_out()
            and not one.specifier.contains(
                packages.get(canonicalize_name(one.name), "0"), prereleases=True
            )
        ]
        names = {unmet_one.partition("=")[0] for unmet_one in unmet}
        assert names <= set(lock_solver.BASE_ONLY), release.name
