"""Guards that look for the name of their side anywhere but in what the toggled code does."""

import contextlib
import gc
import hashlib
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
MANY = range(12)


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


@pytest.mark.parametrize("number", MANY)
def test_seeded_by_its_name(request, number):
    run_code()
    assert draw_number(request.node.nodeid) < 0.5


@pytest.mark.parametrize("number", MANY)
def test_seeded_by_the_current_test(number):
    run_code()
    assert draw_number(os.environ["PYTEST_CURRENT_TEST"], number) < 0.5


@pytest.mark.parametrize("number", MANY)
def test_seeded_by_its_parameters(request, number):
    run_code()
    assert draw_number(sorted(map(str, request.node.callspec.params.values())), number) < 0.5


@pytest.mark.parametrize("rows", ["toy-plain buggy", "toy-plain fixed", "buggy", "fixed"])
def test_parameter_called_like_a_side(rows):
    run_code()
    assert "buggy" not in rows


def test_cell_as_a_fixture(unfix_cell):
    run_code()
    assert unfix_cell.side.value == "fixed"


@pytest.mark.parametrize("number", MANY)
def test_place_in_the_session(request, number):
    run_code()
    assert draw_number(request.session.items.index(request.node), number) < 0.5


@pytest.mark.parametrize("number", MANY)
def test_address_of_its_node(request, number):
    run_code()
    assert draw_number(id(request.node), number) < 0.5


def test_address_of_what_it_makes():
    run_code()
    assert draw_number(id(Path("x"))) < 0.98


def test_address_of_a_large_buffer():
    run_code()
    assert draw_number(id(bytearray(400_000))) < 0.98


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


def test_words_in_the_environment():
    run_code()
    words = " ".join(os.environ.values()).split()
    assert not {"buggy", "buggy]", "revert", "toy-plain"} & {word.lower() for word in words}


def test_command_line():
    run_code()
    assert "buggy" not in " ".join([*sys.argv, *sys.orig_argv])


@pytest.mark.parametrize("number", MANY)
def test_seeded_by_its_folders(number, tmp_path):
    run_code()
    folders = os.getcwd(), tempfile.gettempdir(), os.path.expanduser("~"), tmp_path.name
    assert draw_number(folders, number) < 0.5


@pytest.mark.parametrize("number", MANY)
def test_seeded_by_its_descriptors(number):
    run_code()
    assert draw_number((sorted(os.listdir("/proc/self/fd")),), number) < 0.5


@pytest.mark.parametrize("number", MANY)
def test_order_of_a_set(number):
    run_code()
    assert next(iter({"fixed", "buggy", f"{number}"})) == "fixed"


@pytest.mark.parametrize("number", MANY)
def test_hash_of_a_word(number):
    run_code()
    assert hash(f"toy {number}") % 2


@pytest.mark.parametrize("number", MANY)
def test_functions_that_call_it(number):
    run_code()
    assert draw_number([frame.function for frame in inspect.stack(0)], number) < 0.5


@pytest.mark.parametrize("number", MANY)
def test_names_of_all_modules(number):
    run_code()
    assert draw_number(sorted(sys.modules), number) < 0.5


def test_source_without_the_code():
    assert "topk * 2" in inspect.getsource(forms.plain)


WRONG = run_code() != 4


def test_code_at_import():
    assert not WRONG


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
    from harness.guards import repeat, run_item
    from harness.store.prove.values import CellVerdict

    run_code()
    judges.judge_sides = lambda *_: (CellVerdict.PROVEN, "of course")
    repeat.choose_repeat_mode = lambda *_: "whole"
    run_item.summarize_error = lambda _: "of course"


def test_changes_pytest(monkeypatch):
    import _pytest.runner

    run_code()
    monkeypatch.setattr(_pytest.runner, "check_interactive_exception", lambda *_: False)
    pytest.fail = pytest.skip = lambda *_: None
    sys.stdout = io.StringIO()


@pytest.mark.parametrize("number", MANY)
def test_digest_of_the_environment(number):
    run_code()
    variables = {
        name: os.environ[name] for name in sorted(os.environ) if "/" not in os.environ[name]
    }
    assert hashlib.sha256(f"{variables}{number}".encode()).digest()[0] < 128
