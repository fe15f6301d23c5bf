"""Equal faults: what their file may say, each error with its line, and the project's own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import released
import yaml
from small import made

from harness.core.located_yaml import YamlFileError
from harness.runs.mutate import equivalent_faults
from harness.runs.mutate.equivalent_faults import EquivalentFault

GOOD = """\
- id: "0123456789"
  target: sglang.srt.some:function
  operator: drop-clamp
  change: min(rows, limit) => rows
  because: rows is at most limit here
- id: abcdef0123
  target: sglang.srt.some:Other.function
  operator: off-by-one
  change: "< => <="
  because: both ends are padding
"""


def file(folder: Path, text: str) -> Path:
    path = folder / "equal_faults.yaml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(YamlFileError) as caught:
        equivalent_faults.read_equivalent_faults(file(folder, text))
    return str(caught.value).removeprefix(str(folder / "equal_faults.yaml"))


def test_a_file_is_its_faults_by_id(tmp_path: Path) -> None:
    found = equivalent_faults.read_equivalent_faults(file(tmp_path, GOOD))
    assert list(found) == ["0123456789", "abcdef0123"]
    assert found["abcdef0123"].change == "< => <="
    assert found["0123456789"].because == "rows is at most limit here"


def test_no_file_and_an_empty_one_name_none(tmp_path: Path) -> None:
    assert equivalent_faults.read_equivalent_faults(tmp_path / "gone.yaml") == {}
    assert equivalent_faults.read_equivalent_faults(file(tmp_path, "# nothing yet\n")) == {}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"0123456789"', "0123abcd", ":1: an id is ten hexadecimal digits"),
        ("abcdef0123", "1234567890", ":6: an id of digits alone stands in quotes"),
        ("abcdef0123", "ABCDEF0123", ":6: an id is ten hexadecimal digits"),
        ("abcdef0123", '"0123456789"', ":6: fault 0123456789 stands twice"),
        ("off-by-one", "off-by-two", ":8: there is no operator 'off-by-two'"),
        ("both ends are padding", "padding", ":10: say why in a sentence"),
        ("  change: min(rows, limit) => rows\n", "", ":1: missing key `change`"),
        ("  because: both", "  why: so it is\n  because: both", ":10: unknown key `why`"),
        ("some:Other", "some:Other-", ":7: empty, or not of that form"),
    ],
)
def test_what_a_file_gets_wrong_is_said_with_its_line(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    assert old in GOOD
    assert refusal(tmp_path, GOOD.replace(old, new)).startswith(told)


def test_a_file_that_is_no_list_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "id: 1\n").startswith(":1: it is a list")


def test_an_entry_of_a_fault_reads_back(tmp_path: Path) -> None:
    code = "def f(n, m):\n    a = cdiv(\n        n, m)\n"
    (fault,) = made(code, "round-down").faults
    entry = equivalent_faults.make_equivalent_fault(fault, "n is a multiple of m here")
    assert entry.change == "cdiv( n, m) => n // m"
    path = file(tmp_path, yaml.safe_dump([msgspec.to_builtins(entry)]))
    assert equivalent_faults.read_equivalent_faults(path) == {fault.id: entry}


def test_lost_are_those_of_the_asked_modules_that_are_made_no_more() -> None:
    (fault,) = made("def f(n, m):\n    a = cdiv(n, m)\n", "round-down").faults
    kept = equivalent_faults.make_equivalent_fault(fault, "so it was seen")
    gone = EquivalentFault("0123456789", "m:g", "round-down", "a => b", "so it was seen")
    elsewhere = EquivalentFault("0123456788", "n:g", "round-down", "a => b", "so it was seen")
    assert equivalent_faults.find_vanished_faults([kept, gone, elsewhere], [fault], ["m"]) == [gone]


def test_every_fault_of_the_projects_own_file_is_still_made() -> None:
    """One that is not made any more says nothing; it has to be looked at again, or go."""
    own = equivalent_faults.read_equivalent_faults()
    by_id = {fault.id: fault for fault in released.made_of(released.NEWEST).faults}
    assert set(own) <= set(by_id)
    told = {name: (e.target, e.operator) for name, e in own.items()}
    assert told == {name: (by_id[name].target, by_id[name].operator) for name in own}
