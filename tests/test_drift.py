"""Drift over the real releases: every state equals a person's reading, every toggle flips both
ways.

The sources of all managed releases must be here; where one is missing these tests fail and say
which command installs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import forked
import pytest
import yaml
from calling import run_program
from fixture_types import Output

from harness.cli.main import main
from harness.core.cpp_scopes import CppSource
from harness.core.cpp_tokens import is_cpp_path, tokenize_text
from harness.core.errors import NotReadyError, UnfixError
from harness.core.source_scopes import ModuleSource
from harness.fixes.matching.toggle_status import EditSite, ToggleStatus, find_toggle_status
from harness.fixes.matching.toggle_status import ToggleState as State
from harness.fixes.patch_plan import FLIP_DIRECTIONS, ToggleChoice, make_plan
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.schema import Toggle
from harness.patching.live_functions import make_behaviour_key
from harness.releases import managed_releases
from harness.releases.source_trees import SourceTree, open_tree
from harness.runs.audit.release_files import iterate_sources

HISTORY: dict[str, dict[str, Any]]
HISTORY = yaml.safe_load((Path(__file__).parent / "history.yaml").read_text(encoding="utf-8"))
RELEASES = [release.name for release in managed_releases.list_releases()]
TOGGLES = list(toggle_catalogue.load_catalogue())
NEWEST = RELEASES[-1]
OTHER = {State.FIXED: State.BUGGY, State.BUGGY: State.FIXED}


@cache
def open_trees() -> dict[str, SourceTree]:
    return {release.name: release.open_sources() for release in managed_releases.list_releases()}


RUN_DRIFT = """
import json, sys, time
from harness.cli.main import main
from harness.core.cache import DiskCache
DiskCache.get = lambda *_: None  # as on the first day
code = main(["drift", "--json"])
seconds = time.process_time()
loaded = sorted(n for n in sys.modules if n.split(".")[0] in ("sglang", "torch", "triton"))
print(json.dumps([code, seconds, loaded]), file=sys.stderr)
"""


@cache
def run_survey() -> subprocess.CompletedProcess[str]:
    """Survey every toggle on every release, in a process of its own."""
    # The toy package is on the path, so that an import of sglang would succeed and show.
    tests = Path(__file__).parent
    found_by = os.pathsep.join([str(tests / "toy"), str(tests.parent)])
    environment = {**os.environ, "PYTHONPATH": found_by}
    return run_program([sys.executable, "-c", RUN_DRIFT], env=environment, check=True)


@cache
def survey_trees() -> dict[str, dict[str, Any]]:
    """Return what that survey shows of each release."""
    return {one["release"]: one for one in json.loads(run_survey().stdout)["releases"]}


class PatchedTree:
    """A release with some of its modules replaced."""

    def __init__(self, tree: SourceTree, modules: dict[str, str]) -> None:
        self.tree = tree
        self.version = tree.version
        self.changed = {}
        for name, text in modules.items():
            kind = CppSource if is_cpp_path(name) else ModuleSource
            self.changed[name] = kind(name, "patched", text)

    def read(self, module: str) -> ModuleSource | None:
        return self.changed.get(module) or self.tree.read(module)

    def modules(self) -> Iterator[str]:
        return self.tree.modules()

    def cpp_sources(self) -> Iterator[str]:
        return self.tree.cpp_sources()


@cache
def parse_meaning(text: str) -> object:
    """Return what layout and comments do not change: the bytecode, or the tokens of C++."""
    try:
        return make_behaviour_key(compile(text, "", "exec", dont_inherit=True))
    except SyntaxError:  # C++
        return [token.text for token in tokenize_text(text)]


def test_the_eleven_releases_are_read_as_their_versions() -> None:
    eleven = "0.5.9 0.5.10 0.5.11 0.5.12 0.5.13 0.5.14 0.5.15 0.5.16 0.5.18 0.5.20 0.5.23"
    assert eleven.split() == RELEASES
    assert [str(tree.version) for tree in open_trees().values()] == RELEASES


def test_the_history_has_one_state_of_each_toggle_on_each_release() -> None:
    assert set(HISTORY) == {toggle.id for toggle in TOGGLES}
    for name, entry in HISTORY.items():
        assert set(entry) == {"merged", "fixed", "buggy", "absent", "note"}, name
        states = [*entry["fixed"], *entry["buggy"], *entry["absent"]]
        assert sorted(states) == sorted(RELEASES), name


@pytest.mark.parametrize("release", RELEASES)
def test_every_state_is_as_a_person_read_it(release: str) -> None:
    found = survey_trees()[release]["toggles"]
    stale = [one for one in found if one["state"] == "stale"]
    assert [f"{one['id']}: {one['problem']}\n{one['nearest']}" for one in stale] == []
    states = ("fixed", "buggy", "absent")
    read = {name: next(s for s in states if release in entry[s]) for name, entry in HISTORY.items()}
    assert {one["id"]: one["state"] for one in found} == read


def read_target(site: EditSite) -> tuple[str, ...]:
    """Return the lines of each definition of an edit's target."""
    lines = site.source.text.split("\n")
    spans = map(site.source.get_lines, site.source.find_scopes(site.target.qualname))
    return tuple("\n".join(lines[first : last + 1]) for first, last in spans)


