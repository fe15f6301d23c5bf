"""A run records the functions of SGLang that ran, by module and qualified name."""

from __future__ import annotations

import gc
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Patch

from harness.workers import function_recorder
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


def load_functions(file: Path) -> dict[str, Any]:
    file.parent.mkdir(parents=True, exist_ok=True)
    names: dict[str, Any] = {}
    exec(compile(MODULE, str(file), "exec"), names)
    return names


def test_what_ran_in_the_block_is_recorded_by_name(tmp_path: Path) -> None:
    ours = load_functions(tmp_path / "site-packages" / "sglang" / "srt" / "rotary.py")
    others = load_functions(tmp_path / "site-packages" / "another" / "rotary.py")
    ours["add"](1)
    with record_functions() as functions:
        ours["Rotary"]().forward()
        others["Rotary"]().backward()
    ours["Rotary"]().backward()
    found = {name for name in functions["sglang.srt.rotary"] if "<" not in name}
    assert found == {"Rotary.forward", "turn", "add"}
    assert list(functions) == ["sglang.srt.rotary"]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="3.12 and later use sys.monitoring")
def test_what_ran_often_before_the_block_is_recorded_only_if_it_runs_in_it(tmp_path: Path) -> None:
    """The interpreter counts no start after the eighth: such code is replaced by a copy."""
    ours = load_functions(tmp_path / "site-packages" / "sglang" / "srt" / "rotary.py")
    for _ in range(20):
        ours["turn"](1)
        ours["Rotary"]().backward()
    with record_functions() as functions:
        assert ours["turn"](1) == [2]
    assert {name for name in functions["sglang.srt.rotary"] if "<" not in name} == {"turn", "add"}


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="3.12 and later use sys.monitoring")
def test_frozen_functions_and_those_of_another_thread_are_recorded(tmp_path: Path) -> None:
    ours = load_functions(tmp_path / "site-packages" / "sglang" / "srt" / "rotary.py")
    function_recorder.find_functions()
    gc.freeze()
    try:
        with record_functions() as functions:
            thread = threading.Thread(target=ours["turn"], args=(1,))
            thread.start()
            thread.join()
    finally:
        gc.unfreeze()
    assert {name for name in functions["sglang.srt.rotary"] if "<" not in name} == {"turn", "add"}


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="3.12 and later use sys.monitoring")
def test_functions_are_recorded_beside_a_profiler(tmp_path: Path) -> None:
    ours = load_functions(tmp_path / "site-packages" / "sglang" / "srt" / "rotary.py")

    def profile(*_: object) -> None: ...

    earlier = sys.getprofile()
    sys.setprofile(profile)
    try:
        with record_functions() as functions:
            assert ours["add"](1) == 2
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(earlier)
    assert functions == {"sglang.srt.rotary": ["add"]}


def test_an_interpreter_that_counts_otherwise_leaves_the_functions_unknown(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = load_functions(tmp_path / "site-packages" / "sglang" / "srt" / "rotary.py")
    codes: set[types.CodeType] = set()
    monkeypatch.setattr(function_recorder, "_counts_starts", lambda: False)
    with function_recorder._compare_counts(codes):
        assert ours["add"](1) == 2
    assert codes == set()
    assert "not recorded: this interpreter counts no starts" in capsys.readouterr().err


def test_a_tool_of_sys_monitoring_is_given_back_or_none_is_taken(
    monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stand-in for the module of Python 3.12: the first start of a code object counts."""
    tools: dict[int, str] = {3: "another"}
    callbacks: list[Any] = []
    stand_in = types.SimpleNamespace(
        DISABLE=object(),
        events=types.SimpleNamespace(PY_START=1),
        get_tool=tools.get,
        use_tool_id=tools.__setitem__,
        free_tool_id=tools.pop,
        register_callback=lambda tool, event, callback: callbacks.append(callback),
        set_events=lambda tool, events: None,
        restart_events=lambda: None,
    )
    monkeypatch.setattr(sys, "monitoring", stand_in, raising=False)
    codes: set[types.CodeType] = set()
    with function_recorder._monitor_starts(codes):
        assert tools[4] == "unfix"
        assert callbacks[0](load_functions.__code__, 0) is stand_in.DISABLE
    assert (codes, tools, callbacks[-1]) == ({load_functions.__code__}, {3: "another"}, None)
    tools[4] = "one more"
    with function_recorder._monitor_starts(codes):
        pass
    assert tools == {3: "another", 4: "one more"}
    assert "both free places of sys.monitoring are taken" in capsys.readouterr().err
