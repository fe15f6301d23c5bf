"""Toggle files: a bad one is refused with its file, its line and the error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.core import paths
from harness.core.errors import UnfixError, UnknownToggleError
from harness.core.located_yaml import YamlFileError
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.schema import CodeTarget, DeviceKind, Symptom
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.fixes.registry.toggle_reader import read_toggle

GOOD = """\
id: some-fix
title: Something is off by one
family: things
symptom: crash
devices: [cpu]
variants:
  - releases: ">=0.5.9,<0.5.13"
    target: some.module:Class.method
    edits:
      - fixed: 'a + $B'
        buggy: 'a - $B'
"""
SECOND_VARIANT = """\
  - releases: "{}"
    target: some.module
    edits:
      - fixed: one
        buggy: two
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some-fix.yaml"


def read_refused(file: Path) -> YamlFileError:
    with pytest.raises(YamlFileError) as caught:
        read_toggle(file)
    error = caught.value
    assert error.path == str(file)
    assert str(error).startswith(f"{file}:{error.line}: ")
    assert error.exit_code == 2
    return error


def replace_once(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def test_the_good_file_is_good(file: Path) -> None:
    file.write_text(GOOD)
    toggle = read_toggle(file)
    assert (toggle.id, toggle.symptom) == ("some-fix", Symptom.CRASH)
    assert toggle.devices == (DeviceKind.CPU,)
    (edit,) = toggle.variants[0].edits
    assert (edit.fixed, edit.buggy) == ("a + $B", "a - $B")
    assert toggle.variants[0].get_target(edit) == CodeTarget("some.module", "Class.method")
    number = file.with_name("27460.yaml")
    number.write_text(replace_once("id: some-fix", "id: 27460"))
    assert read_toggle(number).id == "27460"


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("family:", "famly: x\nfamily:", 3, "unknown key `famly`"),
        ("family:", "fam-ily: x\nfamily:", 3, "unknown key `fam-ily`"),
        ("    target:", "    tagret: x\n    target:", 8, r"variants\[0\]: unknown key `tagret`"),
        ("        buggy:", "        bugy: x\n        buggy:", 11,
         r"variants\[0\].edits\[0\]: unknown key `bugy`"),
        ("family: things\n", "", 1, "missing key `family`"),
        ("    edits:\n      - fixed: 'a + $B'\n        buggy: 'a - $B'\n", "", 7,
         r"variants\[0\]: missing key `edits`"),
        ("        buggy: 'a - $B'\n", "", 10, r"variants\[0\].edits\[0\]: missing key `buggy`"),
        ("devices: [cpu]", "devices: [cpu", 6, "not safe YAML"),
        ("title: Something", "title: \x07Something", 2, "not safe YAML: character #x0007"),
        ("title: Something", "title: é😀\nsymptom: \x07", 3, "character #x0007"),
        ("'a - $B'\n", "'a - $B'\n---\nid: b\n", 12, "another document"),
        ("family: things", "family: things\ntitle: Else", 4, "the key 'title' stands twice"),
        ("        buggy:", "        fixed: x\n        buggy:", 11, "the key 'fixed' stands twice"),
        ("family:", "? [a, b]\n: c\nfamily:", 3, "a key is a word"),
        ("family:", "3: c\nfamily:", 3, "a key is a word"),
        ("title: Something is off by one", "title: 2020-99-99", 2, "month must be in"),
        ("title: Something is off by one", "title: &t [*t]", 2, "Expected `str`, got `array`"),
        ("family:", "upstream: ['1']\nfamily:", 3, r"upstream\[0\]: Expected `int`, got `str`"),
        ("family:", f"upstream: [{10**38}]\nfamily:", 3, r"upstream\[0\]: "),
        ("family:", "upstream: [0]\nfamily:", 3, r"upstream\[0\]: "),
        ("Something is off by one", r'"\e[31mred"', 2, r"title: the hidden character '\\x1b'"),
        ("family:", r'why: "a \u202e b"' + "\nfamily:", 3, "why: the hidden character"),
        ("title: Something is off by one", "title:", 2, "Expected `str`, got `null`"),
        ("title: Something is off by one", "title: ' '", 2, "title: empty"),
        ("'a + $B'", "''", 10, r"variants\[0\].edits\[0\].fixed: empty"),
        ("'a - $B'", '"\\t \\n"', 11, r"variants\[0\].edits\[0\].buggy: empty"),
        ("'a - $B'", "'# a - $B'", 10, "holds no code"),
        ("'a - $B'", "'def ('", 10, "not Python"),
        ("'a - $B'", "'if a:'", 10, "not Python"),
        ("'a - $B'", "'a - $A $B'", 10, "not Python"),
        ("'a - $B'", "'a + $B'", 10, "the fixed and the buggy form are the same"),
        ("'a - $B'", "' a  +  $B '", 10, "the fixed and the buggy form are the same"),
        ("'a - $B'", "'a+$B'", 10, "the fixed and the buggy form are the same"),
        ("'a - $B'", "'a + $C'", 10, "same metavariables; only one has B, C"),
        ("'a - $B'", "'a - b'", 10, "same metavariables; only one has B"),
        ("'a - $B'", "'a - $_'", 10, "a metavariable needs a name"),
        ("'a - $B'", "'f($$$)'", 10, "a metavariable needs a name"),
        (">=0.5.9,<0.5.13", "0.5.9", 7, "releases: Invalid specifier"),
        (">=0.5.9,<0.5.13", ">=0.5.9 <0.5.13", 7, "releases: Invalid specifier"),
        (">=0.5.9,<0.5.13", "===some", 7, "releases: Invalid version"),
        (">=0.5.9,<0.5.13", ",", 7, "releases: names no release"),
        ("id: some-fix", "id: Some_Fix", 1, "id: an id is a PR number or a slug"),
        ("id: some-fix", "id: some-", 1, "id: an id is a PR number or a slug"),
        ("id: some-fix", "id: other", 1, "the id 'other' is not the file's name 'some-fix'"),
        ("some.module:Class.method", "some:module:f", 8, "a target is 'module', 'module"),
        ("some.module:Class.method", "some/module.py", 8, "a target is 'module', 'module"),
        ("some.module:Class.method", "some..module", 8, "a target is 'module', 'module"),
        ("some.module:Class.method", "|\n      some.module", 8, "a target is 'module', 'module"),
        ("    target: some.module:Class.method\n", "", 9, "an edit needs a target"),
        ("symptom: crash", "symptom: crashes", 4, "symptom: Invalid enum value 'crashes'"),
        ("devices: [cpu]", "devices: [cpu, tpu]", 5, r"devices\[1\]: Invalid enum value 'tpu'"),
        ("devices: [cpu]", "devices: []", 5, "devices: .*length >= 1"),
        ("family: things", "family: Some things", 3, "a family is a folder name"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused(file: Path, old: str, new: str, line: int, problem: str) -> None:
    file.write_text(replace_once(old, new))
    with pytest.raises(YamlFileError, match=problem):
        read_toggle(file)
    assert read_refused(file).line == line


def test_a_pipe_in_a_folder_of_toggles_is_refused_and_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.yaml")
    with pytest.raises(UnfixError, match=r"x\.yaml is no file"):
        toggle_catalogue.find_toggle_files([tmp_path])


@pytest.mark.parametrize(
    ("data", "problem", "line"),
    [
        *((text, "a toggle file is a mapping", 1)
          for text in (b"", b"# nothing\n", b"- id: some-fix\n", b"some-fix\n", b"null\n")),
        (GOOD.encode().replace(b"things", b"th\xefngs"), "not UTF-8", 3),
    ],
)  # fmt: skip
def test_a_non_mapping_is_refused(file: Path, data: bytes, problem: str, line: int) -> None:
    file.write_bytes(data)
    assert problem in read_refused(file).problem
    assert read_refused(file).line == line


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system ['touch {}']",
        "!!python/object/new:os.system ['touch {}']",
        "!!python/object/apply:subprocess.check_call [['touch', '{}']]",
        "!!python/name:os.system",
        "!unknown x",
    ],
)
def test_a_tag_builds_no_object_and_runs_nothing(file: Path, tmp_path: Path, tag: str) -> None:
    witness = tmp_path / "witness"
    file.write_text(replace_once("Something is off by one", tag.format(witness)))
    error = read_refused(file)
    assert "could not determine a constructor for the tag" in error.problem
    assert error.line == 2
    assert not witness.exists()


