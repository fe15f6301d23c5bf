"""Both sides of a guard are the same to it, except for the toggled code."""

from __future__ import annotations

import json
from typing import Any

import pytest
from proving import Prove, by_guard

from harness.core import write_confinement

# It fails on both sides, and its message is all that it sees.
SNAPSHOT = """
import json, gc, logging, re, resource, tempfile, warnings
from pathlib import Path
import hypothesis

def list_folder(folder):
    return sorted(str(file.relative_to(folder)) for file in Path(folder).rglob("*"))

def see(request):
    node = request.node
    callspec = getattr(node, "callspec", None)
    options = {k: repr(v) for k, v in vars(request.config.option).items()}
    fds = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in ("0", "1", "2")}
    opened = []
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            # A socket has a number, and the file of the counts the process's.
            opened.append((fd, os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]
                .partition("attestations/")[0]))
        except OSError:
            pass
    return {
        "name": [node.name, node.nodeid, node.originalname, repr(node.location)],
        "keywords": sorted(map(str, node.keywords)),
        "markers": sorted(repr(mark.name) for mark in node.iter_markers()),
        "fixtures": sorted(request.fixturenames),
        "parameters": repr(callspec and (callspec.params, callspec.indices, callspec.id)),
        "properties": repr(node.user_properties),
        "environment": dict(os.environ),
        "argv": sys.argv,
        "cmdline": open("/proc/self/cmdline").read(),
        "options": options,
        "folder": os.getcwd(),
        "files here": sorted(os.listdir()),
        "home": str(Path.home()), "files at home": list_folder(Path.home()),
        "temporary": tempfile.gettempdir(), "temporary files": list_folder(tempfile.gettempdir()),
        "path": sys.path,
        "modules": sorted(name for name in sys.modules if name.startswith(("harness", "sglang"))),
        "threads": [thread.name for thread in threading.enumerate()],
        "descriptors": fds, "open": opened,
        "limits": [resource.getrlimit(getattr(resource, name)) for name in dir(resource)
                   if name.startswith("RLIMIT")],
        "umask": os.umask(0o022),
        "loggers": sorted(logging.root.manager.loggerDict),
        "warnings": repr(warnings.filters),
        # The first search with the fix out is longer; repetitions are alike, and they decide.
        "hypothesis": re.sub("max_examples=[0-9]+", "", repr(hypothesis.settings.default)),
        "seed": repr(hypothesis.core.global_force_seed),
        "group": [os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()],
        "hooks": [repr(type(threading.excepthook)), repr(type(sys.excepthook))],
    }

@guards("toy-plain")
def test_plain(request):
    buggy()
    pytest.fail(json.dumps(see(request)))

@guards("toy-plain")
@pytest.mark.parametrize("row", range(8))
def test_with_a_parameter(request, row, tmp_path, monkeypatch):
    buggy()
    pytest.fail(json.dumps({"tmp": str(tmp_path), **see(request)}))

@guards("toy-plain", "toy-default")
class TestIt:
    def test_in_a_class_of_two_toggles(self, request):
        buggy()
        forms.with_default(1)
        pytest.fail(json.dumps(see(request)))

@guards("toy-plain")
@given(number=st.integers(0, 3))
def test_with_examples(request, number):
    buggy()
    pytest.fail(json.dumps(see(request)))
"""


def read_snapshots(prove: Prove) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return what each guard sees on its two sides."""
    prove.write(SNAPSHOT)
    # Without namespaces a folder has the number of its lane. With them, the sides of some of these
    # cells run in different lanes.
    lanes = "3" if write_confinement.can_make_namespaces() else "1"
    done = prove.run("--json", "-j", lanes)
    assert done.stdout, done.stderr
    cells = json.loads(done.stdout)["cells"]
    seen = [
        (
            f"{cell['guard']} {cell['toggle']}",
            read_snapshot("fixed", cell),
            read_snapshot("buggy", cell),
        )
        for cell in cells
    ]
    assert len(seen) == 12
    return seen


def read_snapshot(side: str, cell: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cell["sides"][side]["headline"])
    return found


def test_a_guard_sees_the_same_on_both_sides(prove: Prove) -> None:
    for guard, fixed, buggy in read_snapshots(prove):
        assert len(fixed) > 25, guard
        differing = {
            name: (fixed[name], buggy[name]) for name in fixed if fixed[name] != buggy[name]
        }
        assert not differing, guard
        words = json.dumps(fixed["name"]) + fixed["environment"]["PYTEST_CURRENT_TEST"]
        assert "fixed" not in words
        assert "buggy" not in words


# Chance that a guard seeds by what it sees of its side

BY_NAME = """
import hashlib

