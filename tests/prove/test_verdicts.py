"""Every verdict, each from a guard that earns it, over a release of our own with planted bugs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from calling import is_alive, wait_until
from proving import Prove

GUARDS = """
pytestmark = guards("toy-plain")

@given(rows=st.integers(0, 99), topk=st.integers(0, 99))
def test_proven(rows, topk):
    assert forms.plain(rows, topk) == rows * topk * 2

@pytest.mark.parametrize("n", [1, -1, "-", "--", "a[b", "toy-plain"])
def test_alike(n):
    assert not buggy() or n == -1

class TestIt:
    @given(rows=st.integers(0, 9))
    def test_given_in_a_class(self, rows):
        assert forms.plain(rows, 3) == rows * 6

    def test_fails_by_pytest(self):
        if buggy():
            pytest.fail("so it is")

    def test_raises_when_fixed(self):
        with pytest.raises(ZeroDivisionError):
            1 / (forms.plain(1, 2) - 4)

def test_segfault_when_buggy():
    if buggy():
        os.kill(os.getpid(), signal.SIGSEGV)

def test_abort_when_buggy():
    if buggy():
        os.abort()

def test_toothless():
    forms.plain(1, 2)

def test_unreached():
    assert True

def test_unreached_and_failing():
    assert False

def test_reached_on_one_side():
    other = forms.plain if os.environ.get("never") else None
    if other:
        other(1, 2)

@given(rows=st.integers(0, 9))
def test_wrong_as_fixed(rows):
    forms.plain(1, 2)
    assert rows < 5

def test_n_a():
    skip_not_applicable("no such backend")

def test_n_a_when_buggy():
    if buggy():
        skip_not_applicable("it has gone")

def test_skips():
    forms.plain(1, 2)
    pytest.skip("not today")

def test_skips_when_buggy():
    if buggy():
        pytest.skip("not today")

@pytest.fixture
def torn():
    raise AssertionError("the fixture is torn")

def test_in_a_torn_fixture(torn):
    forms.plain(1, 2)

@pytest.fixture
def untidy():
    yield
    raise RuntimeError("the fixture does not come down")

def test_before_an_untidy_fixture(untidy):
    assert not buggy()

def test_n_a_before_an_untidy_fixture(untidy):
    skip_not_applicable("nothing")

def test_stumbles_when_buggy():
    if buggy():
        raise RuntimeError("not an assertion")

def test_imports_nothing_when_buggy():
    if buggy():
        import no_such_module

def test_exits():
    forms.plain(1, 2)
    sys.exit(0)

def test_ends_its_process():
    forms.plain(1, 2)
    os._exit(0)

def test_ends_its_process_when_buggy():
    if buggy():
        os._exit(1)

def test_ends_the_session():
    forms.plain(1, 2)
    pytest.exit("enough")

def test_interrupts():
    forms.plain(1, 2)
    raise KeyboardInterrupt

def test_segfault():
    forms.plain(1, 2)
    os.kill(os.getpid(), signal.SIGSEGV)

def test_kills_itself():
    forms.plain(1, 2)
    os.kill(os.getpid(), signal.SIGKILL)

def test_ends_by_a_signal_without_a_name():
    buggy()
    os.kill(os.getpid(), 40)

def test_returns_in_a_child():
    child = os.fork()
    if not child:
        return
    os.waitpid(child, 0)
    time.sleep(0.2)
    buggy()
    os._exit(0)

def test_hangs():
    forms.plain(1, 2)
    here_it_hangs()

def test_hangs_when_buggy():
    if buggy():
        here_it_hangs()

def test_hangs_and_blocks_signals():
    forms.plain(1, 2)
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    here_it_hangs()

def test_takes_all_memory():
    forms.plain(1, 2)
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1) * (16 << 20)))
        time.sleep(0.02)

def test_a_child_takes_all_memory():
    forms.plain(1, 2)
    subprocess.run([sys.executable, "-c",
        "import time; x = bytearray(b'1') * (700 << 20); time.sleep(60)"])

def test_closes_every_pipe():
    os.closerange(0, 4096)
    assert not buggy()

def test_kills_its_parent():
    forms.plain(1, 2)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)

def test_kills_the_worker():
    forms.plain(1, 2)
    keeper = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1]
    os.kill(int(keeper), signal.SIGKILL)
    time.sleep(60)

def test_leaves_a_thread():
    threading.Thread(target=here_it_hangs).start()
    assert not buggy()