@pytest.mark.parametrize(
    ("fixed", "buggy", "problem"),
    [
        ("$BS * $LEN", "a * $BS * b * $LEN", "fixed form also matches the buggy form's code"),
        ("$BS * $LEN * k", "$BS * $LEN", "buggy form also matches the fixed form's code"),
        ("f($X)", "g(f($X))", "fixed form also matches the buggy form's code"),
        ("f(a, $B)", "f(a,\\n  $B)", "the fixed and the buggy form are the same"),
    ],
)
def test_ambiguous_forms_are_refused(file: Path, fixed: str, buggy: str, problem: str) -> None:
    file.write_text(replace_once("'a + $B'", f'"{fixed}"').replace("'a - $B'", f'"{buggy}"'))
    assert problem in read_refused(file).problem
    assert read_refused(file).line == 10


@pytest.mark.parametrize(
    ("fixed", "buggy"), [("if a:\n    b\n    c", "if a:\n    b\nc"), ("x = 'a b'", "x = 'ab'")]
)
def test_significant_white_space_distinguishes_forms(file: Path, fixed: str, buggy: str) -> None:
    quoted = {form: '"' + form.replace("\n", "\\n") + '"' for form in (fixed, buggy)}
    text = replace_once("'a + $B'", quoted[fixed]).replace("'a - $B'", quoted[buggy])
    file.write_text(text)
    assert read_toggle(file).variants[0].edits[0].buggy == buggy


