"""A mutation run counts the stand-ins of the virtual GPU that computed in guards, by fault."""

from __future__ import annotations

from toy_release import Mutate, by_id

GUARDS = """
from harness.sanitizer.device.record import RECORD
from sglang.srt import sizes

def test_once():
    RECORD.count_stand_in("sgl_kernel.toy")
    assert sizes.width(2, 3) == 6

def test_twice():
    for _ in range(2):
        RECORD.count_stand_in("sgl_kernel.other")
    assert sizes.width(1, 1) == 1
"""


def test_each_guard_and_each_fault_has_the_calls_of_its_runs(mutate: Mutate) -> None:
    mutate.guards.write_text(GUARDS)
    killed_by_both = mutate.fault("width", "rows * topk", "0")
    survives = mutate.fault("width", "rows * topk", "topk * rows")
    run = mutate.run()
    guards = {guard["guard"].rpartition("::")[2]: guard["stand_ins"] for guard in run["guards"]}
    assert guards == {"test_once": {"sgl_kernel.toy": 1}, "test_twice": {"sgl_kernel.other": 2}}
    fates = by_id(run)
    assert fates[killed_by_both.id]["stand_ins"] in guards.values()  # it ended with the first one
    both = {"sgl_kernel.toy": 1, "sgl_kernel.other": 2}
    assert fates[survives.id]["stand_ins"] in (both, {name: 2 * n for name, n in both.items()})
    stored = mutate.load_newest()
    assert {one.fault.id: one.stand_ins for one in stored.fates} == {
        name: fate["stand_ins"] for name, fate in fates.items()
    }
    assert [guard.stand_ins for guard in stored.guards] == list(guards.values())
    (known, *_) = mutate.run()["guards"]  # its lines are recorded: it does not run again
    assert known["stand_ins"] == guards["test_once"]
