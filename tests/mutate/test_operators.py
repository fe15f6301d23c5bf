"""Operators: the faults of each in code of its kind, what all skip, and their sections."""

from __future__ import annotations

import re

import pytest
from operator_cases import read_cases
from small import list_changed_lines, list_cpp_lines, make_faults

from harness.core import paths
from harness.fixes.registry import toggle_catalogue
from harness.runs.mutate import operators
from harness.runs.mutate.mutation_operator import MutationOperator

CASES = read_cases("operator_cases.yaml")
OPERATORS = list(operators.load_operators().values())
PAGE = paths.project_folder() / "docs" / "operators" / "README.md"


@pytest.mark.parametrize(("name", "code", "wanted"), CASES)
def test_an_operator_finds_the_places_of_its_kind(name: str, code: str, wanted: list[str]) -> None:
    assert sorted(list_changed_lines(code, name)) == sorted(wanted)


def test_every_operator_has_a_case_and_a_section_of_the_page() -> None:
    in_python = {o.name for o in OPERATORS if o.find_changes is not None}
    assert {name for name, _, _ in CASES} == in_python
    sections = re.findall(r"^## ([a-z][a-z0-9-]*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == list(operators.load_operators())


def test_what_only_tells_checks_or_annotates_is_left_alone() -> None:
    code = '''
    def f(seq_len: int = base + prefix_len, *rows: "cdiv(a, b)") -> table[idx]:
        """seq_len + prefix_len < max_len"""
        assert seq_len + prefix_len <= max_len, f"{seq_len + prefix_len}"
        torch._check(seq_len < max_len)
        logger.info("%s", seq_len + prefix_len)
        tl.static_assert(seq_len < max_len)
        assert_buffer_fits(seq_len + prefix_len)
        count: Size[seq_len + prefix_len] = told
        if seq_len > max_len:
            raise ValueError(seq_len + prefix_len)
        return f"{seq_len + prefix_len}"

    class K:
        def __repr__(self):
            return self.table[self.idx + self.offset]
    '''
    result = make_faults(code, *(set(operators.load_operators()) - {"padded-for-real"}))
    assert (result.faults, result.dropped) == ((), ())


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("a = cdiv(n, m) * k", "a = (n // m) * k"),
        ("a = k * cdiv(n, m)", "a = k * (n // m)"),
        ("a = cdiv(n, m).bit_length()", "a = (n // m).bit_length()"),
        ("a = (cdiv(n, m))", "a = (n // m)"),
        ("a = f(cdiv(n, m))", "a = f(n // m)"),
        ("a = cdiv(n + k, m)", "a = (n + k) // m"),
    ],
)
def test_what_takes_a_place_has_the_brackets_that_it_needs(code: str, wanted: str) -> None:
    (got,) = list_changed_lines(f"def g(n, m, k): {code}\n", "round-down")
    tree = compile(f"def g(n, m, k): {wanted}\n", "m", "exec").co_consts[0]
    assert compile(got + "\n", "m", "exec").co_consts[0].co_code == tree.co_code


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_the_section_of_an_operator_is_true(operator: MutationOperator) -> None:
    """It names the pull requests and existing toggles, and the operator generates its example."""
    page = PAGE.read_text(encoding="utf-8")
    section = " ".join(page.partition(f"## {operator.name}\n")[2].partition("\n## ")[0].split())
    assert len(operator.prs) >= 2
    numbers = set(map(int, re.findall(r"\b\d{4,5}\b", section)))
    assert set(operator.prs) <= numbers
    story = section[section.rindex("→") :]  # the example may have names of code
    toggles = set(re.findall(r"`([^`]+)`", story)[1:])
    assert toggles <= {toggle.id for toggle in toggle_catalogue.load_catalogue()}

    example = re.search(r"`(?P<old>[^`]+)` → `(?P<new>[^`]+)`", section)
    assert example is not None
    old, new = example["old"], example["new"]
    body = [old, "    pass"] if old.endswith(":") else [old]
    if operator.find_changes is None:
        assert new in list_cpp_lines(f"__global__ void f() {{\n  {old}\n}}\n", operator.name)
        return
    names = "num_tokens, padded_num_tokens, num_blocks"
    code = "\n".join([f"@triton.jit\ndef f({names}):", *(f"    {line}" for line in body)])
    plain = code.replace("@triton.jit\n", "")
    assert new in list_changed_lines(code, operator.name) + list_changed_lines(plain, operator.name)