def draw(text):
    return hashlib.sha256(text.encode()).digest()[0] / 256

@guards("toy-plain")
@pytest.mark.parametrize("n", range(16))
def test_by_name(request, n):
    buggy()
    assert draw(request.node.name) < 0.5

@guards("toy-plain")
@pytest.mark.parametrize("n", range(16))
def test_by_environment(n):
    buggy()
    assert draw(str(n) + json.dumps(dict(os.environ))) < 0.5
"""


def test_what_a_guard_seeds_by_its_name_or_environment_proves_nothing(prove: Prove) -> None:
    """Of 32 guards that fail at one half, 8 would be proven if the sides' names differed."""
    prove.write("import json\n" + BY_NAME)
    cells = prove.cells("-j", "1")
    assert len(cells) == 32
    assert "proven" not in {cell["verdict"] for cell in cells.values()}


# State that outlives a run

COUNTS = """
import tempfile
from pathlib import Path

AT_IMPORT = Path.home()
HERE = Path(__file__).parent

def is_second_time(folder):
    counter = Path(folder) / "unfix-test-counter"
    count = int(counter.read_text()) if counter.exists() else 0
    counter.parent.mkdir(parents=True, exist_ok=True)
    counter.write_text(str(count + 1))
    return count % 2 == FIRST

PLACES = {
    "home": lambda: Path.home(),
    "cache": lambda: os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache",
    "triton": lambda: os.environ.get("TRITON_HOME") or Path.home() / ".triton",
    "temporary": lambda: tempfile.gettempdir(),
    "tmp": lambda: "/tmp",
    "working folder": lambda: os.getcwd(),
    "home at import": lambda: AT_IMPORT,
    "beside the file": lambda: HERE,
    "state of unfix": lambda: Path(os.environ["UNFIX_HOME"]) / ".unfix",
    "kernels of unfix": lambda: Path(os.environ["UNFIX_HOME"]) / ".unfix" / "kernels",
    "builds of unfix": lambda: Path(os.environ["UNFIX_HOME"]) / ".releases" / "cuda-builds",
    "shared memory": lambda: "/dev/shm",
}

@guards("toy-plain")
@pytest.mark.parametrize("place", PLACES)
def test_counts(place):
    buggy()
    assert not is_second_time(PLACES[place]())
"""


needs_landlock = pytest.mark.skipif(
    not write_confinement.can_confine(), reason="n/a: this kernel has no Landlock"
)


