"""A device that forks cannot use: tests run in the worker itself, and a lost worker is replaced.

The toy has no device; its worker's environment claims one, and that a test lost it.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from unittest import mock

import pytest
from memory import write_toggle
from proving import Prove

from harness.guards.verdicts import REQUIRED_FAILURES
from harness.workers import device_tests

CONFTEST = """
import os, sys, types
from harness.core import device
device.get_device = lambda: "cuda"

violations = types.ModuleType("harness.sanitizer.violations.exceptions")
class CudaError(AssertionError): pass
class DeviceLost(BaseException): pass
violations.CudaError, violations.DeviceLost = CudaError, DeviceLost
sys.modules[violations.__name__] = violations
with open(os.path.join(os.environ["UNFIX_HOME"], "workers"), "a") as file:
    file.write(f"{os.getpid()}\\n")
"""
GUARDS = """
pytestmark = guards("toy-device")

def test_first():
    assert not buggy()

def test_loses_the_device_when_buggy():
    if buggy():
        violations = sys.modules["harness.sanitizer.violations.exceptions"]
        raise violations.CudaError("an illegal memory access")

def test_loses_the_device():
    forms.plain(1, 2)
    violations = sys.modules["harness.sanitizer.violations.exceptions"]
    raise violations.CudaError("an illegal memory access")

def test_segfault():
    forms.plain(1, 2)
    os.kill(os.getpid(), signal.SIGSEGV)

def test_segfault_when_buggy():
    if buggy():
        os.kill(os.getpid(), signal.SIGSEGV)

def test_hangs():
    forms.plain(1, 2)
    here_it_hangs()

def test_ends_its_process():
    forms.plain(1, 2)
    os._exit(0)

def test_unreached():
    pass

def test_last():
    assert not buggy()
"""
OF_THE_OTHER_DEVICE = """
@guards("toy-plain")
def test_of_the_other_device():
    assert not buggy()
"""
EXPECTED = {
    "first": "proven",
    "loses_the_device_when_buggy": "proven",
    "loses_the_device": "cuda-error",
    "segfault": "segfault",
    "segfault_when_buggy": "proven",
    "hangs": "hang",
    "ends_its_process": "broken",
    "unreached": "unreached",
    "last": "proven",
    "of_the_other_device": "n/a",
}


# A file stands for the GPU memory of tests; a test without its share fails in any of the ways in
# which Hypothesis and a guard may pass that on.
CROWDED = """
import contextlib, os, time
import pathlib
HELD = pathlib.Path(os.environ["UNFIX_HOME"], "held")
lacked = []  # a process counts all its life

def lacks():
    lacked.append(1)
    cuda = types.SimpleNamespace(
        is_initialized=lambda: True, synchronize=lambda: None, empty_cache=lambda: None,
        memory_stats=lambda: {"num_ooms": len(lacked)}, manual_seed_all=id,
    )
    generator = types.SimpleNamespace(manual_seed=id)
    sys.modules["torch"] = types.SimpleNamespace(cuda=cuda, default_generator=generator)
    errors = types.SimpleNamespace(CudaError=ArithmeticError, DeviceLost=ArithmeticError)
    sys.modules["harness.checking"] = errors

@contextlib.contextmanager
def half_of_the_memory():
    HELD.mkdir(exist_ok=True)
    mine = HELD / str(os.getpid())
    mine.touch()
    try:
        time.sleep(0.3)
        if len(list(HELD.iterdir())) > 1:
            lacks()
            raise AssertionError("the guard's own words")
        yield
    finally:
        mine.unlink()

sys.half_of_the_memory, sys.lacks = half_of_the_memory, lacks
"""
CROWD = """
import sys
pytestmark = guards("toy-device")

def test_one():
    with sys.half_of_the_memory():
        assert not buggy()

def test_two():
    with sys.half_of_the_memory():
        assert not buggy()

def test_takes_more_than_there_is():
    sys.lacks()
    forms.plain(1, 2)
    raise MemoryError
"""


def write_conftest(prove: Prove, text: str) -> None:
    prove.write(text, "conftest.py", head="")
    forms = ("sglang.forms:plain", "doubled = topk * 2", "doubled = 2")
    write_toggle(prove.toggles, "toy-device", *forms, devices=("cpu", "cuda"))


def test_a_test_that_finds_the_gpu_full_runs_again_alone(prove: Prove) -> None:
    prove.write(CROWD)
    write_conftest(prove, CONFTEST + CROWDED)
    cells = prove.cells("--device", "auto", "-j", "4")
    found = {name: cell["verdict"] for name, cell in cells.items()}
    assert found == {"one": "proven", "two": "proven", "takes_more_than_there_is": "out-of-memory"}


def test_a_test_that_costs_its_worker_costs_no_other_test(prove: Prove) -> None:
    prove.write(GUARDS)
    prove.write(OF_THE_OTHER_DEVICE, "test_other.py")
    write_conftest(prove, CONFTEST)
    cells = prove.cells("--device", "auto", "-j", "2", "--limit", "5")
    assert {name: cell["verdict"] for name, cell in cells.items()} == EXPECTED
    assert cells["of_the_other_device"]["why"] == "no bug of cuda"
    assert {cell["device"] for cell in cells.values()} == {"cuda"}
    assert cells["first"]["sides"]["fixed"]["reach"] == 1
    assert "an illegal memory access" in cells["loses_the_device"]["why"]
    assert "here_it_hangs" in cells["hangs"]["sides"]["fixed"]["detail"]
    # Each death costs one: CUDA errors, segfaults, hangs (both sides) and exits; a guard proven by
    # dying dies as often as it takes.
    deaths = 9 + 2 * (REQUIRED_FAILURES - 1)
    workers = (prove.root / "workers").read_text().split()
    assert 1 + deaths <= len(set(workers)) <= 1 + deaths + 3
    again = cells["loses_the_device_when_buggy"]["sides"]["buggy"]["again"]
    assert [each["outcome"] for each in again] == ["cuda-error"] * (REQUIRED_FAILURES - 1)


def test_a_pending_device_error_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_pending(error: Exception | None) -> str:
        synchronize = mock.Mock(side_effect=error)
        cuda = SimpleNamespace(is_initialized=lambda: True, synchronize=synchronize)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        return device_tests.read_pending_error()

    assert read_pending(None) == ""
    error = RuntimeError("CUDA error: an illegal memory access\nhints")
    assert read_pending(error).endswith("an illegal memory access")
    with pytest.raises(AttributeError):  # no error of the device
        read_pending(AttributeError("no such thing"))