@cache
def list_flips() -> dict[str, list[ToggleStatus]]:
    """List the toggles to flip on each release, without those whose targets are no others.

    A plan edits the texts of its targets alone, and copies the rest of their modules.
    """
    flips: dict[str, list[ToggleStatus]] = {}
    known = set[tuple[object, ...]]()
    for release in RELEASES:
        found = {
            (one.toggle.id, repr(one.variant), *map(read_target, one.sites)): one
            for toggle in TOGGLES
            if (one := find_toggle_status(toggle, open_trees()[release])).state in FLIP_DIRECTIONS
        }
        flips[release] = [one for key, one in found.items() if key not in known]
        known |= set(found)
    return flips


@pytest.mark.parametrize("release", RELEASES)
def test_every_toggle_flips_to_its_other_state_and_back(release: str) -> None:
    tree = open_trees()[release]
    assert list_flips()[release]
    for finding in list_flips()[release]:
        toggle, state = finding.toggle, finding.state
        forward_plan = make_plan([ToggleChoice(toggle, FLIP_DIRECTIONS[state])], tree, release)
        changed = PatchedTree(tree, {module.module: module.text for module in forward_plan.modules})
        assert find_toggle_status(toggle, changed).state is OTHER[state], toggle.id
        back = make_plan([ToggleChoice(toggle, FLIP_DIRECTIONS[OTHER[state]])], changed, release)
        assert {m.module for m in back.modules} == {m.module for m in forward_plan.modules}
        for module in back.modules:
            original = tree.read(module.module)
            assert original is not None
            assert changed.changed[module.module].text != original.text
            if module.text != original.text:
                meanings = parse_meaning(module.text), parse_meaning(original.text)
                assert meanings[0] == meanings[1], (toggle.id, module.module)


@pytest.mark.parametrize("release", RELEASES)
def test_upstreams_own_reverts_are_as_they_were_seen_to_be(release: str) -> None:
    upstream = survey_trees()[release]["upstream"]
    if RELEASES.index(release) < RELEASES.index("0.5.13"):
        assert upstream == []
        return
    broken = {"27338", "27460"} | ({"26972"} if release == "0.5.16" else set())
    assert {one["id"]: one["state"] for one in upstream} == {
        number: "broken" if number in broken else "applies"
        for number in ("25015", "26329", "26972", "27338", "27360", "27460")
    }
    assert {one["id"] for one in upstream if one["problem"]} == broken


def test_the_whole_drift_is_quick_and_imports_nothing_of_a_release() -> None:
    code, seconds, loaded = json.loads(run_survey().stderr)
    assert (code, loaded) == (0, [])
    assert len(survey_trees()) == len(RELEASES)
    assert seconds < 20  # seconds of one processor, including its own start


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "sglang-0.5.99-py3-none-any.whl"
    noise = "".join(f"name_{number} = {number * number}\n" for number in range(5000))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sglang/srt/big.py", noise)
        archive.writestr("sglang-0.5.99.dist-info/METADATA", "Name: sglang\nVersion: 0.5.99\n")
    return path


def test_a_whole_wheel_is_read_where_it_lies(wheel: Path) -> None:
    tree = open_tree(wheel)
    assert (tree.name, str(tree.version)) == ("0.5.99", "0.5.99")
    assert list(tree.modules()) == ["sglang.srt.big"]
    assert tree.read("sglang.srt.big") is not None
    assert tree.read("sglang.srt.none") is None


def test_a_wheel_that_was_cut_short_is_not_ready(wheel: Path, capsys: Output) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-100])
    with pytest.raises(NotReadyError, match=r"is not a whole wheel .* download it again"):
        open_tree(wheel)
    assert main(["drift", "--from", str(wheel)]) == 3
    assert "download it again" in capsys.readouterr().err
    with pytest.raises(UnfixError, match=r"there is no file .*some\.whl"):
        open_tree(wheel.with_name("some.whl"))


