"""Each report of a run on the virtual GPU counts and lists the stand-ins that computed in it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import evaluated
import msgspec
import pytest
import sample
from rendering import to_text

from harness.core.outcomes import Verdict
from harness.store.fuzz.values import FuzzRun, FuzzTestResult
from harness.store.mutate.faults import MutationFault
from harness.store.mutate.values import FaultResult, GuardFacts, MutationRun
from harness.store.rehearse.values import DeploymentResult, RehearsalRun, UncheckedOperator
from harness.store.zoo.values import ArchitectureResult, ZooRun

WORDS = "2 operators of CUDA binaries had stand-ins, 5 calls: a.norm 2, b.gate 3"
PARTS: tuple[dict[str, int], ...] = ({"b.gate": 2}, {"a.norm": 2, "b.gate": 1})
RELEASED: dict[str, Any] = {"id": "r", "started": "2026-11-26", "release": "0.5.23"}


def make_evaluation(device: str) -> Any:
    evaluation = evaluated.make_fine_evaluation()
    evaluation.device = device
    for served, calls in zip(evaluation.served, PARTS, strict=False):
        served.operators = calls
    return evaluation


def make_mutation(device: str) -> Any:
    words = dict.fromkeys(("id", "operator", "module", "qualname", "path", "words"), "x")
    numbers = dict.fromkeys(("start", "end", "line", "first", "last"), 1)
    rest = {"kernel": False, "before": "a", "after": "b"}
    fault = msgspec.convert({**words, **numbers, **rest}, MutationFault)
    fate = FaultResult(fault, Verdict.UNREACHED, stand_ins=PARTS[1])
    guard = GuardFacts("g", "passed", 1.0, stand_ins=PARTS[0])
    settings = {"device": device}
    return MutationRun("r", "2026-11-26", "0.5.23", settings=settings, guards=[guard], fates=[fate])


def make_proof(device: str) -> Any:
    run = sample.make_run(2, device)
    run.cells[0].sides["fixed"].stand_ins = PARTS[0]
    run.cells[1].sides["buggy"].stand_ins = PARTS[1]
    return run


def make_fuzz_run(device: str) -> Any:
    tests = [FuzzTestResult(f"t::test_{n}", "1", stand_ins=PARTS[n]) for n in range(2)]
    return FuzzRun("fuzz-1", "2026-11-26", tests=tests, device=device)


def make_zoo_run(device: str) -> Any:
    rows = [ArchitectureResult(name, stand_ins=PARTS[n]) for n, name in enumerate("ab")]
    return ZooRun(card="H100", architectures=rows, **RELEASED)


def make_rehearsal(device: str) -> Any:
    found = [[UncheckedOperator(*call) for call in calls.items()] for calls in PARTS]
    deployments = [DeploymentResult("d", "m", "H200", 8, operators=one) for one in found]
    return RehearsalRun(deployments=deployments, **RELEASED)


ALL_FORMS = ("terminal", "markdown", "page")
RUNS: dict[str, tuple[Callable[[str], Any], tuple[str, ...]]] = {
    "prove": (make_proof, ALL_FORMS),
    "eval": (make_evaluation, ALL_FORMS),
    "mutate": (make_mutation, ALL_FORMS),
    "fuzz": (make_fuzz_run, ALL_FORMS[:1]),
    "zoo": (make_zoo_run, ALL_FORMS[:2]),
    "rehearse": (make_rehearsal, ALL_FORMS[:2]),
}
VIRTUAL_ALONE = ("zoo", "rehearse")  # kinds of runs that have no other device


def render_form(kind: str, form: str, run: Any) -> str:
    module = importlib.import_module(f"reports.{kind}.{form}")
    if form == "terminal":
        return to_text(module.print_run, run)
    return str((module.render_page if form == "page" else module.render_markdown)(run))


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_on_the_virtual_gpu_lists_them_in_each_form(kind: str) -> None:
    make_run, forms = RUNS[kind]
    for device in ("virtual", *(() if kind in VIRTUAL_ALONE else ("cuda", "cpu"))):
        for form in forms:
            text = render_form(kind, form, make_run(device)).replace("\\_", "_")
            assert (WORDS in text) is (device == "virtual"), (device, form)
