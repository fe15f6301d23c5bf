"""Guards that notice their bug, or do not, and then report something else."""

import contextlib
import os
import subprocess
import sys
import threading
import warnings

import pytest
from sglang import forms

from harness.store.mutate.faults import MutationFault

pytestmark = pytest.mark.guards("toy-plain")


def is_right():
    return forms.plain(1, 2) == 4


def test_asserts_nothing():
    is_right()


def test_catches_its_assertion():
    with contextlib.suppress(AssertionError):
        assert is_right()


async def test_coroutine():
    assert is_right()


def test_returns_a_coroutine():
    async def later():
        assert is_right()

    return later()


def test_yields():
    assert is_right()
    yield


class TestIt:
    def test_yields_in_a_class(self):
        assert is_right()
        yield


def test_exits_in_a_thread():
    thread = threading.Thread(target=lambda: sys.exit(not is_right()))
    thread.start()
    thread.join()


def test_fails_in_a_child():
    if not os.fork():
        os._exit(not is_right())
    os.wait()
    is_right()


@pytest.fixture
def runs_code_in_teardown():
    yield
    assert is_right()


def test_runs_the_code_in_teardown(runs_code_in_teardown):
    is_right()


def test_fails_in_a_destructor():
    class Late:
        def __del__(self):
            assert self.answer

    late = Late()
    late.answer = is_right()


def test_warns():
    if not is_right():
        warnings.warn("so it is", stacklevel=1)


def test_skips_when_buggy():
    if not is_right():
        pytest.skip("not today")


def test_says_n_a_when_buggy():
    from harness.guards import skip_not_applicable

    if not is_right():
        skip_not_applicable("it has gone")


@pytest.mark.xfail(strict=True)
def test_expected_to_fail():
    assert not is_right()


@pytest.mark.xfail(run=False)
def test_known_to_fail_and_not_run():
    assert is_right()


def test_expects_to_fail_when_buggy(request):
    if not is_right():
        request.node.add_marker(pytest.mark.xfail(reason="known"))
    assert is_right()


def test_closes_its_files_and_exits_when_buggy():
    if not is_right():
        os.closerange(0, 4096)
        os._exit(1)


def test_exits_by_name(request):
    is_right()
    if "buggy" in request.node.name:
        os.abort()


def test_has_a_name_error_when_buggy():
    if not is_right():
        no_such_name  # noqa: B018, F821


def test_raises_a_group_when_buggy():
    if not is_right():
        raise ExceptionGroup("all", [AssertionError("so it is")])


def test_replaces_the_hook_of_threads():
    threading.excepthook = lambda _: None
    thread = threading.Thread(target=test_has_a_name_error_when_buggy)
    thread.start()
    thread.join()


def test_makes_all_its_reports_red(request):
    class Plugin:
        @pytest.hookimpl(tryfirst=True, wrapper=True)
        def pytest_runtest_makereport(self):
            report = yield
            report.outcome, report.longrepr = "failed", "so it is"
            return report

    is_right()
    request.config.pluginmanager.register(Plugin())


def test_calls_the_code_of_another_toggle():
    assert forms.with_default(1)


def test_fails_an_assertion_of_the_harness():
    if not is_right():
        fault = MutationFault(
            "0", "drop", "m", "f", "m.py", False, 0, 1, 1, 1, 1, "before", "after", "words"
        )
        fault.apply_to("another text")


def test_leaves_a_process_that_fails():
    if not is_right():
        subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"], stderr=subprocess.DEVNULL)


def test_ends_the_session_when_buggy():
    if not is_right():
        pytest.exit("enough")


def test_fails_in_a_subtest_on_both_sides(subtests):
    with subtests.test():
        pytest.fail("always")
    assert is_right()


@pytest.mark.parametrize("number", [])
def test_has_no_parameters(number):
    assert is_right()
