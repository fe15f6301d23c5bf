"""What a family of kernels says of a formula that differs, raises, launches nothing or overruns."""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from harness.checking import Violation
from harness.core.outcomes import Verdict
from harness.runs.zoo.family_run import FamilyRun
from harness.runs.zoo.formulas import Draw, FormulaList, Pair, measure_pair
from harness.store.zoo.values import ArchitectureResult, ClaimResult, ZooClaim


@triton.jit
def copy_row(source, target, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.arange(0, BLOCK)
    tl.store(target + index, tl.load(source + index, index < count), index < count)


def run_copy(draw: Draw, count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy a row of 6 floats, or try to copy more."""
    source = draw.floats(6)
    target = torch.zeros(6).cuda()
    copy_row[(1,)](source, target, count, BLOCK=8)
    return target, source


formula = FormulaList()


@formula()
def equal(draw: Draw) -> Pair:
    return run_copy(draw)


@formula()
def differs(draw: Draw) -> Pair:
    ours, theirs = run_copy(draw)
    return ours, theirs * 1.25


@formula()
def raises(draw: Draw) -> Pair:
    raise KeyError("no such slot")


@formula()
def launches_nothing(draw: Draw) -> Pair:
    row = draw.floats(3)
    return row, row


@formula()
def overruns(draw: Draw) -> Pair:
    return run_copy(draw, count=7)


@formula()
def catches_its_overrun(draw: Draw) -> Pair:
    ours, theirs = run_copy(draw)
    with contextlib.suppress(Violation):
        run_copy(draw, count=7)
    return ours, theirs


@formula(known="a reason", says="off by")
def differs_as_known(draw: Draw) -> Pair:
    ours, theirs = run_copy(draw)
    return ours, theirs + 1


@formula(known="a reason", says="KeyError")
def differs_otherwise(draw: Draw) -> Pair:
    ours, theirs = run_copy(draw)
    return ours, theirs + 1


@formula(known="a reason", says="off by")
def holds_again(draw: Draw) -> Pair:
    return run_copy(draw)


@formula(since="0.5.24")
def of_a_later_release(draw: Draw) -> Pair:
    raise AssertionError("it is not run")


def run_formulas(monkeypatch: pytest.MonkeyPatch, *names: str) -> ArchitectureResult:
    chosen = [one for one in formula.formulas if one.name in names]
    module: Any = SimpleNamespace(formula=FormulaList(chosen))
    monkeypatch.setitem(sys.modules, "fixtures.zoo.families.some", module)
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.5.23")
    return FamilyRun("some").run()


def get_claim(result: ArchitectureResult, claim: ZooClaim) -> ClaimResult:
    (found,) = [one for one in result.claims if one.claim is claim]
    return found


def test_a_formula_that_holds_is_green_and_counts_its_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = run_formulas(monkeypatch, "equal")
    assert [claim.verdict for claim in result.claims] == [Verdict.HOLDS] * 3
    assert list(result.kernels) == [f"{__name__}:copy_row"]
    assert result.claims_without_result == []


@pytest.mark.parametrize(
    ("name", "claim", "words"),
    [
        ("differs", ZooClaim.FORMULA, "differs: off by 0.2"),
        ("raises", ZooClaim.STARTS, "raises: KeyError: 'no such slot'"),
        ("launches_nothing", ZooClaim.STARTS, "launches_nothing: it launches no kernel"),
        ("overruns", ZooClaim.MEMORY, "overruns: copy_row read 4 bytes past the end of source"),
        ("catches_its_overrun", ZooClaim.MEMORY, "SGLang caught it: copy_row read 4 bytes"),
        ("differs_otherwise", ZooClaim.FORMULA, "differs_otherwise: off by"),
        ("holds_again", ZooClaim.FORMULA, "it holds, and is said to fail: a reason"),
    ],
)
def test_a_failing_formula_names_itself_and_ends_no_other(
    monkeypatch: pytest.MonkeyPatch, name: str, claim: ZooClaim, words: str
) -> None:
    result = run_formulas(monkeypatch, "equal", name)
    failures = {one.claim for one in result.claims if one.verdict is Verdict.FAILS}
    assert failures == {claim}
    assert words in get_claim(result, claim).headline
    assert f"{__name__}:copy_row" in result.kernels


def test_a_known_difference_is_not_red(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_formulas(monkeypatch, "differs_as_known")
    assert get_claim(result, ZooClaim.FORMULA).verdict is Verdict.KNOWN
    assert result.failures == []


def test_a_known_failure_has_its_words() -> None:
    with pytest.raises(ValueError, match="`known` and `says`"):
        FormulaList()(known="docs/findings/x.md")


def test_formulas_of_later_releases_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_formulas(monkeypatch, "of_a_later_release").absent == "these kernels came later"


def test_integers_may_not_differ_and_floats_by_their_rounding() -> None:
    ones = torch.ones(4)
    assert measure_pair((ones.int(), ones.int() + torch.tensor([0, 0, 0, 1])), None)[0] == 1.0
    error, tolerance = measure_pair((ones.bfloat16(), ones * 1.01), None)
    assert error <= tolerance < 0.07
    assert measure_pair((ones * torch.nan, ones), None)[0] == float("inf")
    with pytest.raises(ValueError, match=r"gives \[4\], not \[2, 2\]"):
        measure_pair((ones, ones.view(2, 2)), None)
    with pytest.raises(ValueError, match="zip"):
        measure_pair(([ones], [ones, ones]), None)


def test_a_result_of_another_kind_or_a_named_type_is_not_excused() -> None:
    ones = torch.ones(4)
    with pytest.raises(ValueError, match="gives integers, not floats"):
        measure_pair((ones.int(), ones * 1.5), None)
    with pytest.raises(ValueError, match="gives booleans, not integers"):
        measure_pair((ones.bool(), ones.int()), None)
    error, tolerance = measure_pair((ones.bfloat16() * 1.02, ones.half()), None)
    assert error > tolerance
