"""Faults in C++ and CUDA sources: the places of each operator, and what is left alone."""

from __future__ import annotations

import pytest
from memory import Memory
from operator_cases import read_cases
from released import NEWEST, load_sources
from small import CPP_MODULE, format_code, list_cpp_lines, make_cpp_faults

from harness.core.cpp_scopes import CppSource
from harness.core.errors import UnfixError
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.patch_plan import Direction, ToggleChoice, make_plan
from harness.fixes.registry.schema import CodeTarget
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.runs.mutate import line_coverage, operators
from harness.runs.mutate.cpp_code import CppModuleCode
from harness.runs.mutate.fault_generation import generate_faults
from harness.runs.mutate.fault_toggles import build_toggle
from harness.runs.mutate.target_selection import select_targets

NONE = ToggleCatalogue([])

CASES = read_cases("cpp_operator_cases.yaml")


def in_kernel(body: str) -> str:
    return f"__global__ void kernel(int n) {{\n{format_code(body)}}}\n"


@pytest.mark.parametrize(("name", "body", "wanted"), CASES, ids=[name for name, _, _ in CASES])
def test_an_operator_finds_the_places_of_its_kind(name: str, body: str, wanted: list[str]) -> None:
    assert sorted(list_cpp_lines(in_kernel(body), name)) == sorted(wanted)


def test_every_operator_that_knows_cpp_has_a_case() -> None:
    knowing = {name for name, one in operators.load_operators().items() if one.find_cpp_changes}
    assert {name for name, _, _ in CASES} == knowing


def test_checks_messages_and_types_are_left_alone() -> None:
    body = """
    static_assert(kWarps < 4 && kWide, "x");
    assert(i < n);
    RuntimeCheck(rows < limit, "rows ", rows);
    TensorMatcher({N}).with_dtype<int64_t>().verify(out);
    printf("%d", i < n);
    using Wide = int64_t;
    asm volatile("mov.u64 %0, %1;" : "=l"(out[row * 8 + i]) : "r"(min(i, n)));
    """
    faults = make_cpp_faults(in_kernel(body))
    assert (faults.faults, faults.dropped) == ((), ())


def test_a_statement_is_a_header_or_what_ends_in_a_semicolon() -> None:
    code = """
    template <typename T>
    SGL_DEVICE void f(T* out, int n) {
      for (int i = 0; i < n; ++i) {
        if (i) out[i] = T{1};
        else { out[i] = run([&](int k) { return k; }); }
      }
    #pragma unroll
      done(n);
    }
    """
    (function,) = CppModuleCode(CppSource("k.cuh", "k.cuh", format_code(code))).functions
    assert function.is_kernel
    assert list(map(function.get_text, function.statements)) == [
        "for (int i = 0; i < n; ++i)",
        "if (i)",
        "out[i] = T{1};",
        "else",
        "out[i] = run([&](int k)",
        "return k;",
        ");",
        "done(n);",
    ]


def test_a_word_names_a_source_a_function_or_what_is_near() -> None:
    sources = Memory({CPP_MODULE: "void f() {}\nvoid g() {}\n", "m": ""})
    assert select_targets([CPP_MODULE], sources, NONE) == [
        CodeTarget(CPP_MODULE, "f"),
        CodeTarget(CPP_MODULE, "g"),
    ]
    assert select_targets([f"{CPP_MODULE}:g"], sources, NONE) == [CodeTarget(CPP_MODULE, "g")]
    with pytest.raises(UnfixError, match=rf"defines no gg; near it: {CPP_MODULE}:g"):
        select_targets([f"{CPP_MODULE}:gg"], sources, NONE)
    with pytest.raises(UnfixError, match=f"near it: {CPP_MODULE}"):
        select_targets([CPP_MODULE.replace("csrc", "crsc")], sources, NONE)


KERNEL_AND_HOST = """
__global__ void kernel(int* out, int n) {
  if (threadIdx.x < n) out[threadIdx.x] = 1;
}

void run(int* out, int n) {
  launch(kernel, div_ceil(n, 32), out, n);
}
"""


def test_a_kernel_s_function_decides_who_reaches_a_fault_and_a_file_for_host_code() -> None:
    code = format_code(KERNEL_AND_HOST)
    (in_device,) = make_cpp_faults(KERNEL_AND_HOST, "off-by-one").faults
    (in_host,) = make_cpp_faults(KERNEL_AND_HOST, "round-down").faults
    assert line_coverage.find_deciding_lines(in_device, code) == range(1, 4)
    assert line_coverage.find_deciding_lines(in_host, code) == range(1, 9)


@pytest.mark.parametrize(
    ("body", "fixed", "buggy"),
    [
        ("a = min(b, 4) + c;", "a = min(b, 4) + c;", "a = b + c;"),
        ("x();\na = min(b, 4);\ny();\na = min(b, 4);", "x();\na = min(b, 4);", "x();\na = b;"),
    ],
)
def test_a_kept_fault_is_a_toggle_that_works_both_ways(body: str, fixed: str, buggy: str) -> None:
    code = in_kernel(body)
    fault = make_cpp_faults(code, "drop-clamp").faults[0]
    sources = Memory({CPP_MODULE: code})
    toggle = build_toggle(fault, sources, "0.5.9", range_sources=[], registry=NONE)
    ((edit,),) = (variant.edits for variant in toggle.variants)
    assert (edit.fixed, edit.buggy) == (fixed, buggy)
    assert find_toggle_status(toggle, sources).state is ToggleState.FIXED
    (module,) = make_plan([ToggleChoice(toggle, Direction.REVERT)], sources, "0.5.9").modules
    assert module.text == fault.apply_to(code)


def test_real_sources_have_faults_of_every_kind() -> None:
    sources = load_sources(NEWEST)
    paths = [path for path in sources.cpp_sources() if path.endswith((".cuh", ".cu"))]
    targets = [CodeTarget(path, "") for path in paths[::6]]
    generated = generate_faults(targets, sources)
    assert {fault.operator for fault in generated.faults} == {name for name, _, _ in CASES}
    assert len({fault.id for fault in generated.faults}) == len(generated.faults)
    for fault in generated.faults:
        source = sources.read(fault.module)
        assert source is not None
        assert fault.apply_to(source.text) != source.text
        assert fault.first <= fault.line <= fault.last
