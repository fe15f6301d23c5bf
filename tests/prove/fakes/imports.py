"""Guards that compare the code with what it, or a constant, was at import: neither is the bug."""

import pytest
from sglang import forms

code = pytest.mark.guards("toy-plain")
constant = pytest.mark.guards("toy-constant")
field = pytest.mark.guards("toy-dataclass")


def run_code():
    return forms.plain(1, 2)


def is_below(value):
    return forms.below_limit(value)


RIGHT = run_code()
LIMIT = forms.LIMIT
TWICE = forms.LIMIT * 2
BY_NAME = getattr(forms, "LIMIT")  # noqa: B009
SETTINGS = forms.Settings("")


class Answers:
    answer = run_code()
    limit = forms.LIMIT


def with_default(answer=forms.plain(1, 2)):  # noqa: B008
    return answer


@code
def test_code_at_import():
    run_code()
    assert RIGHT != 4


@code
def test_answer_of_its_import():
    assert run_code() == RIGHT


@code
def test_answer_in_a_class():
    assert run_code() == Answers.answer


@code
def test_answer_in_a_default():
    assert run_code() == with_default()


@code
@pytest.mark.parametrize("right", [run_code()])
def test_answer_in_a_parameter(right):
    assert run_code() == right


@constant
def test_copy_of_a_constant():
    assert is_below(LIMIT - 1)


@constant
def test_twice_a_constant():
    assert is_below(TWICE // 2 - 1)


@constant
def test_constant_in_a_class():
    assert is_below(Answers.limit - 1)


@constant
def test_constant_by_its_name():
    assert is_below(BY_NAME - 1)


@field
def test_object_of_its_import():
    assert forms.Settings("") == SETTINGS
