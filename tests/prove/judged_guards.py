"""Guards of every kind, and the verdict that each of them earns; `test_verdicts` runs them."""

from __future__ import annotations

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

@given(data=st.data())
def test_goes_on_where_the_other_stops(data):
    for _ in range(3):
        number = data.draw(st.integers(0, 99))
        assert forms.plain(number, 2) == 4 * number

@given(data=st.data())
def test_asserts_behind_a_further_draw(data):
    data.draw(st.integers(0, 9))
    if not buggy():
        data.draw(st.integers(0, 9))
    assert False

def run_in_thread(run, name):
    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()

def test_fails_in_a_thread():
    def run():
        assert not buggy(), "seen in a thread"
    run_in_thread(run, "the row's")

def test_fails_in_a_thread_on_both_sides():
    def run():
        raise RuntimeError("not of the bug")
    run_in_thread(run, None)
    assert not buggy()

@pytest.fixture
def checked():
    answers = []
    yield answers
    assert not any(answers), "seen in teardown"

def test_fails_in_teardown(checked):
    checked.append(buggy())

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

def test_skips():
    forms.plain(1, 2)
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

def test_exits():
    forms.plain(1, 2)
    sys.exit(0)

def test_ends_its_process():
    forms.plain(1, 2)
    os._exit(0)

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
    worker = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1]
    os.kill(int(worker), signal.SIGKILL)
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
    "goes_on_where_the_other_stops": "proven",
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
    "asserts_behind_a_further_draw": "broken",
    "fails_in_a_thread": "broken",
    "fails_in_a_thread_on_both_sides": "broken",
    "fails_in_teardown": "broken",
    "n_a": "n/a",
    "skips": "broken",
    "in_a_torn_fixture": "broken",
    "before_an_untidy_fixture": "broken",
    "n_a_before_an_untidy_fixture": "broken",
    "returns_in_a_child": "broken",
    "stumbles_when_buggy": "broken",
    "exits": "broken",
    "ends_its_process": "broken",
    "interrupts": "broken",
    "kills_its_parent": "broken",
    "kills_the_worker": "broken",
    "leaves_a_child_and_kills_its_parent": "broken",
    "does_not_hold_still": "flaky",
    "segfault": "segfault",
    "kills_itself": "signal",
    "ends_by_a_signal_without_a_name": "signal",
    "hangs": "hang",
    "hangs_when_buggy": "hang",
    "hangs_and_blocks_signals": "hang",
    "takes_all_memory": "out-of-memory",
    "a_child_takes_all_memory": "out-of-memory",
    "stale": "stale",
    "of_another_device": "n/a",
}