OVERLAPPING = ">=0.5.12 ==0.5.12 <0.5.10 ==0.5.* ~=0.5.9 !=0.5.9 >0.5.11,<0.5.12 <=1".split()
BETWEEN = SECOND_VARIANT.format(">=0.5.13,<0.6")


@pytest.mark.parametrize(
    ("text", "variants", "line"),
    [
        *((GOOD + SECOND_VARIANT.format(second), "1 and 2", 12) for second in OVERLAPPING),
        (replace_once(">=0.5.9,<0.5.13", "<0.5.13") + SECOND_VARIANT.format("<0.5.9"), "1 and 2",
         12),
        (replace_once(">=0.5.9,<0.5.13", ">0.5.13") + SECOND_VARIANT.format(">0.5.9"), "1 and 2",
         12),
        (GOOD + BETWEEN + SECOND_VARIANT.format("<0.5.10"), "1 and 3", 17),
    ],
)  # fmt: skip
def test_overlapping_variants_are_refused(file: Path, text: str, variants: str, line: int) -> None:
    file.write_text(text)
    assert f"variants {variants} overlap" in read_refused(file).problem
    assert read_refused(file).line == line


@pytest.mark.parametrize(
    "second",
    [">=0.5.13", "<0.5.9", ">=0.5.13,<0.6", "==0.5.13", "==0.6.*", ">=0.5.13.dev0", "~=0.5.13"],
)
def test_ranges_that_only_touch_do_not_overlap(file: Path, second: str) -> None:
    file.write_text(GOOD + SECOND_VARIANT.format(second))
    assert len(read_toggle(file).variants) == 2


def test_a_duplicate_id_or_a_missing_folder_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "some-fix.yaml").write_text(GOOD)
    with pytest.raises(UnfixError, match=r"two files hold toggle 'some-fix'.*one.*two"):
        toggle_catalogue.load_catalogue([tmp_path / "one", tmp_path / "two"])
    with pytest.raises(UnfixError, match="no folder of toggles"):
        toggle_catalogue.load_catalogue([tmp_path / "none"])


def test_a_folder_of_the_project_may_be_named_again() -> None:
    files = toggle_catalogue.find_toggle_files([paths.toggles_folder(), paths.proposed_folder()])
    assert files == toggle_catalogue.find_toggle_files()


@pytest.fixture(scope="module")
def own() -> ToggleCatalogue:
    return toggle_catalogue.load_catalogue()


@pytest.mark.parametrize(
    ("unknown", "near"), [("27461", "27460"), ("kv-indices-size", "kv-indices-size-check")]
)
def test_an_unknown_id_names_a_near_one(own: ToggleCatalogue, unknown: str, near: str) -> None:
    with pytest.raises(UnknownToggleError, match=rf"called '{unknown}'; near it: .*{near}"):
        own.select(unknown)


def test_a_pr_number_selects_its_parts_unless_it_is_an_id(own: ToggleCatalogue) -> None:
    parts = {toggle.id for toggle in own if toggle.id.startswith("25418-")}
    assert len(parts) == 6
    assert {toggle.id for toggle in own.select("25418")} == parts
    assert "20606-offset-check" in {toggle.id for toggle in own}
    assert [toggle.id for toggle in own.select("20606")] == ["20606"]
    with pytest.raises(UnknownToggleError):
        own.select("2541")


def test_a_family_and_a_glob_stand_for_theirs_and_nothing_twice(own: ToggleCatalogue) -> None:
    family = own.select("kv_indices")
    assert {toggle.family for toggle in family} == {"kv_indices"}
    assert own.select("2541*") == own.select("25418")
    assert own.select_all(["25418", "2541*", "kv_indices"]) == own.select("25418") + family
