"""Races and uninitialized reads on a GPU: in sessions, in graphs, in whole processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kernels_to_check as known
import pytest
import torch
import triton
import triton.language as tl
from test_races_and_uninitialized_reads import in_turns, two_widths, under_a_lock

from harness import checking
from harness.checking import DataRace, UninitializedMemory
from harness.core import paths
from harness.sanitizer.watch.report_files import read_reports

FOLDERS = [Path(__file__).parents[1] / name for name in ("checked", "compiled")]

pytestmark = pytest.mark.needs_cuda


@triton.jit
def scatter_values(source, places, target, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + tl.load(places + at), tl.load(source + at))


@triton.jit
def neighbours(rows, width, BLOCK: tl.constexpr):
    """Replace each row by its own and the next one's sum, in place: a race."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    own = tl.load(rows + row * width + at, mask=at < width)
    beside = tl.load(rows + (row + 1) * width + at, mask=at < width)
    tl.store(rows + row * width + at, own + beside, mask=at < width)


@triton.jit
def in_place(rows, width, BLOCK: tl.constexpr):
    at = tl.program_id(0) * width + tl.arange(0, BLOCK)
    value = tl.load(rows + at, mask=tl.arange(0, BLOCK) < width)
    tl.store(rows + at, value + 1, mask=tl.arange(0, BLOCK) < width)


def check_on_gpu() -> Any:
    return checking.checked("cuda", all_checks=True)


def make_numbers(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (lambda: in_turns[(4,)](make_numbers(1280), 4, 2, WIDTH=64), "write different values"),
        (lambda: neighbours[(64,)](make_numbers(65 * 1000), 1000, BLOCK=1024), "reads|writes"),
    ],
)
def test_a_race_is_reported_with_both_programs(launch: Any, words: str) -> None:
    with pytest.raises(DataRace, match=words) as caught, check_on_gpu():
        launch()
    message = str(caught.value)
    assert message.count("program (") >= 3  # both, and the place
    assert "launched with " in message


def make_overlapping_tensors() -> tuple[torch.Tensor, torch.Tensor]:
    place = torch.zeros(1, dtype=torch.int64, device="cuda")
    return place, place.view(torch.int32)


def test_no_race_is_reported_where_there_is_none() -> None:
    with check_on_gpu():
        for _ in range(20):
            known.same_place[(300,)](make_numbers(1), 7, STEP=0)
            known.count_programs[(300,)](make_numbers(1))
            in_turns[(32,)](make_numbers(32 * 4 * 64), 4, 1, WIDTH=64)
            in_place[(500,)](make_numbers(500 * 1000), 1000, BLOCK=1024)
            under_a_lock[(20,)](torch.zeros(1, dtype=torch.int32, device="cuda"), make_numbers(1))
            known.read_beside[(2,)](make_numbers(2), make_numbers(2), 0)
            two_widths[(2,)](*make_overlapping_tensors(), 5 << 32)


