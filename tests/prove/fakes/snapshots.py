"""Guards that compare the code with what they took of a module at import, without its name."""

import inspect
import types

import pytest
from sglang import forms

NAMES = dict(vars(forms))
SIGNATURE = inspect.signature(forms.with_default)
COPY = types.FunctionType(forms.plain.__code__, {})


@pytest.mark.guards("toy-constant")
def test_all_names():
    assert forms.below_limit(NAMES["LIMIT"] - 1)


@pytest.mark.guards("toy-default")
def test_signature():
    assert forms.with_default(1) == 1 + SIGNATURE.parameters["extra"].default


@pytest.mark.guards("toy-plain")
def test_copied_function():
    assert forms.plain(1, 2) == COPY(1, 2)
