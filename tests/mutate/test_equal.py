"""Equivalent faults: the schema of their file, each error with its line, and the project's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import released
from small import make_faults

from harness.core.cpp_tokens import is_cpp_path
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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "equal_faults.yaml"


def test_a_file_is_its_faults_by_id(file: Path) -> None:
    assert equivalent_faults.read_equivalent_faults(file) == {}
    file.write_text("# nothing yet\n")
    assert equivalent_faults.read_equivalent_faults(file) == {}
    file.write_text(GOOD)
    faults = equivalent_faults.read_equivalent_faults(file)
    assert list(faults) == ["0123456789", "abcdef0123"]
    assert faults["abcdef0123"].change == "< => <="
    assert faults["0123456789"].because == "rows is at most limit here"


@pytest.mark.parametrize(
    ("old", "new", "message"),
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
        (GOOD, "id: 1\n", ":1: it is a list"),
    ],
)
def test_an_error_in_a_file_is_reported_with_its_line(
    file: Path, old: str, new: str, message: str
) -> None:
    assert old in GOOD
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(YamlFileError) as caught:
        equivalent_faults.read_equivalent_faults(file)
    assert str(caught.value).removeprefix(str(file)).startswith(message)


def test_a_recorded_fault_of_these_modules_that_is_not_generated_has_vanished() -> None:
    (fault,) = make_faults("def f(n, m):\n    a = cdiv(n, m)\n", "round-down").faults
    generated, vanished, elsewhere = (
        EquivalentFault(name, target, "round-down", "a => b", "a reason of words")
        for name, target in ((fault.id, "m:f"), ("0123456789", "m:g"), ("0123456788", "n:g"))
    )
    recorded = [generated, vanished, elsewhere]
    assert equivalent_faults.find_vanished_faults(recorded, [fault], ["m"]) == [vanished]


def test_every_fault_of_the_projects_own_file_is_still_made() -> None:
    """An entry whose fault no longer exists is useless; it must be reviewed or removed."""
    own = equivalent_faults.read_equivalent_faults()
    faults = list(released.generate_for_release(released.NEWEST).faults)
    sources = [recorded.target.partition(":")[0] for recorded in own.values()]
    for source in sorted(set(filter(is_cpp_path, sources))):
        faults += released.generate_for_module(released.NEWEST, source).faults
    by_id = {fault.id: fault for fault in faults}
    assert set(own) <= set(by_id)
    for name, recorded in own.items():
        assert (recorded.target, recorded.operator) == (by_id[name].target, by_id[name].operator)
