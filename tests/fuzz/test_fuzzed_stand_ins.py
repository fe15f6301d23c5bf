"""A fuzzing run counts and lists the stand-ins of the virtual GPU that computed in its examples."""

from __future__ import annotations

from nights import Nights, by_test

from harness.store.database import Store
from harness.store.fuzz.table import FuzzTable

SUITE = """
from harness.sanitizer.device.record import RECORD

@given(number=st.integers(0, 10**9))
def test_computes(number):
    RECORD.count_stand_in("sgl_kernel.toy")
    RECORD.count_stand_in("sgl_kernel.toy")

@given(number=st.integers(0, 10**9))
def test_computes_nothing(number):
    pass
"""


def test_each_test_has_the_calls_of_all_its_slices(nights: Nights) -> None:
    nights.write(SUITE)
    night = nights.night(code=0, seconds=2)
    tests = by_test(night)
    computes = tests["computes"]
    assert computes["slices"] > 1
    assert computes["stand_ins"] == {"sgl_kernel.toy": 2 * computes["examples"]}
    assert not tests["computes_nothing"]["stand_ins"]
    (stored,) = FuzzTable(Store(nights.root / ".unfix" / "runs.sqlite")).list_runs()
    assert stored.device == "cpu"
    assert [one.stand_ins for one in stored.tests] == [one["stand_ins"] for one in night["tests"]]