@needs_landlock
@pytest.mark.parametrize("first", [0, 1])
def test_a_counter_that_outlives_its_run_proves_nothing(
    prove: Prove, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """The runs of these guards alternate, if anything that they write is there in the next one."""
    home = prove.root / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (prove.root / ".releases" / "cuda-builds").mkdir(parents=True)  # as after a build of kernels
    # The order of the sides is drawn: without it, this alternation would be proven.
    prove.write(COUNTS.replace("FIRST", str(first)))
    cells = prove.cells("-j", "1")
    assert len(cells) == 12
    assert "proven" not in {cell["verdict"] for cell in cells.values()}
    alike = {"home", "cache", "triton", "temporary", "working folder"}
    if write_confinement.can_make_namespaces():
        alike.add("shared memory")
    for name, cell in cells.items():
        place = name.partition("[")[2].removesuffix("]")
        expected = "broken" if first == 0 or place not in alike else "toothless"
        assert cell["verdict"] == expected, (name, cell["why"])
    assert not list(home.rglob("unfix-test-counter"))
    assert not list(prove.guards.rglob("unfix-test-counter"))


@needs_landlock
def test_a_folder_that_a_guard_may_not_write_is_named(prove: Prove) -> None:
    prove.write(COUNTS.replace("FIRST", "1"))
    cell = prove.cells("-k", "tmp")["counts[tmp]"]
    assert cell["verdict"] == "broken"
    assert "Permission denied: '/tmp/unfix-test-counter'" in cell["why"]


# Draws that depend on the toggled code

DRAWS = """
import random

@guards("toy-plain")
@given(data=st.data())
def test_draws_less(data):
    if buggy():
        data.draw(st.integers())
        pytest.fail("always")
    data.draw(st.text(min_size=3))
    assert random.random() < 0.0, "never asserted in a replay"

@guards("toy-plain")
@given(data=st.data())
def test_draws_from_another_range(data):
    low = 10 if buggy() else 100_000
    number = data.draw(st.integers(low, 10 * low))
    assert number > 90

@guards("toy-plain")
@given(data=st.data())
def test_assumes_otherwise(data):
    number = data.draw(st.integers(0, 99))
    if not buggy():
        from hypothesis import assume
        assume(number > 0)
    assert number

@guards("toy-plain")
@given(data=st.data())
def test_goes_on_where_the_other_stops(data):
    for _ in range(3):
        number = data.draw(st.integers(0, 99))
        assert forms.plain(number, 2) == 4 * number

@guards("toy-plain")
@given(data=st.data())
def test_asserts_behind_a_further_draw(data):
    data.draw(st.integers(0, 9))
    if not buggy():
        data.draw(st.integers(0, 9))
    assert False
"""


def test_an_example_that_is_drawn_otherwise_with_the_fix_in_is_no_pass(prove: Prove) -> None:
    prove.write(DRAWS.replace("random.random() < 0.0", "random.random() < 2.0"))
    cells = prove.cells()
    assert {name: cell["verdict"] for name, cell in cells.items()} == {
        "draws_less": "undrawn",
        "draws_from_another_range": "undrawn",
        "assumes_otherwise": "undrawn",
        "goes_on_where_the_other_stops": "proven",
        "asserts_behind_a_further_draw": "broken",
    }
    assert "nothing was compared" in cells["draws_less"]["why"]


# Failures outside of the call

OUTSIDE = """
@guards("toy-plain")
def test_in_a_thread():
    def run():
        assert not buggy(), "seen in a thread"
    thread = threading.Thread(target=run, name="the row's")
    thread.start()
    thread.join()

@guards("toy-plain")
def test_in_a_thread_on_both_sides():
    def run():
        raise RuntimeError("not of the bug")
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not buggy()

@pytest.fixture
def checked():
    seen = []
    yield seen
    assert not seen, "seen in teardown"

@guards("toy-plain")
def test_in_teardown(checked):
    if buggy():
        checked.append(1)
"""

OUTSIDE_VERDICTS = {
    "in_a_thread": ("broken", 'buggy: in the thread "the row\'s": seen in a thread'),
    "in_a_thread_on_both_sides": ("broken", 'in the thread "Thread-1 (run)": RuntimeError'),
    "in_teardown": ("broken", "buggy: in teardown: seen in teardown"),
}


def test_a_failure_in_teardown_or_in_a_thread_is_named(prove: Prove) -> None:
    prove.write(OUTSIDE)
    done = prove.run("--json")
    run = json.loads(done.stdout)
    assert done.returncode == 1
    for name, cell in by_guard(run).items():
        verdict, why = OUTSIDE_VERDICTS[name]
        assert (cell["verdict"], why in cell["why"]) == (verdict, True), cell["why"]
        assert why in done.stderr
    report = prove.again("report").stdout
    assert all(why in report for _, why in OUTSIDE_VERDICTS.values()), report


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--memory", "nan"), "--memory is a positive number, and not nan"),
        (("--memory", "inf"), "--memory is a positive number, and not inf"),
        (("--release", ""), "--release"),
        (("--release", ","), "--release"),
    ],
)
def test_a_wrong_option_is_a_wrong_call(prove: Prove, words: tuple[str, ...], says: str) -> None:
    prove.write("@guards('toy-plain')\ndef test_it():\n    assert not buggy()\n")
    done = prove.run(*words) if words[0] != "--release" else prove.again("prove", *words)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_of_an_empty_folder_says_its_reason_first(prove: Prove) -> None:
    done = prove.run()
    assert done.returncode == 1
    summary, first, *rest = done.stdout.strip().splitlines()
    assert summary.startswith("no cells")
    assert "pytest collects no guard" in first
    assert len(rest) < 5, done.stdout
