"""Wrong calls of the zoo end with exit code 2 and suggest one that works."""

from __future__ import annotations

import pytest

from harness.cli.main import main


def test_an_unknown_architecture_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "llamma"]) == 2
    assert capsys.readouterr().err == (
        "unfix: no architecture is called llamma; did you mean llama?\n"
    )
