"""A run records the functions of SGLang that ran, by module and qualified name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.workers.function_recorder import record_functions

MODULE = """\
class Rotary:
    def forward(self):
        return turn(1)

    def backward(self):
        return 2


def turn(x):
    return [add(y) for y in (x,)]


def add(y):
    return y + 1
"""


def load(file: Path) -> dict[str, Any]:
    file.parent.mkdir(parents=True, exist_ok=True)
    names: dict[str, Any] = {}
    exec(compile(MODULE, str(file), "exec"), names)
    return names


def test_what_ran_in_the_block_is_recorded_by_name(tmp_path: Path) -> None:
    ours = load(tmp_path / "site-packages" / "sglang" / "srt" / "rotary.py")
    others = load(tmp_path / "site-packages" / "another" / "rotary.py")
    ours["add"](1)
    with record_functions() as functions:
        ours["Rotary"]().forward()
        others["Rotary"]().backward()
    ours["Rotary"]().backward()
    found = {name for name in functions["sglang.srt.rotary"] if "<" not in name}
    assert found == {"Rotary.forward", "turn", "add"}
    assert list(functions) == ["sglang.srt.rotary"]
