"""A real release takes its CUDA path on the virtual GPU, in a process that starts on it.

On the newest release each stand-in then computes what SGLang's own fallback computes, on drawn
calls. `bench/cases/stand_ins.py` compares stand-ins with the operators themselves, on a card.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from fixtures.release_modules import first_module
from fixtures.stand_ins import judges
from harness.core import device, paths
from harness.patching.child_environment import STARTUP_FOLDER
from harness.store.record_files import read_record_text

CARD_RECORD = paths.project_folder() / "bench" / "recorded" / "stand-ins-h100.json.xz"

DEVICE_PROGRAM = """
import gc
gc.disable()  # a quarter of the imports' time
import dataclasses, json, torch
from sglang.srt import utils
import sglang.srt.model_executor.model_runner
from sgl_kernel import rmsnorm
norm = rmsnorm(torch.ones(2, 8, device="cuda"), torch.full((8,), 3.0, device="cuda"))
from harness.sanitizer.device.record import RECORD
print(json.dumps([bool(utils.is_cuda()), utils.is_cpu(), norm.mean().item(), RECORD.as_dict()]))
"""
COMPARISON_PROGRAM = """
from fixtures.stand_ins import judges
from fixtures.stand_ins.comparing_runs import compare_operator, load_registries
from fixtures.stand_ins.natives import NATIVES
from fixtures.stand_ins.operator_calls import OPERATORS
from fixtures.stand_ins.references import NATIVE, References
from harness.sanitizer.device.stand_ins import STAND_INS

torch.set_num_threads(1)
load_registries()
references = References(NATIVE)

def compare(name):
    agreement = compare_operator(name, references, 40)
    return [agreement.agreed, agreement.differences + agreement.refusals]

def compare_with_wrong(name, spoil):
    right = STAND_INS[name]

    def function(*args, **options):
        result = right.function(*args, **options)
        spoil(args, result)
        return result

    STAND_INS[name] = dataclasses.replace(right, function=function)
    found = compare(name)
    STAND_INS[name] = right
    return found

def do_nothing(*args):
    pass

def double_last_row(args, result):
    result[-1:] *= 2

def overflow_once(args, result):
    result[-1:, -1:] = float("inf")

def write_input(args, result):
    args[1][:1] += 1  # a weight

def swap_experts(args, result):
    args[1][:, :2] = args[1][:, :2].flip(1)

def rotate_once_more(args, result):
    STAND_INS["sgl_kernel.rotary_embedding"].function(*args)

WRONG = {
    "sgl_kernel.silu_and_mul": double_last_row,
    "sgl_kernel.gelu_and_mul": overflow_once,
    "sgl_kernel.rmsnorm": write_input,
    "sgl_kernel.topk_softmax": swap_experts,
    "jit:rotary_embedding.rotary_embedding": rotate_once_more,
}
print(json.dumps({
    "right": {name: compare(name) for name in NATIVES},
    "wrong": {name: compare_with_wrong(name, spoil) for name, spoil in WRONG.items()},
    "judges": {name: judges.list_judges(name) for name in OPERATORS},
    "formulas": {
        name: [sorted(judges.list_formulas(function, name))
               for function in (judges.get_stand_in(name), NATIVES.get(name, do_nothing))]
        for name in {*NATIVES, *judges.ALIKE, *judges.ALIKE.values()}
    },
    "undrawn": sorted(STAND_INS.keys() - OPERATORS.keys()),
    "unknown": sorted((OPERATORS.keys() | NATIVES.keys()) - STAND_INS.keys()),
}))
"""
HAS_FALLBACKS = hasattr(
    first_module("sglang.kernels.ops.attention.clamp_position"), "ClampPositionOp"
)
needs_fallbacks = pytest.mark.skipif(
    not HAS_FALLBACKS, reason="the fallbacks are compared as the newest release has them"
)


@cache
def run_on_device() -> list[Any]:
    """Run the programs that this release has in one process; return what each has printed."""
    environment = {
        **os.environ,
        device.DEVICE_VARIABLE: device.VIRTUAL,
        "PYTHONPATH": f"{STARTUP_FOLDER}:{paths.project_folder()}",
    }
    programs = [DEVICE_PROGRAM, *([COMPARISON_PROGRAM] if HAS_FALLBACKS else [])]
    done = subprocess.run(
        [sys.executable, "-c", "".join(programs)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()[-len(programs) :]]


def test_sglang_finds_cuda_and_computes_with_stand_ins() -> None:
    is_cuda, is_cpu, mean, record = run_on_device()[0]
    assert (is_cuda, is_cpu) == (True, False)
    assert abs(mean - 3) < 1e-4
    assert record["stand_ins"] == {"sgl_kernel.rmsnorm": 1}
    assert record["refusals"] == {}
    assert any(question.startswith("is_cuda() is ") for question in record["branches"])


@needs_fallbacks
def test_stand_ins_and_fallbacks_agree_on_drawn_calls() -> None:
    found = run_on_device()[1]["right"]
    assert {name: words for name, (_, words) in found.items() if words} == {}
    # Of 40 calls; a fallback leaves open which of equal scores it takes, so fewer are compared.
    assert {name: agreed for name, (agreed, _) in found.items() if agreed < 6} == {}


@needs_fallbacks
def test_a_wrong_stand_in_is_named_with_a_call() -> None:
    found = run_on_device()[1]["wrong"]
    assert [name for name, (_, words) in found.items() if not words] == []
    (_, (words, *_)) = found["sgl_kernel.rmsnorm"]
    assert "tensor 1" in words  # the weight, which a norm must leave alone


@needs_fallbacks
def test_calls_are_drawn_for_each_stand_in() -> None:
    found = run_on_device()[1]
    assert (found["undrawn"], found["unknown"]) == ([], [])


@needs_fallbacks
def test_no_stand_in_is_judged_by_its_own_code() -> None:
    """A judge runs no formula of a stand-in; one that is judged as another takes that one's."""
    found = run_on_device()[1]
    own = {name: pair[0] for name, pair in found["formulas"].items()}
    assert [name for name, functions in own.items() if not functions] == []
    assert {name: pair[1] for name, pair in found["formulas"].items() if pair[1]} == {}
    others = {name: set(own[name]) & set(own[other]) for name, other in judges.ALIKE.items()}
    assert [name for name, functions in others.items() if not functions] == []


@needs_fallbacks
def test_each_stand_in_has_a_judge() -> None:
    found = run_on_device()[1]["judges"]
    outcomes = read_card_record()
    by_card = [name for name, kinds in found.items() if kinds == [judges.Judge.CARD]]
    assert [
        name for name in by_card if outcomes.get(judges.ALIKE.get(name, name)) != "agrees"
    ] == []
    unjudged = [name for name, kinds in found.items() if kinds == [judges.Judge.NOBODY]]
    assert sorted(unjudged) == sorted(judges.UNJUDGED)


def read_card_record() -> dict[str, str]:
    """Return how each stand-in compared with its operator on a card."""
    record = json.loads(read_record_text(CARD_RECORD))
    return {name: one["outcome"] for name, one in record["stand_ins"].items()}
