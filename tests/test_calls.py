"""Wrong calls: each is explained in a sentence, under the usage of the command."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixture_types import Output, Patch

from harness.cli import options
from harness.cli.command_parser import CommandParser
from harness.cli.commands import COMMANDS
from harness.cli.main import build_parser, main
from harness.core.errors import CommandLineError

HANDS_ALL_TO_PYTEST = "test"


def list_leaf_commands(
    parser: argparse.ArgumentParser, words: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Yield the commands below a parser, as the words that call them."""
    if parser._subparsers is None:
        yield words
        return
    [choices] = (action.choices for action in parser._subparsers._group_actions)
    assert isinstance(choices, dict)
    for name, sub in choices.items():
        if len(words) == 0 or words[0] in COMMANDS:
            yield from list_leaf_commands(sub, (*words, name))


def every_command() -> list[tuple[str, ...]]:
    found = []
    for command in COMMANDS:
        found += [
            words for words in list_leaf_commands(build_parser(command), ()) if words[0] == command
        ]
    return found


EVERY = [words for words in every_command() if words[0] != HANDS_ALL_TO_PYTEST]


def read_refusal(words: tuple[str, ...], capsys: Output) -> tuple[str, str]:
    """Return the usage and the sentence that a wrong call prints."""
    assert main(words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    *usage, sentence = output.err.splitlines()
    assert 1 <= len(usage) <= 4
    assert sentence.startswith("unfix: ")
    return "\n".join(usage), sentence.removeprefix("unfix: ")


def test_every_command_is_in_the_table() -> None:
    assert {words[0] for words in EVERY} == set(COMMANDS) - {HANDS_ALL_TO_PYTEST}
    subs = {words for words in EVERY if len(words) > 1}
    assert {words[0] for words in subs} == {"bisect", "matrix", "releases"}
    assert len(subs) == 10


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
@pytest.mark.parametrize("wrong", ["--no-such-option", "--json=5", "--no-such-option=5"])
def test_a_wrong_option_shows_the_usage(words: tuple[str, ...], wrong: str, capsys: Output) -> None:
    usage, _ = read_refusal((*words, wrong), capsys)
    assert usage.startswith(f"usage: unfix {' '.join(words)}")
    others = {f"unfix {' '.join(other)} " for other in EVERY} - {f"unfix {' '.join(words)} "}
    own = [line for line in usage.splitlines() if any(other in f"{line} " for other in others)]
    assert own == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("prove 35571 suites -x", "`unfix prove` has no option -x; options for pytest go behind "
         "`--`: unfix prove 35571 suites -- -x"),
        ("prove -m slow 35571", "unfix prove 35571 -- -m slow"),
        ("lifecycle --maxfail=2", "unfix lifecycle -- --maxfail=2"),
        ("prove -p no:randomly -s -k ring", "unfix prove -k ring -- -p no:randomly -s"),
        ("prove --relese 0.5.9", "there is no option --relese; near it: --release"),
        ("prove kv_indicse", "no toggle is called 'kv_indicse'; near it: kv_indices"),
        ("prove kv_indicse", "by its id, its PR, its family or a glob"),
        ("prove kv_indicse", "nor is it a file or folder"),
        ("prove suits/kv_indices", "there is no file or folder suits/kv_indices"),
        ("prove suites/kv_indicse", "near it: suites/kv_indices"),
        ("prove suites/kv_indices/test_none.py::test_it", "no file or folder suites/kv_indices/te"),
        ("exec --revert 27460 python -c 1", "unfix exec --revert 27460 -- python -c 1"),
        ("exec --revert 27460", "exec needs a command"),
        ("eval --release 0.5.18 --tp 2", "for SGLang go behind `--`: unfix eval --release 0.5.18"
         " -- --tp 2"),
        ("bisect toggles python check.py", "it needs a command, behind `--`"),
        ("bisect releases --good 0.5.9 -- true", "it needs --good"),
        ("bisect commit", "did you mean commits?"),
        ("prove --limit soon", "argument --limit: 'soon' is not a number"),
        ("drift --from nowhere", "no toggle is called 'nowhere'"),
        ("drift --from nowhere", "nor is it a file or folder"),
        ("drift --from no/where", "there is no file or folder no/where"),
        ("", "the command is missing; `unfix --help` lists the commands"),
        ("prove --device gpu", "did you mean cuda?"),
        ("lisst", "invalid choice: 'lisst'; did you mean list?"),
        ("doctor now", "'now' is one word more than `unfix doctor` takes"),
        ("releases remove", "the following arguments are required: RELEASE"),
        ("mutate suites/nowhere.py", "there is no file or folder suites/nowhere.py"),
    ],
)  # fmt: skip
def test_messages_name_valid_calls(
    words: str, text: str, capsys: Output, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent)
    own, _, behind = words.partition(" -- ")
    _, sentence = read_refusal((*own.split(), *(["--", *behind.split()] if behind else [])), capsys)
    assert text in sentence


