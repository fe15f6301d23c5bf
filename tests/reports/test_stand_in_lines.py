"""Each report of a run on the virtual GPU counts and lists the stand-ins that computed in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import evaluated
import msgspec
import pytest
import sample
from rendering import to_text

from harness.store.mutate.faults import MutationFault
from harness.store.mutate.values import FaultOutcome, FaultResult, GuardFacts, MutationRun
from harness.store.rehearse.values import DeploymentResult, RehearsalRun, UncheckedOperator
from harness.store.zoo.values import ArchitectureResult, ZooRun
from reports.eval import markdown as eval_markdown
from reports.eval import page as eval_page
from reports.eval import terminal as eval_terminal
from reports.mutate import markdown as mutate_markdown
from reports.mutate import page as mutate_page
from reports.mutate import terminal as mutate_terminal
from reports.prove import markdown as prove_markdown
from reports.prove import page as prove_page
from reports.prove import terminal as prove_terminal
from reports.rehearse import markdown as rehearse_markdown
from reports.rehearse import terminal as rehearse_terminal
from reports.zoo import markdown as zoo_markdown
from reports.zoo import terminal as zoo_terminal

WORDS = "2 operators of CUDA binaries had stand-ins, 5 calls: a.norm 2, b.gate 3"
PARTS: tuple[dict[str, int], ...] = ({"b.gate": 2}, {"a.norm": 2, "b.gate": 1})


def make_evaluation(device: str) -> Any:
    evaluation = evaluated.make_fine_evaluation()
    evaluation.device = device
    for served, calls in zip(evaluation.served, PARTS, strict=False):
        served.operators = calls
    return evaluation


def make_mutation(device: str) -> Any:
    fault = msgspec.convert(
        {
            **dict.fromkeys(("id", "operator", "module", "qualname", "path", "words"), "x"),
            **dict.fromkeys(("start", "end", "line", "first", "last"), 1),
            "kernel": False,
            "before": "a",
            "after": "b",
        },
        MutationFault,
    )
    fate = FaultResult(fault, FaultOutcome.UNREACHED, stand_ins=PARTS[1])
    guard = GuardFacts("g", "passed", 1.0, stand_ins=PARTS[0])
    return MutationRun(
        "r", "2026-11-26", "0.5.23", settings={"device": device}, guards=[guard], fates=[fate]
    )


def make_proof(device: str) -> Any:
    run = sample.make_run(2, device)
    run.cells[0].sides["fixed"].stand_ins = PARTS[0]
    run.cells[1].sides["buggy"].stand_ins = PARTS[1]
    return run


RENDERERS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "prove": (
        make_proof,
        (lambda run: to_text(prove_terminal.print_run, run)),
        prove_markdown.render_markdown,
        prove_page.render_page,
    ),
    "eval": (
        make_evaluation,
        (lambda run: to_text(eval_terminal.print_run, run)),
        eval_markdown.render_markdown,
        eval_page.render_page,
    ),
    "mutate": (
        make_mutation,
        (lambda run: to_text(mutate_terminal.print_run, run)),
        mutate_markdown.render_markdown,
        mutate_page.render_page,
    ),
}


@pytest.mark.parametrize("kind", RENDERERS)
@pytest.mark.parametrize("device", ["virtual", "cuda", "cpu"])
def test_a_run_on_the_virtual_gpu_lists_them_in_each_form(kind: str, device: str) -> None:
    make_run, *renderers = RENDERERS[kind]
    for render in renderers:
        text = render(make_run(device)).replace("\\_", "_")
        assert (WORDS in text) is (device == "virtual")


def list_zoo_forms() -> list[str]:
    rows = [ArchitectureResult(name, stand_ins=PARTS[n]) for n, name in enumerate("ab")]
    run = ZooRun(id="r", started="2026-11-26", release="0.5.23", card="H100", architectures=rows)
    return [to_text(zoo_terminal.print_run, run), zoo_markdown.render_markdown(run)]


def list_rehearsal_forms() -> list[str]:
    deployments = [
        DeploymentResult("d", "m", "H200", 8, operators=list(map(make_operator, calls.items())))
        for calls in PARTS
    ]
    run = RehearsalRun(id="r", started="2026-11-26", release="0.5.23", deployments=deployments)
    return [to_text(rehearse_terminal.print_run, run), rehearse_markdown.render_markdown(run)]


def make_operator(call: tuple[str, int]) -> UncheckedOperator:
    return UncheckedOperator(*call)


@pytest.mark.parametrize("list_forms", [list_zoo_forms, list_rehearsal_forms])
def test_what_runs_on_the_virtual_gpu_alone_lists_them_beside_its_page(
    list_forms: Callable[[], list[str]],
) -> None:
    for text in list_forms():
        assert WORDS in text
