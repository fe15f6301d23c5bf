"""The schema of a matrix file, and the errors for files that break it."""

from __future__ import annotations

from pathlib import Path

import pytest
from writing import AXES, TREE, WHOLE_PAGES, get_refusal, make_plan, make_text, read_spec


def test_words_are_taken_as_they_are_written(tmp_path: Path) -> None:
    axes = "\naxes:\n  a: [on, off, 1.10, 0x10, null]\n  b: {16: --b 16}\n"
    run = 'run: {x: {command: "true {a} {words}"}}\n'
    matrix = read_spec(tmp_path, make_text(axes=axes, run=run))
    assert matrix.list_values("a") == ["on", "off", "1.10", "0x10", "null"]
    assert matrix.get_value("b", "16").words == "--b 16"
    matrix = read_spec(tmp_path, make_text().replace("0.5.18", "current"))
    assert matrix.list_values("release")[1] == "current"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "small.yaml:1: it is empty, or no mapping of keys to values"),
        (make_text(more="sede: 1\n"), "small.yaml:8: unknown key `sede`"),
        (make_text() + "  again: {kind: evil, command: x}\n",
         "small.yaml:11: run.again.kind: Invalid enum value 'evil'"),
        (make_text(constraints=("{when: {kv: fp8}, only: {page: 16}}",)), "missing key `because`"),
        (make_text().replace("release: [", "release: [0.5.16, "), "has '0.5.16' twice"),
        (make_text() + "name: again\n", "small.yaml:11: the key 'name' stands twice"),
        (make_text() + "  a b: {command: x}\n", "small.yaml:9: run: "),
        (make_text(axes="\naxes:\n  a: {x: '', y: {wods: z}}\n"),
         "small.yaml:3: axes.a.y: unknown key"),
        ("name: [", "not YAML"),
    ],
)  # fmt: skip
def test_a_problem_of_the_schema_is_named_with_its_line(
    tmp_path: Path, content: str, reason: str
) -> None:
    assert reason in get_refusal(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (make_text(axes=AXES + "  window: []\n"), "8: the axis window has no values"),
        (make_text().replace("0.5.18", "0.5.81"),
         "3: '0.5.81' is no managed release; did you mean 0.5.18?"),
        (make_text(more="cells:\n  - {values: {page: 16, kv: fp8}, because: x}\n"
                        "  - {values: {kv: fp8, page: 16}, because: y}\n"),
         "10: cells 1 and 2 have the same values"),
    ],
)  # fmt: skip
def test_an_invalid_value_is_refused(tmp_path: Path, content: str, refusal: str) -> None:
    assert get_refusal(tmp_path, content) == f"small.yaml:{refusal}"


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (
            "{when: {kw: fp8}, only: {page: 16}, because: x}",
            "no axis is called kw; did you mean kv?",
        ),
        ("{when: {kv: fp9}, only: {page: 16}, because: x}", "no value 'fp9'; did you mean fp8?"),
        ("{when: {kv: fp8}, never: {pages: 1}, because: x}", "no axis is called pages"),
        ("{when: {kv: fp8}, applies: [tpok], because: x}", "no axis is called tpok"),
        ("{when: {kv: fp8}, because: x}", "one of never, only, or applies"),
        ("{applies: [topk], because: x}", "applies: needs a `when:`"),
        ("{when: {kv: fp8}, never: {kv: auto}, because: x}", "kv: on both sides"),
    ],
)
def test_an_invalid_constraint_is_refused(tmp_path: Path, constraint: str, reason: str) -> None:
    refusal = get_refusal(tmp_path, make_text(constraints=(TREE, constraint)))
    assert refusal.startswith("small.yaml:10: ")
    assert reason in refusal


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("cells: [{values: {pgae: 16}, because: x}]", "no axis is called pgae; did you mean page?"),
        ("strength: {default: pairs, groups: [{axes: [kv, page], strength: triples}]}",
         "a strength of 3 over 2: kv, page"),
        ("strength: 6", "a strength of 6 over 5"),
        ("strength: some", "a strength is a number"),
    ],
)  # fmt: skip
def test_invalid_cells_and_strengths_are_refused(tmp_path: Path, more: str, reason: str) -> None:
    assert reason in get_refusal(tmp_path, make_text(more=f"{more}\n"))


