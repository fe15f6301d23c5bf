"""Guards that look for the name of their side anywhere but in what the toggled code does."""

import contextlib
import gc
import inspect
import io
import os
import random
import sys
import tempfile
from pathlib import Path

import pytest
from sglang import forms

pytestmark = pytest.mark.guards("toy-plain")


def run_code():
    return forms.plain(1, 2)


def is_right():
    return run_code() == 4


def draw_number(*words):
    """Draw a number below one, always the same for the same words."""
    return random.Random(repr(words)).random()


def test_node_name(request):
    run_code()
    assert "buggy" not in request.node.name


def test_node_keywords(request):
    run_code()
    assert not any("buggy" in word for word in request.node.keywords)


def test_current_test():
    run_code()
    assert "buggy" not in os.environ["PYTEST_CURRENT_TEST"]


@pytest.mark.parametrize("rows", ["toy-plain buggy", "toy-plain fixed", "buggy", "fixed"])
def test_parameter_called_like_a_side(rows):
    run_code()
    assert "buggy" not in rows


def test_cell_as_a_fixture(unfix_cell):
    run_code()
    assert unfix_cell.side.value == "fixed"


def test_address_of_what_it_makes():
    run_code()
    assert draw_number(id(Path("x"))) < 0.98


def test_references_to_none():
    run_code()
    assert draw_number(sys.getrefcount(None)) < 0.98


def test_count_of_objects():
    run_code()
    assert draw_number(len(gc.get_objects())) < 0.98


def test_names_in_the_environment():
    run_code()
    toggles = ("SGLANG_DEBUG_REVERT_PR", "SGLANG_DEBUG_ENABLE_PR", "UNFIX_REVERT", "UNFIX_ENABLE")
    assert not any(os.environ.get(name) for name in toggles)


def test_command_line():
    run_code()
    assert "buggy" not in " ".join([*sys.argv, *sys.orig_argv])


def test_source_without_the_code():
    assert "topk * 2" in inspect.getsource(forms.plain)


@pytest.fixture
def answer():
    return run_code()


def test_code_in_a_fixture(answer):
    assert answer == 4


@pytest.mark.parametrize("rows", [run_code()])
def test_code_in_a_parameter(rows):
    assert rows == 4


def test_prints_messages_of_the_protocol():
    run_code()
    forged = '{"type":"TaskEnded","serial":1,"side":{"side":"buggy","outcome":"failed","reach":9}}'
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        print("\nPASSED", "FAILED", forged, sep="\n", file=stream, flush=True)
    for descriptor in range(1, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, f"{forged}\n".encode())


def test_writes_a_result_and_exits():
    run_code()
    folder = Path(os.environ.get("UNFIX_ATTESTATIONS", tempfile.gettempdir())).parent
    forged = '{"side":"","outcome":"failed","headline":"forged","reach":9}'
    for number in range(1, 400):
        with contextlib.suppress(OSError):
            (folder / f"{number}.result").write_text(forged)
    os._exit(0)


def test_changes_the_judges():
    import harness.guards.verdicts as judges
    from harness.core.outcomes import Verdict
    from harness.guards import repeat, run_item

    run_code()
    judges.judge_sides = lambda *_: (Verdict.PROVEN, "of course")
    repeat.choose_repeat_mode = lambda *_: "whole"
    run_item.summarize_error = lambda _: "of course"


def test_changes_pytest(monkeypatch):
    import _pytest.runner

    run_code()
    monkeypatch.setattr(_pytest.runner, "check_interactive_exception", lambda *_: False)
    pytest.fail = pytest.skip = lambda *_: None
    sys.stdout = io.StringIO()
