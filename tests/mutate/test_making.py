"""Generating faults: dropped ones with their reasons, and ids that survive edits around them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from calling import PATIENCE_SECONDS
from memory import Memory
from released import NEWEST, generate_for_release, load_sources
from small import format_code, make_faults

from harness.core import paths
from harness.fixes.registry.schema import CodeTarget, Symptom
from harness.runs.mutate import operators
from harness.runs.mutate.fault_generation import TOO_MANY_REASON, generate_faults
from harness.runs.mutate.function_code import CodeChange, FunctionCode, ModuleCode
from harness.runs.mutate.mutation_operator import MutationOperator
from harness.store.mutate.faults import GeneratedFaults


def make_operator(before: str, after: str, name: str = "by-hand") -> MutationOperator:
    """Return an operator that replaces some code by other code, wherever it occurs."""

    def find(function: FunctionCode) -> Iterator[CodeChange]:
        start, end = function.get_span(function.node)
        at = function.module.text.find(before, start, end)
        while at >= 0:
            yield CodeChange(at, at + len(before), after, f"{before} becomes {after}")
            at = function.module.text.find(before, at + 1, end)

    return MutationOperator(name, "By hand", (1, 2), Symptom.CRASH, find)


def by_hand(code: str, *chosen: MutationOperator) -> GeneratedFaults:
    return generate_faults([CodeTarget("m", "")], Memory({"m": format_code(code)}), chosen)


CODE = """
def f(rows, limit):
    width = rows * 4
    return width
