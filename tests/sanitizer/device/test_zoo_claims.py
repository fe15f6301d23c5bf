"""What a claim of the zoo says where a check raised, and where no graph was replayed."""

from __future__ import annotations

import ast
import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.compiler.errors import CompilationError

from harness import checking
from harness.core.outcomes import Verdict
from harness.runs.zoo import claims
from harness.runs.zoo.architecture import Architecture, KnownFailure
from harness.runs.zoo.claims import ArchitectureRun
from harness.runs.zoo.prompts import CONTINUATION
from harness.runs.zoo.reference_model import Tolerances, measure_error
from harness.store.zoo.values import ClaimResult, ZooClaim


class CaughtLaunches(list[Any]):
    """The launches of a check, with all errors that it raised."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Exception] = []


@pytest.fixture
def architecture_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArchitectureRun:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.5.23")
    one = ArchitectureRun(Architecture("llama", name="one"), tmp_path, graphs=True)
    one.check = SimpleNamespace(launches=CaughtLaunches())  # type: ignore[assignment]
    return one


def catch_error(architecture_run: ArchitectureRun, error: Exception) -> None:
    """Let a check raise an error that SGLang catches."""
    architecture_run.check.launches.errors.append(error)


def get_memory_claim(architecture_run: ArchitectureRun) -> ClaimResult:
    architecture_run._add_caught_errors()
    architecture_run._add_memory_claim()
    (claim,) = [one for one in architecture_run.result.claims if one.claim is ZooClaim.MEMORY]
    return claim


def test_a_report_that_sglang_caught_makes_the_memory_claim_fail(
    architecture_run: ArchitectureRun,
) -> None:
    assert architecture_run._test(
        ZooClaim.STARTS, lambda: catch_error(architecture_run, checking.Violation("k read p[8]"))
    )
    claim = get_memory_claim(architecture_run)
    assert claim.verdict is Verdict.FAILS
    assert claim.headline == "k read p[8]"


def test_a_report_that_was_raised_and_recorded_is_listed_once(
    architecture_run: ArchitectureRun,
) -> None:
    error = checking.Violation("k read p[8]")

    def launch() -> None:
        catch_error(architecture_run, error)
        raise error

    assert not architecture_run._test(ZooClaim.CHUNKS, launch)
    catch_error(
        architecture_run, checking.Violation("k read p[8]")
    )  # a later launch of the same kernel
    catch_error(architecture_run, checking.Violation("k read q[1]"))
    assert get_memory_claim(architecture_run).headline == "k read p[8]; k read q[1]"


def test_a_known_report_does_not_explain_another(architecture_run: ArchitectureRun) -> None:
    architecture_run.architecture.known["memory checks"] = KnownFailure("page.md", says="p[8]")
    catch_error(architecture_run, checking.Violation("k read p[8]"))
    assert get_memory_claim(architecture_run).verdict is Verdict.KNOWN
    architecture_run.result.claims.clear()
    catch_error(architecture_run, checking.Violation("k read q[1]"))
    claim = get_memory_claim(architecture_run)
    assert claim.verdict is Verdict.FAILS
    assert claim.headline == "k read q[1]; this is more than page.md explains"


def test_a_kernel_that_the_executor_refused_and_sglang_caught_is_not_tested(
    architecture_run: ArchitectureRun,
) -> None:
    catch_error(architecture_run, checking.UncheckableKernel("wide_kernel: no float8 here"))
    claim = get_memory_claim(architecture_run)
    assert claim.verdict is Verdict.UNTESTED
    assert claim.headline == "SGLang caught it: wide_kernel: no float8 here"
    assert architecture_run.result.refused == {"wide_kernel": "wide_kernel: no float8 here"}


def test_what_triton_itself_does_not_compile_fails_on_every_machine(
    architecture_run: ArchitectureRun,
) -> None:
    def launch() -> None:
        refusal = checking.UncheckableKernel("kernel: Triton refuses it")
        catch_error(architecture_run, refusal)
        raise refusal from CompilationError("x = None + 1", ast.parse("x"), "no type 'None'")

    assert not architecture_run._test(ZooClaim.STARTS, launch)
    (claim,) = architecture_run.result.claims
    assert claim.verdict is Verdict.FAILS
    assert claim.headline == "Triton does not compile it: no type 'None'"
    architecture_run._add_caught_errors()
    assert not architecture_run.result.refused  # no limit of the executor


def make_model(replays: int) -> SimpleNamespace:
    """Make a model whose computation replays a graph so many times."""
    static = torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static += 1

    def compute_logits(*_: object) -> list[torch.Tensor]:
        for _ in range(replays):
            graph.replay()
        return [torch.ones(1)]

    return SimpleNamespace(compute_logits=compute_logits, static=static)


@pytest.mark.parametrize("replays", [0, CONTINUATION - 1])
def test_a_decode_without_its_graph_fails_the_graph_claim(
    architecture_run: ArchitectureRun, replays: int
) -> None:
    architecture_run.batch = [torch.ones(1)]
    architecture_run.model = make_model(replays)  # type: ignore[assignment]
    assert not architecture_run._test(ZooClaim.GRAPH, architecture_run._compare_graph)
    (claim,) = architecture_run.result.claims
    assert claim.headline.endswith(f"{replays} graphs were replayed for {CONTINUATION} decodes")


def test_a_decode_of_graphs_alone_holds(architecture_run: ArchitectureRun) -> None:
    architecture_run.batch = [torch.ones(1)]
    architecture_run.model = make_model(CONTINUATION)  # type: ignore[assignment]
    assert architecture_run._test(ZooClaim.GRAPH, architecture_run._compare_graph)


@pytest.mark.parametrize("place", range(3))
def test_logits_that_are_no_numbers_differ_in_whichever_prompt(place: int) -> None:
    expected = [torch.ones(4, 9) for _ in range(3)]
    actual = [one.clone() for one in expected]
    actual[place][2, 5] = float("nan")
    assert measure_error(expected, actual) == float("inf")
    assert measure_error(actual, expected) == float("inf")


def test_rows_of_padding_are_left_out_and_nothing_else() -> None:
    assert measure_error([torch.ones(4, 9)], [torch.ones(4, 16)]) == 0
    for shape in ((1, 9), (3, 9), (4, 8)):
        with pytest.raises(ValueError, match="the logits are"):
            measure_error([torch.ones(4, 9)], [torch.ones(shape)])


@pytest.mark.parametrize("pair", [(0.4, 0.1), (0.1, 0.4), (float("inf"), 0.1), (0.1, float("nan"))])
def test_a_tolerance_within_which_other_logits_lie_compares_nothing(
    pair: tuple[float, float],
) -> None:
    with pytest.raises(ArithmeticError, match="nothing is compared"):
        Tolerances(*pair)


@pytest.mark.parametrize(
    ("ranks", "verdict"), [("", Verdict.HOLDS), ("tp 2", Verdict.FAILS), ("tp 4", Verdict.HOLDS)]
)
def test_a_reason_that_is_gone_is_red_where_it_names_the_ranks(
    ranks: str, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that rounds differently over tensors need not do so over stages."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.5.23")
    known = KnownFailure("rounding", at_most=1e-4, ranks=ranks)
    one = Architecture("llama", known={"several ranks": known})
    claim = ClaimResult(ZooClaim.RANKS, Verdict.HOLDS, error=0.0, tolerance=2e-5)
    assert claims.apply_known_reason(one, claim, "tp 2").verdict is verdict


@pytest.mark.parametrize("other", ["tp 4", "tp 2"])
def test_idle_ranks_have_a_reason_of_their_own_before_that_of_all_ranks(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.5.23")
    known = {
        "idle ranks": KnownFailure("no tokens", says="idle", ranks=other),
        "several ranks": KnownFailure("rounding", at_most=1e-4, ranks="tp 2"),
    }
    one = Architecture("llama", known=known)
    claim = ClaimResult(ZooClaim.IDLE, Verdict.FAILS, "off", error=5e-5, tolerance=2e-5)
    verdict = claims.apply_known_reason(one, claim, "tp 2").verdict
    assert verdict is (Verdict.KNOWN if other == "tp 4" else Verdict.FAILS)
