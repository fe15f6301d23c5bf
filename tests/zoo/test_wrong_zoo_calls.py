"""Wrong calls of the zoo end with exit code 2 and suggest one that works."""

from __future__ import annotations

import pytest

from harness.cli.main import build_parser, main
from harness.core.errors import CommandLineError


def test_an_unknown_architecture_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "llamma"]) == 2
    assert capsys.readouterr().err == (
        "unfix: no architecture and no kernel family is called llamma; did you mean llama?\n"
    )


@pytest.mark.parametrize("command", ["zoo", "rehearse", "exec"])
def test_directions_take_lists_of_ids(command: str) -> None:
    parser = build_parser(command)
    words = [command, "--revert", "27460,#24617", "--enable", "a", "--enable", "b"]
    arguments = parser.parse_args(words)
    assert (arguments.revert, arguments.enable) == (["27460", "24617"], ["a", "b"])
    with pytest.raises(CommandLineError, match="',' names no toggle"):
        parser.parse_args([command, "--revert", ","])


def test_an_order_of_sums_needs_several_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "llama", "--sum-order", "reversed"]) == 2
    assert "--sum-order is of several ranks: add --tp" in capsys.readouterr().err