def run_entry(command: str, more: str = "") -> str:
    return f"run:\n  x: {{command: '{command}'{more}}}\n"


@pytest.mark.parametrize(
    ("works", "reason"),
    [
        (
            run_entry("serve {relaese} {words}"),
            "{relaese} in '{relaese}' is no axis; did you mean release?",
        ),
        (run_entry("serve --{words}"), "{words} is an argument by itself"),
        (run_entry(""), "an empty command"),
        (
            run_entry("serve {words} {release}", ", environment: {A: '{b}'}"),
            "{b} in '{b}' is no axis",
        ),
        (run_entry("serve {words}"), "the axis release changes no command"),
        (run_entry("serve {release}"), "the axis kv changes no command"),
        (run_entry("serve {release} {words}", ", limit: 0"), "limit"),
    ],
)
def test_an_invalid_command_is_refused(tmp_path: Path, works: str, reason: str) -> None:
    assert reason in get_refusal(tmp_path, make_text(run=works))


def test_values_bring_words_variables_and_needs_of_their_own(tmp_path: Path) -> None:
    axes = """
axes:
  device: {h200: {words: --device cuda, needs: {gpus: 1, gpu: H200}, environment: {D: "{device}"}}}
  cp: {2: {words: "--cp '{cp} ranks'", needs: {gpus: 2, custom: {npu: 1}}}}
"""
    works = "run:\n  x: {command: 'serve {{x}} --{device} {words}', needs: {cpus: 4}, limit: 9}\n"
    (cell,) = make_plan(tmp_path, make_text(axes=axes, run=works)).cells
    assert cell.command == ["serve", "{x}", "--h200", "--device", "cuda", "--cp", "2 ranks"]
    assert cell.environment == {"D": "h200"}
    assert (cell.needs.cpus, cell.needs.gpus, cell.needs.gpu) == (4, 2, "H200")
    assert (cell.needs.custom, cell.limit) == ({"npu": 1}, 9)


def test_a_work_of_a_kind_calls_its_unfix_command(tmp_path: Path) -> None:
    works = "run: {p: {kind: suites, command: '27460 --release {release} {words}'}}\n"
    cell = make_plan(tmp_path, make_text(constraints=(TREE,), run=works)).cells[0]
    assert cell.command[:3] == ["unfix", "prove", "27460"]
    assert cell.command[3:5] == ["--release", cell.values["release"]]


def test_two_kinds_of_gpu_in_one_cell_are_refused(tmp_path: Path) -> None:
    axes = "\naxes:\n  a: {x: {needs: {gpus: 1, gpu: H200}}}\n  b: {y: {needs: {gpu: B200}}}\n"
    content = make_text(axes=axes, run="run: {x: {command: serve}}\n")
    assert "it needs GPUs of B200 and of H200" in get_refusal(tmp_path, content)


def test_a_cell_in_which_nothing_runs_is_refused(tmp_path: Path) -> None:
    works = "run: {x: {command: 'serve {release} {words}', when: {kv: fp8}}}\n"
    refusal = get_refusal(tmp_path, make_text(constraints=(TREE, WHOLE_PAGES), run=works))
    assert "nothing is run where release" in refusal
    assert "kv auto" in refusal


def test_a_placeholder_of_an_axis_that_does_not_apply_is_refused(tmp_path: Path) -> None:
    works = "run: {x: {command: 'serve {release} {topk} {words}'}}\n"
    refusal = get_refusal(tmp_path, make_text(constraints=(TREE,), run=works))
    assert "{topk} is named by a command, and does not apply where" in refusal
