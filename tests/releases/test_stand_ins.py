"""Each stand-in of the virtual GPU computes what SGLang's own fallback computes, on drawn calls.

With the operators themselves `bench/stand_ins.py` compares them, on a card.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from fixtures.release_modules import first_module
from harness.core import paths

PROGRAM = """
import dataclasses, gc, json, sys
from harness.device import installation

gc.disable()  # a quarter of the imports' time
installation.install_device("H100")
import torch
from fixtures.stand_ins.comparing_runs import compare_operator, load_registries
from fixtures.stand_ins.natives import NATIVES
from fixtures.stand_ins.operator_calls import OPERATORS
from fixtures.stand_ins.references import NATIVE, References
from harness.device.stand_ins import STAND_INS

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
    "undrawn": sorted(STAND_INS.keys() - OPERATORS.keys()),
    "unknown": sorted((OPERATORS.keys() | NATIVES.keys()) - STAND_INS.keys()),
}))
"""
pytestmark = pytest.mark.skipif(
    not hasattr(first_module("sglang.kernels.ops.attention.clamp_position"), "ClampPositionOp"),
    reason="the fallbacks are compared as the newest release has them",
)


@cache
def compare_all() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=paths.project_folder(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_stand_ins_and_fallbacks_agree_on_drawn_calls() -> None:
    found = compare_all()["right"]
    assert {name: words for name, (_, words) in found.items() if words} == {}
    # Of 40 calls; a fallback leaves open which of equal scores it takes, so fewer are compared.
    assert {name: agreed for name, (agreed, _) in found.items() if agreed < 6} == {}


def test_a_wrong_stand_in_is_named_with_a_call() -> None:
    found = compare_all()["wrong"]
    assert [name for name, (_, words) in found.items() if not words] == []
    (_, (words, *_)) = found["sgl_kernel.rmsnorm"]
    assert "tensor 1" in words  # the weight, which a norm must leave alone


def test_calls_are_drawn_for_each_stand_in() -> None:
    assert compare_all()["undrawn"] == []
    assert compare_all()["unknown"] == []
