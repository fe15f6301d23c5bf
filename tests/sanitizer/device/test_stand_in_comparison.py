"""What a comparison of a stand-in and its operator says of calls that raise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fixtures.stand_ins.comparison import Agreement, compare_call
from fixtures.stand_ins.operator_calls import DrawnOperator, OperatorCall

CALL = OperatorCall((torch.ones(2),))
OPERATOR = DrawnOperator(
    name="add_one",
    draw=lambda draw: CALL,
    kinds=(),
    loader=None,
    tolerance=0.0,
    code_share=0.0,
    steps=1,
    rounds_terms=False,
    needs_virtual_memory=False,
)


def refuse_tensor(tensor: torch.Tensor) -> None:
    raise ValueError("no tensor is taken")


def add_one(tensor: torch.Tensor) -> None:
    tensor.add_(1)


def use_unknown_name(tensor: torch.Tensor) -> None:
    raise NameError("name 'rows' is not defined")


@pytest.mark.parametrize(
    ("stand_in", "words"),
    [
        (add_one, "ValueError: no tensor is taken"),
        (use_unknown_name, "no tensor is taken and NameError: name 'rows' is not defined"),
    ],
    ids=["the operator alone", "both"],
)
def test_a_refusal_is_kept_with_what_both_have_raised(
    stand_in: Callable[..., None], words: str
) -> None:
    agreement = Agreement()
    compare_call(agreement, OPERATOR, CALL, refuse_tensor, stand_in, "cpu")
    (refusal,) = agreement.refusals
    assert words in refusal
    assert agreement.agreed == 0
