"""A finding's launches, kept as data, are made again: in tensors of their size, by forks."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from running_here import violations, without_a_gpu  # noqa: F401

from harness.audit import device, loading
from harness.audit.confirming import PASSES, WRAPS, make_ready, outcome
from harness.audit.findings import Argument, Finding
from harness.audit.run import Audit, audit
from harness.audit.trials import TYPES
from harness.checking import Wrapped, virtual
from harness.compiled import CHECKS, LINE, launching
from harness.kernels import launched
from tests.audit.conftest import KERNELS, LIMITS, SIZES


@triton.jit
def two_lines(target, row, stride):
    tl.store(target + row * stride, 1)
    tl.store(target + row * 512, 2)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = tmp_path_factory.mktemp("release") / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "kernels.py").write_text(KERNELS)
    (package / "sizes.py").write_text(SIZES)
    return package.parents[1]


@pytest.fixture(scope="module")
def small(place: Path) -> Audit:
    make_ready()
    return audit(place, "small", LIMITS, (), 1, lambda said: None)


def found_in(audit: Audit, kernel: str) -> list[Finding]:
    return [each for one in audit.kernels if one.kernel == kernel for each in one.findings]


def of_its_size(one: Argument) -> torch.Tensor:
    kind = TYPES[one.kind[1:]]
    made = virtual((one.elements,), kind)
    if one.holds:
        few = min(one.elements, 1 << 16)
        made[:few] = torch.tensor(one.holds, dtype=kind).repeat(few)[:few]
    return made


@pytest.mark.parametrize(
    ("kernel", "findings"),
    [("row_in_32_bits", 1), ("carried", 1), ("where_another_is_empty", 1), ("two_lines", 2)],
)
def test_one_below_passes_and_at_it_wraps(
    small: Audit, place: Path, kernel: str, findings: int
) -> None:
    loaded = loading.World(place).kernel("sglang.srt.kernels", kernel)
    found = found_in(small, kernel)
    assert len(found) == findings
    for one in found:
        below, at = one.trials
        assert outcome(loaded, below, {one.at}, tensor=of_its_size) == PASSES
        assert outcome(loaded, at, {one.at}, tensor=of_its_size) == WRAPS


def test_a_tensor_is_as_large_as_one_below_comes_to(small: Audit) -> None:
    [one] = found_in(small, "row_in_32_bits")
    rows, width = 2**31 // 4096, 4096
    sizes = {each.name: each.elements for each in one.trials[0].arguments}
    assert one.threshold == rows + 1
    assert (rows - 1) * width < sizes["out_ptr"] <= (rows + 1) * width


@pytest.mark.parametrize(("row", "wrong"), [(1 << 20, [0]), (1 << 23, [0, 1])])
def test_wraps_of_one_line_alone_count(
    monkeypatch: pytest.MonkeyPatch, row: int, wrong: list[int]
) -> None:
    """Each line is told though the other one wraps as well; with neither meant, none is."""
    first = two_lines.starting_line_number + 2
    for number, line in enumerate((first, first + 1, first + 7)):
        found = violations(
            two_lines, torch.zeros(4, dtype=torch.int32), row, 4096, checks=(*CHECKS, LINE),
            line=line,
        )  # fmt: skip
        told = [one for one in found if isinstance(one, Wrapped)]
        assert [one.place.line for one in told if one.place] == [line] * (number in wrong)


# Forks


def crew_of(tell: Any, monkeypatch: pytest.MonkeyPatch, groups: int, seconds: float) -> list[Any]:
    monkeypatch.setattr(device, "_tell", tell)
    told = io.StringIO()
    finding: Any = None
    work = [[(2 * one, finding), (2 * one + 1, finding)] for one in range(groups)]
    crew = device._Crew(Path(), 2, Path(), told)
    crew.work(work, time.monotonic() + seconds)
    return sorted(json.loads(line) for line in told.getvalue().splitlines())


def test_each_finding_has_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(group: Any, place: Any, jobs: Any, turn: Any, out: Any) -> None:
        for number, _ in group:
            out.write(json.dumps(f"said {number}") + "\n")

    found = crew_of(tell, monkeypatch, 3, 60)
    assert found == [[number, f"said {number}"] for number in range(6)]


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (lambda: os._exit(1), "it ends the process"),
        (
            lambda: os.kill(os.getpid(), signal.SIGALRM),
            f"a step takes more than {device._SECONDS} s",
        ),
    ],
)
def test_a_finding_that_ends_its_fork_costs_no_other_anything(
    monkeypatch: pytest.MonkeyPatch, end: Any, why: str
) -> None:
    def tell(group: Any, place: Any, jobs: Any, turn: Any, out: Any) -> None:
        for number, _ in group:
            if number == 2:
                end()
            out.write(json.dumps("said") + "\n")

    found = dict(crew_of(tell, monkeypatch, 3, 60))
    assert found == dict.fromkeys(range(6), "said") | {2: why}


def test_what_loses_the_device_leaves_the_rest_to_another_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tell(group: Any, place: Any, jobs: Any, turn: Any, out: Any) -> None:
        out.write(json.dumps("said") + "\n")  # of the first one alone

    assert dict(crew_of(tell, monkeypatch, 2, 60)) == dict.fromkeys(range(4), "said")


def test_what_has_not_begun_in_time_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(group: Any, place: Any, jobs: Any, turn: Any, out: Any) -> None:
        time.sleep(60)

    found = crew_of(tell, monkeypatch, 3, 0.2)
    assert [words for _, words in found] == ["there was no time left for it"] * 6


def test_launches_on_a_gpu_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "launches"
    monkeypatch.setenv(launched.WRITES, str(file))
    launcher = launching.Launcher()
    monkeypatch.setattr(launcher, "refuses", lambda kernel: "nothing runs here")
    monkeypatch.setattr(launcher, "_before", lambda *given, **how: None)
    for row in (3, 5):
        launcher.run(two_lines, (torch.zeros(4), row, 1), (1,), False, {})
    [[one]] = launched.read(file).values()
    assert one.kinds == {"target": "*fp32", "row": "i32", "stride": "i32"}