def test_each_replay_of_a_graph_is_a_launch_of_its_own() -> None:
    count = 4096
    source, places = make_numbers(count) + 1, make_numbers(count)
    target = torch.zeros(count, dtype=torch.int32, device="cuda")
    with check_on_gpu() as session:
        scatter_values[(count // 64,)](source, places, target, BLOCK=64)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            scatter_values[(count // 64,)](source, places, target, BLOCK=64)
            scatter_values[(count // 64,)](source, places, target, BLOCK=64)
        for _ in range(20):  # the mapping of programs to elements differs each time
            places.copy_(torch.randperm(count, device="cuda"))
            source.copy_(torch.randperm(count, device="cuda"))
            graph.replay()
            session.raise_reported()
        places[5] = places[count - 1]
        graph.replay()
        with pytest.raises(
            DataRace, match=r"scatter_values: program .* write different values to target"
        ):
            session.raise_reported()
        session.discard_errors()


def test_a_race_among_a_million_programs_is_found() -> None:
    """There are more elements than a table has entries."""
    count = 1 << 24
    places, target = make_numbers(count), torch.zeros(count, dtype=torch.int32, device="cuda")
    with check_on_gpu() as session:
        scatter_values[(count // 16,)](make_numbers(count), places, target, BLOCK=16)
        places[100] = places[80]
        with pytest.raises(DataRace, match="index 80"):
            scatter_values[(count // 16,)](make_numbers(count), places, target, BLOCK=16)
        session.discard_errors()


def test_a_graph_reads_what_was_written_before_its_replay() -> None:
    with check_on_gpu() as session:
        source = torch.empty(64, dtype=torch.float32, device="cuda")
        target = torch.zeros_like(source)
        graph = torch.cuda.CUDAGraph()
        known.copy[(8,)](target, target.clone(), 64, 0, BLOCK=8)
        with torch.cuda.graph(graph):
            inner = torch.empty_like(source)
            known.copy[(8,)](source, inner, 64, 0, BLOCK=8)
            known.copy[(8,)](inner, target, 64, 0, BLOCK=8)
        graph.replay()
        with pytest.raises(UninitializedMemory, match="read uninitialized memory: source"):
            session.raise_reported()
        source.fill_(3)
        graph.replay()
        session.raise_reported()
        assert target.tolist() == [3.0] * 64
        session.discard_errors()


PLANTED = """
import torch
from harness.sanitizer.watch import activation
activation.install_checks()
import triton, test_gpu_shadows as here
known, numbers = here.known, here.make_numbers
pool = torch.empty(64, dtype=torch.float32, device="cuda")
pool[:32] = 1
target = torch.zeros(64, dtype=torch.float32, device="cuda")
known.copy[(4,)](pool, target, 32, 0, BLOCK=8)
known.same_place[(4,)](numbers(1), 7, STEP=0)
if WRONG:
    known.copy[(8,)](pool, target, 64, 0, BLOCK=8)
    known.same_place[(4,)](numbers(1), 7, STEP=1)
    kept = torch.empty_like(target)
    table = torch.tensor([kept.data_ptr()], device="cuda")
    known.through_table[(1,)](table, numbers(1))
torch.cuda.synchronize()
"""


@pytest.mark.parametrize("wrong", [False, True])
def test_a_whole_process_reports_both(wrong: bool, tmp_path: Path) -> None:
    done = run_checked_process(
        f"WRONG = {wrong}\n{PLANTED}", "bounds,overflow,uninitialized,races", tmp_path
    )
    found = sorted((one["kind"], one["kernel"]) for one in load_reports(tmp_path))
    expected = [
        ("DataRace", "same_place"),
        ("UninitializedMemory", "copy"),
        ("UninitializedMemory", "through_table"),
    ]
    assert found == (expected if wrong else []), done.stderr


INDUCTORS = """
import torch
from harness.sanitizer.watch import activation
activation.install_checks()

@torch.compile
def put(pool, rows, values):
    pool[rows] = values * 2
    return pool

def numbers(*given):
    return torch.tensor(given, device="cuda")

pool, values = torch.zeros(8, 512, device="cuda"), torch.ones(3, 512, device="cuda")
for turn in range(4):
    put(pool, numbers(turn, 5, 7), values)
torch.cuda.synchronize()
assert pool[[0, 1, 2, 3, 5, 7]].eq(2).all() and pool[[4, 6]].eq(0).all()
if WRONG:
    put(pool, numbers(1, 5, 9), values)
torch.cuda.synchronize()
print(pool[4].sum().item())
"""


@pytest.mark.parametrize("wrong", [False, True])
def test_what_inductor_compiled_is_checked_as_well(wrong: bool, tmp_path: Path) -> None:
    """Its own assertion is reported, and so is the access: the process continues."""
    done = run_checked_process(f"WRONG = {wrong}\n{INDUCTORS}", "bounds,overflow", tmp_path)
    assert done.stdout == "0.0\n"
    found = load_reports(tmp_path)
    kinds = {one["kind"] for one in found}
    assert kinds == ({"KernelAssertion", "OutOfBounds"} if wrong else set()), done.stderr
    assert all(one["kernel"].startswith("triton_") for one in found)
    made_of = "which TorchInductor made of put (<string>:"
    assert all(any(line.startswith(made_of) for line in one["details"]) for one in found)
    checked = read_reports(tmp_path)
    assert (checked.refusals, checked.failures, checked.dropped_reports) == ({}, [], {})
    assert checked.checked_launches >= 4 + wrong


def load_reports(folder: Path) -> list[Any]:
    files = folder.glob("*.reports")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def run_checked_process(code: str, checks: str, folder: Path) -> Any:
    """Run a process under check to its end."""
    folders = [Path(__file__).parent, *FOLDERS, paths.project_folder()]
    more = {
        "PYTHONPATH": os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")]),
        "UNFIX_CHECK": checks,
        "UNFIX_CHECK_REPORTS": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not done.returncode, done.stderr
    return done