def test_leaves_children():
    words = "echo $$; (setsid sh -c 'echo $$; sleep 999') & sleep 999"
    before = len(notes("pids").split())
    subprocess.Popen(["sh", "-c", words], start_new_session=True, stdout=FILES["pids"])
    while len(notes("pids").split()) < before + 2:
        time.sleep(0.01)
    assert not buggy()

def test_leaves_a_child_and_kills_its_parent():
    words = ["setsid", "sh", "-c", "echo $$; exec sleep 999"]
    before = notes("orphans")
    subprocess.Popen(words, stdout=FILES["orphans"])
    while notes("orphans") == before:
        time.sleep(0.01)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)

def test_does_not_hold_still():
    forms.plain(1, 2)
    fails_once()

seen = []

@given(number=st.integers())
def fails_once(number):
    seen.append(number)
    assert len(seen) > 1
"""
OF_OTHER_TOGGLES = """
@guards("toy-stale")
def test_stale():
    assert not buggy()

@guards("toy-npu")
def test_of_another_device():
    assert not buggy()

@guards("toy-plain", "toy-default")
def test_of_two():
    assert not buggy() and forms.with_default(1) == 8
"""
STALE = (
    TOGGLE := """
id: {name}
title: a toggle made for a test
family: toy
symptom: crash
devices: [{device}]
variants:
  - releases: ">=1.0"
    target: sglang.forms:plain
    edits:
      - fixed: {fixed}
        buggy: doubled = 2
