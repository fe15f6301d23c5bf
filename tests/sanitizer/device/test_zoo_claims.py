"""What a claim of the zoo says where a check raised, and where no graph was replayed."""

from __future__ import annotations

import ast
import contextlib
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
from harness.runs.zoo.claims import AbsentModel, ArchitectureRun, GraphCaptureFailed
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


@pytest.mark.parametrize(
    ("name", "is_refused", "error"),
    [
        ("NobodysForCausalLM", True, AbsentModel),
        ("NobodysForCausalLM", False, AbsentModel),
        ("LlamaForCausalLM", True, ImportError),
        # A part of SGLang's own class is taken from the fallback: the failure stays what it is.
        ("LlamaForCausalLM", False, GraphCaptureFailed),
    ],
)
def test_a_model_without_code_in_sglang_is_absent_and_one_with_code_is_not(
    architecture_run: ArchitectureRun,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    is_refused: bool,
    error: type[Exception],
) -> None:
    models = tmp_path / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (models / "llama.py").write_text("class LlamaForCausalLM: ...\n")

    fallback: dict[str, Any] = {"__name__": "sglang.srt.models.transformers"}
    exec("def load(words):\n    raise ValueError(words)", fallback)
    words = f"{name} has no SGlang implementation" if is_refused else "No module named 'embed_out'"

    def refuse(*_: object) -> None:
        if is_refused:
            raise ValueError(words)
        fallback["load"](words)

    monkeypatch.setattr(claims, "serve_model", refuse)
    architecture_run.reference = SimpleNamespace(architectures=[name], adapters=[])  # type: ignore[assignment]
    architecture_run.check.ignore_races = contextlib.nullcontext  # type: ignore[method-assign]
    monkeypatch.setattr(claims, "find_installed_tree", lambda: SimpleNamespace(folder=tmp_path))
    with pytest.raises(error):
        architecture_run._start()


@pytest.mark.parametrize(
    ("function", "error"), [("load_model", ValueError), ("capture_graphs", GraphCaptureFailed)]
)
def test_a_model_that_does_not_load_is_not_loaded_again_without_graphs(
    architecture_run: ArchitectureRun,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    error: type[Exception],
) -> None:
    runner: dict[str, Any] = {"__name__": "sglang.srt.model_executor.model_runner"}
    exec(f"def {function}():\n    raise ValueError('no attribute')", runner)
    monkeypatch.setattr(claims, "serve_model", lambda *_: runner[function]())
    architecture_run.reference = SimpleNamespace(adapters=[])  # type: ignore[assignment]
    architecture_run.check.ignore_races = contextlib.nullcontext  # type: ignore[method-assign]
    with pytest.raises(error):
        architecture_run._start()


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


def test_other_orders_of_work_have_their_own_tolerance(
    architecture_run: ArchitectureRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    tolerances = [torch.zeros(1)], Tolerances(reference=0.25, order=0.1)
    architecture_run.reference = SimpleNamespace(measure_tolerances=lambda *_: tolerances)  # type: ignore[assignment]
    architecture_run.dtype = torch.float16
    architecture_run.batch = [torch.zeros(1)]
    monkeypatch.setattr(claims, "measure_error", lambda *_: 0.2)
    monkeypatch.setattr(architecture_run, "_start", lambda: None)
    names = ("single_prompts", "chunks", "cached_prefix", "recomputation")
    for name in (f"_compare_{one}" for one in names):
        monkeypatch.setattr(architecture_run, name, lambda: 0.2)
    architecture_run.graphs = False
    architecture_run._test_claims()
    verdicts = {claim.claim: claim.verdict for claim in architecture_run.result.claims[1:]}
    assert verdicts.pop(ZooClaim.REFERENCE) is Verdict.HOLDS
    order = {ZooClaim.BATCH, ZooClaim.CHUNKS, ZooClaim.PREFIX, ZooClaim.RECOMPUTE}
    assert set(verdicts) == order
    assert set(verdicts.values()) == {Verdict.FAILS}


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