def test_a_folder_without_modules_is_a_wrong_call(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    assert main(["drift", "--from", str(tmp_path)]) == 2
    assert "contains no module" in capsys.readouterr().err


def test_a_pipe_in_a_checkout_is_no_file(tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    (package / "srt").mkdir(parents=True)
    (package / "__init__.py").write_text("import triton\n")
    for name in ("version.py", "a.py", "srt/b.py"):
        os.mkfifo(package / name)
    tree = open_tree(tmp_path)
    assert [tree.read_text(name) for name in sorted(tree.iterate_files())] == [
        "import triton\n",
        None,
        None,
        None,
    ]
    assert [name for name, _ in iterate_sources(tmp_path)] == ["sglang/__init__.py"]


@pytest.mark.parametrize("at", [60, 200, 5000])
def test_a_wheel_with_a_damaged_member_is_not_ready(wheel: Path, at: int) -> None:
    data = bytearray(wheel.read_bytes())
    data[at : at + 20] = bytes(20)
    wheel.write_bytes(bytes(data))
    with pytest.raises(NotReadyError, match=r"is damaged .* download it again"):
        open_tree(wheel).read("sglang.srt.big")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the newest release, as far as the toggles read it."""
    tree = open_trees()[NEWEST]
    (tmp_path / f"sglang-{NEWEST}.dist-info").mkdir()
    (tmp_path / f"sglang-{NEWEST}.dist-info" / "METADATA").write_text(f"Version: {NEWEST}\n")
    for target in {t for toggle in TOGGLES for v in toggle.variants for t in v.targets}:
        source = tree.read(target.module)
        if source is not None:
            path = tmp_path / source.relative_path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source.text, encoding="utf-8")
    return tmp_path


def run_drift(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.call_unfix("drift", *words, "--from", str(folder))


def sources_of(toggle: Toggle, folder: Path) -> Path:
    (variant,) = [v for v in toggle.variants if v.specifier.contains(NEWEST)]
    return folder / (variant.targets[0].module.replace(".", "/") + ".py")


def test_a_renamed_target_is_stale_and_its_new_name_is_shown(copy: Path) -> None:
    untouched = run_drift(copy)
    assert (untouched.returncode, untouched.stderr) == (0, "")
    assert " 0 stale" in untouched.stdout
    (toggle,) = [toggle for toggle in TOGGLES if toggle.id == "27460"]
    path = sources_of(toggle, copy)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("def init_cuda_graph_state(", "def init_graph_state("))
    tampered = run_drift(copy)
    assert tampered.returncode == 1
    name = "FlashInferMLAMultiStepDraftBackend"
    module = "sglang.srt.layers.attention.flashinfer_mla_backend"
    stale = f"STALE 27460 on {copy.name}: {module} defines no {name}.init_cuda_graph_state"
    assert stale in tampered.stdout
    assert f"near it: {module}:{name}.init_graph_state" in tampered.stdout


def test_a_changed_expression_is_stale_and_shown_as_a_diff(copy: Path) -> None:
    (toggle,) = [toggle for toggle in TOGGLES if toggle.id == "req-to-token-row-check"]
    path = sources_of(toggle, copy)
    text = path.read_text(encoding="utf-8")
    assert text.count("assert max_alloc_len <= row_width") == 1
    path.write_text(text.replace("max_alloc_len <= row_width", "max_alloc_len < row_width"))
    tampered = run_drift(copy)
    assert tampered.returncode == 1
    assert "-assert max_alloc_len <= row_width, $MESSAGE" in tampered.stdout
    assert "+assert max_alloc_len < row_width" in tampered.stdout
    (release,) = json.loads(run_drift(copy, "--json").stdout)["releases"]
    stale = [found for found in release["toggles"] if found["state"] == "stale"]
    assert [found["id"] for found in stale] == ["req-to-token-row-check"]
    assert "+assert max_alloc_len < row_width" in stale[0]["nearest"]


def test_a_checkout_is_shown_with_no_proofs_of_releases(copy: Path, capsys: Output) -> None:
    """What was proven on releases says nothing about a tree that none of them is."""
    main(["drift", "27460", "--from", str(copy)])
    shown = capsys.readouterr().out
    assert "proven on" not in shown
    assert f"no proof is recorded on {copy.name}" in shown
    assert "fixed does not cover the functions that it calls" in shown


def test_a_release_is_shown_with_the_proofs_on_it_alone(capsys: Output) -> None:
    main(["drift", "27460", "--release", "0.5.18"])
    shown = capsys.readouterr().out
    assert "proven on CPU 0.5.18 (" in shown
    assert "no proof is recorded" not in shown