"""


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("rows * 4", "(rows * 4)", "the same code, written in another way"),
        ("rows * 4", "rows * (3 + 1)", "the same bytecode"),
        ("width =", "\nwidth =", "does not compile: expected an indented block"),
        ("rows * 4", "rows * 4; width = 1", "takes a statement away or adds one"),
    ],
)
def test_what_is_no_fault_is_dropped_and_says_why(before: str, after: str, why: str) -> None:
    result = by_hand(CODE, make_operator(before, after))
    assert result.faults == ()
    (gone,) = result.dropped
    assert gone.why.startswith(why)
    assert (gone.before, gone.after, gone.line) == (before, after, 2)


def test_of_two_operators_with_one_change_the_first_counts() -> None:
    one, other = make_operator("rows * 4", "rows", "one"), make_operator("* 4", "", "other")
    result = by_hand(CODE, one, other)
    assert [fault.operator for fault in result.faults] == ["one"]
    assert [(d.operator, d.why) for d in result.dropped] == [("other", "one makes the same change")]


def test_a_statement_gets_three_faults_of_a_kind_that_lie_apart() -> None:
    code = "def f(" + ", ".join(f"a{n}_len" for n in range(7)) + "):\n"
    code += "    return g(" + ", ".join(f"a{n}_len + n" for n in range(7)) + ")\n"
    result = make_faults(code, "drop-addend")
    faults = [fault.before for fault in result.faults]
    assert faults == ["a0_len + n", "a3_len + n", "a6_len + n"]
    assert {gone.why for gone in result.dropped} == {TOO_MANY_REASON}
    assert len(result.dropped) == 4
    apart = make_faults(code.replace(", a", ",\n        a"), "drop-addend")
    assert [fault.before for fault in apart.faults] == faults


def test_a_fault_says_where_it_stands() -> None:
    code = """
    class K:
        @staticmethod
        def f(n, m):
            def inner():
                if (
                    n
                    < cdiv(n, m)
                ):
                    return 1
            return inner
    """
    (fault,) = make_faults(code, "round-down").faults
    assert (fault.module, fault.qualname, fault.target) == ("m", "K.f", "m:K.f")
    assert (fault.line, fault.first, fault.last) == (7, 5, 8)
    assert (fault.path, fault.kernel) == ("m.py", False)
    kernel = make_faults(
        "import triton\n@triton.jit\ndef f(n, m): return tl.cdiv(n, m)\n", "round-down"
    )
    assert [fault.kernel for fault in kernel.faults] == [True]


def test_only_faults_of_statements_with_these_lines_are_made() -> None:
    code = "def f(n, m):\n    a = cdiv(n, m)\n    b = cdiv(m,\n        n)\n    return cdiv(1, n)\n"
    assert [fault.line for fault in make_faults(code, "round-down").faults] == [2, 3, 5]
    assert [fault.line for fault in make_faults(code, "round-down", lines={4}).faults] == [3]
    assert make_faults(code, "round-down", lines=set()).faults == ()
    other = generate_faults([CodeTarget("m", "")], Memory({"m": code}), None, {"n": {2}})
    assert other.faults == ()


def test_an_id_is_the_codes_and_not_its_places() -> None:
    code = """
    def f(n, m):
        a = g(cdiv(n, m))
        return a
    """
    moved = """
    import other

    def before(): pass

    @decorated
    def f(n, m):
        # said
        before()
        a = g(
            cdiv(n,   m)  # as well
        )
        return a + 1
    """
    (one,), (again,) = (
        make_faults(code, "round-down").faults,
        make_faults(moved, "round-down").faults,
    )
    assert one.id == again.id
    assert one.start != again.start


def test_the_families_of_the_newest_release_have_faults_enough_of_every_kind() -> None:
    faults = generate_for_release(NEWEST).faults
    assert len(faults) >= 300
    in_python = {name for name, one in operators.load_operators().items() if one.find_changes}
    of_ownership = {"drop-free", "drop-lock", "free-early", "free-twice"}  # no family has caches
    assert {fault.operator for fault in faults} >= in_python - of_ownership
    assert sum(fault.kernel for fault in faults) >= 100


def test_every_fault_of_a_release_is_one_change_that_compiles() -> None:
    faults = generate_for_release(NEWEST).faults
    originals: dict[tuple[str, int], str] = {}
    functions: dict[str, list[FunctionCode]] = {}
    assert len({fault.id for fault in faults}) == len(faults)
    for fault in faults:
        source = load_sources(NEWEST).read(fault.module)
        assert source is not None
        after = fault.apply_to(source.text)
        assert after == source.text[: fault.start] + fault.after + source.text[fault.end :]
        assert fault.first <= fault.line <= fault.last
    for fault in faults[::3]:
        source = load_sources(NEWEST).read(fault.module)
        assert source is not None
        after = fault.apply_to(source.text)
        if fault.module not in functions:
            functions[fault.module] = ModuleCode(source).functions
        lines = [(f.node.lineno, f.node.end_lineno or 0) for f in functions[fault.module]]
        first, last = next(each for each in lines if each[0] <= fault.line <= each[1])
        longer = fault.after.count("\n") - fault.before.count("\n")
        if (fault.module, first) not in originals:
            originals[fault.module, first] = parse_lines(source.text, first, last)
        assert originals[fault.module, first] != parse_lines(after, first, last + longer), fault
    assert max(Counter((f.operator, f.target, f.first, f.last) for f in faults).values()) <= 3


def parse_lines(text: str, first: int, last: int) -> str:
    """Return the syntax tree of some lines of one function; they must compile."""
    code = "\n".join(text.split("\n")[first - 1 : last])
    tree = ast.parse(f"if True:\n{code}" if code.startswith(" ") else code)
    compile(tree, "m", "exec")
    return ast.dump(tree)


HASHING = """
from harness.fixes.registry.toggle_catalogue import load_catalogue
from harness.releases import managed_releases
from harness.runs.mutate.fault_generation import generate_faults
from harness.runs.mutate.target_selection import select_targets
sources = managed_releases.get_release("{release}").open_sources()
targets = select_targets(["kv_indices", "topk_transform"], sources, load_catalogue())
made = generate_faults(targets, sources)
print(*made.faults, *made.dropped, sep="\\n")
"""


def run_python(program: str, **variables: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        cwd=paths.project_folder(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    ).stdout


def test_the_faults_are_the_same_under_every_hash_seed() -> None:
    program = HASHING.format(release=NEWEST)
    first, second = (run_python(program, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert len(first.split("\n")) > 50
    assert first == second