"""
).format(name="toy-stale", device="cpu", fixed="nothing_like = it")

EXPECTED = {
    "proven": "proven",
    "alike[1]": "proven",
    "alike[-1]": "toothless",
    "alike[-]": "proven",
    "alike[--]": "proven",
    "alike[a[b]": "proven",
    "alike[toy-plain]": "proven",
    "given_in_a_class": "proven",
    "fails_by_pytest": "proven",
    "raises_when_fixed": "proven",
    "segfault_when_buggy": "proven",
    "abort_when_buggy": "proven",
    "closes_every_pipe": "proven",
    "leaves_a_thread": "proven",
    "leaves_children": "proven",
    "toothless": "toothless",
    "unreached": "unreached",
    "unreached_and_failing": "unreached",
    "reached_on_one_side": "unreached",
    "wrong_as_fixed": "broken",
    "n_a": "n/a",
    "n_a_when_buggy": "broken",
    "skips": "broken",
    "skips_when_buggy": "broken",
    "in_a_torn_fixture": "broken",
    "before_an_untidy_fixture": "broken",
    "n_a_before_an_untidy_fixture": "broken",
    "returns_in_a_child": "broken",
    "stumbles_when_buggy": "broken",
    "imports_nothing_when_buggy": "broken",
    "exits": "broken",
    "ends_its_process": "broken",
    "ends_its_process_when_buggy": "broken",
    "ends_the_session": "broken",
    "interrupts": "broken",
    "kills_its_parent": "broken",
    "kills_the_worker": "broken",
    "leaves_a_child_and_kills_its_parent": "broken",
    "does_not_hold_still": "flaky",
    "segfault": "segfault",
    "kills_itself": "killed",
    "ends_by_a_signal_without_a_name": "killed",
    "hangs": "hang",
    "hangs_when_buggy": "hang",
    "hangs_and_blocks_signals": "hang",
    "takes_all_memory": "out-of-memory",
    "a_child_takes_all_memory": "out-of-memory",
    "stale": "stale",
    "of_another_device": "n/a",
}
Cells = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def prove(make_prove: Callable[[], Prove]) -> Prove:
    return make_prove()


@pytest.fixture(scope="module")
def finished_prove(prove: Prove) -> tuple[int, dict[str, Any]]:
    prove.write(GUARDS)
    prove.write(OF_OTHER_TOGGLES, "test_other.py")
    (prove.toggles / "toy-stale.yaml").write_text(STALE)
    of_npu = TOGGLE.format(name="toy-npu", device="npu", fixed="doubled = topk * 2")
    (prove.toggles / "toy-npu.yaml").write_text(of_npu)
    # The seed orders the sides: with this one the cell `proven` runs the buggy side first.
    return run_guards(prove, "--memory", "0.5", "-k", "not hangs")


@pytest.fixture(scope="module")
def hanging_prove(
    finished_prove: tuple[int, dict[str, Any]], prove: Prove
) -> tuple[int, dict[str, Any]]:
    """Only guards that hang have a short limit: on a busy machine others could exceed it."""
    return run_guards(prove, "--limit", "6", "-k", "hangs")


def run_guards(prove: Prove, *words: str) -> tuple[int, dict[str, Any]]:
    ended = prove.run("--json", "-j", "3", "--seed", "1", *words)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


@pytest.fixture(scope="module")
def cells(
    finished_prove: tuple[int, dict[str, Any]], hanging_prove: tuple[int, dict[str, Any]]
) -> Cells:
    return {
        cell["guard"].partition("::test_")[2]: cell
        for _, run in (finished_prove, hanging_prove)
        for cell in run["cells"]
        if not cell["guard"].endswith("of_two")
    }


def test_each_guard_gets_the_verdict_it_earned(cells: Cells) -> None:
    assert {name: cell["verdict"] for name, cell in cells.items()} == EXPECTED


def test_the_run_is_red_and_lists_each_problem(
    finished_prove: tuple[int, dict[str, Any]], hanging_prove: tuple[int, dict[str, Any]]
) -> None:
    for code, run in (finished_prove, hanging_prove):
        assert code == 1
        assert not run["green"]
        assert run["status"] == "finished"
    good = ("proven", "n/a")
    problems = finished_prove[1]["problems"] + hanging_prove[1]["problems"]
    assert len(problems) == sum(verdict not in good for verdict in EXPECTED.values())


def test_a_guard_of_two_toggles_is_two_cells(finished_prove: tuple[int, dict[str, Any]]) -> None:
    found = [cell for cell in finished_prove[1]["cells"] if cell["guard"].endswith("of_two")]
    assert {(cell["toggle"], cell["verdict"]) for cell in found} == {
        ("toy-plain", "proven"),
        ("toy-default", "proven"),
    }


def test_a_proof_shows_its_counterexample_its_reach_and_how_to_run_it_again(cells: Cells) -> None:
    fixed, buggy = cells["proven"]["sides"]["fixed"], cells["proven"]["sides"]["buggy"]
    assert fixed["outcome"] == "passed"
    assert fixed["reach"] == 1 + 40, "the other side's example ahead, and its own"
    assert buggy["reach"] > 0
    assert any("rows=1" in line for line in buggy["example"])
    assert "--replay" in buggy["replay"]
    assert "forms.plain(rows, topk) == rows * topk * 2" in buggy["detail"]


@pytest.mark.parametrize(
    ("guard", "side", "words"),
    [
        ("segfault_when_buggy", "buggy", "segmentation fault (SIGSEGV)"),
        ("abort_when_buggy", "buggy", "aborted (SIGABRT)"),
        ("ends_by_a_signal_without_a_name", "fixed", "signal 40"),
        ("hangs", "fixed", "it did not end within 6 s"),
        ("takes_all_memory", "fixed", "more than 0.5 GiB"),
        ("ends_its_process", "fixed", "exit code 0"),
        ("in_a_torn_fixture", "fixed", "in setup: the fixture is torn"),
        ("before_an_untidy_fixture", "fixed", "in teardown: RuntimeError"),
        ("stumbles_when_buggy", "buggy", "RuntimeError: not an assertion"),
        ("kills_its_parent", "fixed", "supervisor ended: SIGKILL"),
        ("kills_the_worker", "fixed", "run alone, it ended its worker"),
        ("does_not_hold_still", "fixed", "Flaky"),
    ],
)
def test_a_headline_says_why(cells: Cells, guard: str, side: str, words: str) -> None:
    assert words in cells[guard]["sides"][side]["headline"]


def test_the_failure_of_the_fixed_side_stands_first(cells: Cells) -> None:
    assert cells["wrong_as_fixed"]["why"].startswith("fixed: assert 5 < 5")


def test_a_hang_and_a_crash_say_where(cells: Cells) -> None:
    assert "here_it_hangs" in cells["hangs"]["sides"]["fixed"]["detail"]
    assert "test_segfault_when_buggy" in cells["segfault_when_buggy"]["sides"]["buggy"]["detail"]


def test_a_test_that_died_keeps_its_reach(cells: Cells) -> None:
    for guard in ("segfault", "kills_itself", "hangs", "takes_all_memory"):
        assert cells[guard]["sides"]["fixed"]["reach"] == 1


def test_no_process_survives_the_run(cells: Cells, prove: Prove) -> None:
    assert cells["leaves_children"]["sides"]["fixed"]["left"] >= 2
    files = [prove.shared / name for name in ("pids", "orphans")]
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    assert len(pids) >= 3 + 2
    wait_until(lambda: not any(map(is_alive, pids)))