@pytest.mark.parametrize(
    ("words", "problem"),
    [("lifecycle nope", "'nope'"), ("prove nope", "'nope'"), ("prove --shard 3/2", "no shard")],
)
def test_a_wrong_word_is_refused_before_a_release_is_installed(
    words: str, problem: str, capsys: Output, monkeypatch: Patch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    assert main(words.split()) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / ".releases").exists()


def find_parser(words: tuple[str, ...]) -> argparse.ArgumentParser:
    """Return the parser of a command."""
    parser: argparse.ArgumentParser = build_parser(words[0])
    for word in words:
        assert parser._subparsers is not None
        [choices] = (action.choices for action in parser._subparsers._group_actions)
        assert isinstance(choices, dict)
        parser = choices[word]
    return parser


WITH_RELEASE = [
    words for words in EVERY if "--release" in find_parser(words)._option_string_actions
]


@pytest.mark.parametrize("words", WITH_RELEASE, ids=" ".join)
@pytest.mark.parametrize("release", ["", " ", ","])
def test_a_release_without_a_name_is_a_wrong_call(
    words: tuple[str, ...], release: str, capsys: Output
) -> None:
    """It is what an unset variable of a script gives, and must not mean the newest one."""
    assert len(WITH_RELEASE) > 12
    assert main([*words, "--release", release]) == 2
    assert f"'{release}' names no release" in capsys.readouterr().err


def test_a_path_without_a_name_is_a_wrong_call(capsys: Output) -> None:
    """It is what an unset variable of a script gives, and must not mean the current folder."""
    for words in (["drift", "--from", ""], ["prove", "--toggles", " "], ["kernels", "--html", ""]):
        assert main(words) == 2
        assert "names no file or folder" in capsys.readouterr().err


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
@pytest.mark.parametrize("empty", ["", " ", ","])
def test_an_empty_word_is_a_wrong_call(words: tuple[str, ...], empty: str, capsys: Output) -> None:
    """It is what an unset variable of a script gives, and must not mean everything."""
    for call in ((*words, empty), (*words, "--json", empty)):
        _, sentence = read_refusal(call, capsys)
        assert f"'{empty}'" in sentence, call


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_an_empty_value_of_an_option_is_a_wrong_call(
    words: tuple[str, ...], capsys: Output
) -> None:
    parser = find_parser(words)
    for action in parser._actions:
        if action.option_strings and action.nargs != 0:
            values = [""] * (action.nargs if isinstance(action.nargs, int) else 1)
            assert main([*words, action.option_strings[-1], *values]) == 2
            assert "''" in capsys.readouterr().err, action.option_strings


def test_paths_are_guards_and_other_words_are_toggles(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_suites").mkdir()
    (tmp_path / "test_it.py").touch()
    (tmp_path / "27460").touch()  # still a toggle's name
    paths = ["my_suites", "test_it.py::test_a[1]", "./27460"]
    words = ["prove", "27460", "kv_*", "--profile", "smoke", *paths]
    parsed = build_parser("prove").parse_args(words)
    catalogue = options.load_catalogue(parsed)
    names = options.split_names_and_paths(parsed.names, parsed.usage, catalogue)
    assert names == (["27460", "kv_*"], paths)


def test_words_on_both_sides_of_an_option_are_all_taken() -> None:
    words = ["list", "27460", "--json", "27338", "--release", "x", "kv*"]
    parsed = build_parser("list").parse_args(words)
    assert parsed.names == ["27460", "27338", "kv*"]


def test_a_parser_raises_an_error_of_unfix() -> None:
    with pytest.raises(CommandLineError, match="no option --nope"):
        CommandParser(prog="unfix").parse_args(["--nope"])
