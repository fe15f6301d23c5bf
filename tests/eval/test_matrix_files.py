"""Matrix files: each error is reported with its name, before any server starts."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import pytest
from fixture_types import Output, Patch

from harness.cli import main
from harness.cli.command_parser import CommandParser
from harness.cli.eval import command, execution
from harness.core import paths
from harness.core.errors import UnfixError
from harness.core.yaml_document import YamlDocument
from harness.matrices import schema
from harness.runs.eval import configuration_checks, evaluation_request
from harness.runs.matrix import axis_checks, plan_builder

GOOD = """
name: good
configurations:
  - {name: base, model: llama, engine: transformers}
  - {name: one, model: llama, serve: --attention-backend triton, like: base, against: base}
  - {name: two, model: llama, against: one, tasks: [recall], items: 20}
faults:
  - {revert: some-fix, in: [one, two], tasks: [recall], items: 10}
"""
A = "{name: a, model: llama%s}"


def write_matrix(*configurations: str, rest: str = "") -> str:
    listed = "".join(f"  - {one}\n" for one in configurations)
    return f"name: n\nconfigurations:\n{listed}{rest}\n"


def make_entry(name: str, more: str = "") -> str:
    return f"{{name: {name}, model: llama{', ' + more if more else ''}}}"


ONE = make_entry("a")


def test_a_good_one(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    found = configuration_checks.read_matrix(file)
    assert [one.name for one in found.configurations] == ["base", "one", "two"]
    assert found.find_configuration("one").base_names == ["base", "base"]
    assert found.find_configuration("one").server_arguments == ["--attention-backend", "triton"]


BAD = {
    "empty": ("", "it is empty"),
    "not YAML": ("name: [", "not YAML: "),
    "no name": ("configurations: []", "missing key `name`"),
    "no configurations": ("name: n\nconfigurations: []", "a matrix without configurations"),
    "unknown key": (write_matrix(ONE, rest="itmes: 3"), ":4: unknown key `itmes`"),
    "two alike": (write_matrix(ONE, ONE), "two configurations are called a"),
    "no such base": (write_matrix(make_entry("a", "like: b")),
                     "a is compared with b, which is not there"),
    "itself": (write_matrix(make_entry("a", "against: a")), "a is compared with itself"),
    "a circle of three": (
        write_matrix(
            make_entry("a", "like: b"),
            make_entry("b", "against: c"),
            make_entry("c", "like: a"),
            make_entry("d"),
        ),
        "compared with each other in a circle: a, b, c",
    ),
    "an unknown engine": (write_matrix(make_entry("a", "engine: vllm")),
                          "no engine is called vllm"),
    "an unknown stand-in": (
        write_matrix(make_entry("a", "stand-ins: [checkd]")),
        "a: no stand-in is called checkd; there are checked, drawn-weights, tree-kernels",
    ),
    "transformers with toggles": (
        write_matrix(make_entry("a", "engine: transformers, revert: [x]")),
        "plain transformers takes a model",
    ),
    "tasks that the base lacks": (
        write_matrix(make_entry("a", "tasks: [recall]"), make_entry("b", "like: a")),
        "b has tasks that a does not have",
    ),
    "items that the base lacks": (
        write_matrix(make_entry("a", "items: 10"), make_entry("b", "like: a")),
        "b has more items than a",
    ),
    "no items": (write_matrix(ONE, rest="items: 0"), "items is a number of items, and 1 at least"),
    "a covering matrix": (
        "name: n\naxes: {a: [b]}\nrun: {a: {command: x}}",
        ":2: a matrix of axes, without configurations: run it by `unfix matrix run`",
    ),
    "tolerance of all": (write_matrix(ONE, rest="tolerance: 1"),
                         "tolerance is a share between 0 and 1"),
    "an unknown device": (write_matrix(ONE, rest="device: tpu"),
                          "device is one of .*, virtual, not tpu"),
    "an open quote": (write_matrix(make_entry("a", 'serve: "--x \'y"')),
                      "a: .*No closing quotation"),
    "a name that is a path": (write_matrix(make_entry("../a")), "'../a' is no name"),
    "a fault in nothing": (write_matrix(ONE, rest="faults: [{revert: f, in: []}]"),
                           "f is planted in no"),
    "a fault in what is not there": (write_matrix(ONE, rest="faults: [{revert: f, in: [a, b]}]"),
                                     "f is planted in b, which is not there"),
    "a fault in transformers": (
        write_matrix(
            make_entry("a", "engine: transformers"), rest="faults: [{enable: f, in: [a]}]"
        ),
        "f is planted in a, which is not SGLang",
    ),
    "a fault twice": (
        write_matrix(ONE, rest="faults: [{revert: f, in: [a]}, {revert: f, in: [a], items: 3}]"),
        "f is planted in a twice",
    ),
    "a fault both ways": (write_matrix(ONE, rest="faults: [{revert: f, enable: f, in: [a]}]"),
                          "a fault is either `revert:` or `enable:`"),
    "a fault with other tasks": (
        write_matrix(ONE, rest="faults: [{revert: f, in: [a], tasks: [gsm8k]}]"),
        "f has tasks that a does not have",
    ),
    "a fault with another hope": (
        write_matrix(ONE, rest="faults: [{revert: f, in: [a], expect: luck}]"),
        "f: expect is 'caught' or 'anything'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_one_is_refused_with_its_name(tmp_path: Path, what: str) -> None:
    text, words = BAD[what]
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(UnfixError, match=f"(?s){words}") as refused:
        configuration_checks.read_matrix(file)
    assert str(refused.value).startswith(f"{file}:")
    assert refused.value.exit_code == 2


MATRICES = paths.project_folder() / "suites" / "matrices"
BOTH = "axes: {page: [1, 16]}\nrun: {pages: {command: 'true {page}'}}\nstrength: 1\n"


def test_one_file_serves_both_commands(tmp_path: Path) -> None:
    file = tmp_path / "both.yaml"
    file.write_text(write_matrix(ONE, rest=BOTH))
    assert [one.name for one in configuration_checks.read_matrix(file).configurations] == ["a"]
    plan = plan_builder.plan_matrix(file)
    assert (plan.name, [cell.command for cell in plan.cells]) == (
        "n",
        [["true", "1"], ["true", "16"]],
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (write_matrix(ONE), ":2: a matrix of configurations, without axes: run it by `unfix eval`"),
        ("name: n\n", ":1: missing key `axes`"),
        (write_matrix(ONE, rest="strength: all"), ":4: missing key `axes`: `strength` needs it"),
        (f"name: n\n{BOTH}items: 3\n", ":5: missing key `configurations`: `items` needs it"),
        ("name: n\naxes: {page: [1, 16]}\n", ":2: missing key `run`"),
    ],
)
def test_a_file_that_cannot_be_planned_names_the_key_or_the_command(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(text)
    with pytest.raises(UnfixError) as refused:
        plan_builder.plan_matrix(file)
    assert str(refused.value) == f"{file}{words}"


@pytest.mark.parametrize("file", sorted(MATRICES.glob("*.yaml")), ids=lambda file: file.stem)
def test_each_matrix_of_this_project_is_read_by_its_commands(file: Path) -> None:
    values = YamlDocument(file).values
    assert {"configurations", "axes"} & set(values)
    if "configurations" in values:
        configuration_checks.read_matrix(file)
    if "axes" in values:
        axis_checks.read_matrix(file)


def test_a_file_that_is_no_text_or_absent_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(b"name: \xff\xfe\n")
    for place in (file, tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UnfixError, match=f"{place}:"):
            configuration_checks.read_matrix(place)


def test_a_matrix_is_put_under_check_and_left_without_faults_by_words(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    plain, other = make_entry("a", "engine: transformers"), make_entry("b", "stand-ins: [checked]")
    file.write_text(
        write_matrix(plain, other, make_entry("c"), rest="faults: [{revert: f, in: [c]}]")
    )

    def parse_matrix(*words: str) -> schema.MatrixFile:
        parser = CommandParser()
        command.add_arguments(parser)
        namespace = argparse.Namespace(words=[])  # the arguments after `--`
        arguments = parser.parse_args([str(file), *words], namespace)
        return evaluation_request.make_matrix(execution.make_request(arguments))

    checked = parse_matrix("--stand-in", "checked", "--no-faults")
    assert [one.stand_ins for one in checked.configurations] == [[], ["checked"], ["checked"]]
    assert not checked.faults
    assert [one.stand_ins for one in parse_matrix().configurations] == [[], ["checked"], []]
    assert parse_matrix().faults
    with pytest.raises(UnfixError, match="no stand-in is called chekd"):
        parse_matrix("--stand-in", "chekd")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bad.yaml"], "bad.yaml:2: two configurations are called a"),
        (["nothing"], "no matrix is called nothing"),
        (["good.yaml", "--items", "0"], "--items 0 is too small"),
        (["good.yaml", "--items", "-4"], "--items -4 is too small"),
        (["good.yaml", "-j", "-1"], "--jobs -1 is too small"),
        (["good.yaml", "--concurrency", "0"], "--concurrency 0 is too small"),
        (["good.yaml", "--limit", "100"], "--limit 100 is less than the 200 items"),
        (["good.yaml", "--only", "b"], "no configuration is called b"),
        (["good.yaml", "--model", "llama"], "a matrix file names its models and bases"),
        (["good.yaml", "--junit", "x"], "an evaluation has no JUnit"),
        (["--stand-in", "tree"], "no stand-in is called tree"),
        (["--against", "yesterday"], "--against yesterday is neither a release"),
    ],
)
def test_a_bad_call_is_refused_at_once(
    tmp_path: Path, monkeypatch: Patch, capsys: Output, words: list[str], message: str
) -> None:
    (tmp_path / "bad.yaml").write_text(write_matrix(ONE, ONE))
    (tmp_path / "good.yaml").write_text(write_matrix(ONE))
    monkeypatch.chdir(tmp_path)
    assert main.main(["eval", "--device", "cpu", *words]) == 2
    assert message in capsys.readouterr().err


def test_only_toggles_between_two_means_the_same_release_and_load_too() -> None:
    """Else the noise of one order would be the yardstick for sums in another order."""
    make = functools.partial(schema.EvaluationConfiguration, "b", "llama", "--a")
    one = make()
    assert schema.is_same_but_toggles(one, make(revert=["27338"]))
    for other in (
        make(release="0.5.16"),
        make(concurrency=1),
        make(dtype="float16"),
        make(stand_ins=["checked"]),
    ):
        assert not schema.is_same_but_toggles(one, other)
