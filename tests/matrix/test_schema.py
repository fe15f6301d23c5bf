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


def with_run(command: str, more: str = "", constraints: tuple[str, ...] = ()) -> str:
    return make_text(constraints=constraints, run=f"run:\n  x: {{command: '{command}'{more}}}\n")


def add_rule(constraint: str) -> str:
    return make_text(constraints=(TREE, constraint))


TWO_GPUS = "\naxes:\n  a: {x: {needs: {gpus: 1, gpu: H200}}}\n  b: {y: {needs: {gpu: B200}}}\n"
TWICE = "cells:\n  - {values: {page: 16, kv: fp8}, because: x}\n"
TWICE += "  - {values: {kv: fp8, page: 16}, because: y}\n"
GROUP = "strength: {default: pairs, groups: [{axes: [kv, page], strength: triples}]}\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        # The schema, with its line
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
        # Values
        (make_text(axes=AXES + "  window: []\n"), "small.yaml:8: the axis window has no values"),
        (make_text().replace("0.5.18", "0.5.81"),
         "small.yaml:3: '0.5.81' is no managed release; did you mean 0.5.18?"),
        (make_text(more=TWICE), "small.yaml:10: cells 1 and 2 have the same values"),
        # Constraints
        (add_rule("{when: {kw: fp8}, only: {page: 16}, because: x}"),
         "small.yaml:10: no axis is called kw; did you mean kv?"),
        (add_rule("{when: {kv: fp9}, only: {page: 16}, because: x}"),
         "no value 'fp9'; did you mean fp8?"),
        (add_rule("{when: {kv: fp8}, never: {pages: 1}, because: x}"),
         "no axis is called pages"),
        (add_rule("{when: {kv: fp8}, applies: [tpok], because: x}"), "no axis is called tpok"),
        (add_rule("{when: {kv: fp8}, because: x}"), "one of never, only, or applies"),
        (add_rule("{applies: [topk], because: x}"), "applies: needs a `when:`"),
        (add_rule("{when: {kv: fp8}, never: {kv: auto}, because: x}"), "kv: on both sides"),
        # Cells and strengths
        (make_text(more="cells: [{values: {pgae: 16}, because: x}]\n"),
         "no axis is called pgae; did you mean page?"),
        (make_text(more=GROUP), "a strength of 3 over 2: kv, page"),
        (make_text(more="strength: 6\n"), "a strength of 6 over 5"),
        (make_text(more="strength: some\n"), "a strength is a number"),
        # Commands
        (with_run("serve {relaese} {words}"),
         "{relaese} in '{relaese}' is no axis; did you mean release?"),
        (with_run("serve --{words}"), "{words} is an argument by itself"),
        (with_run(""), "an empty command"),
        (with_run("serve {words} {release}", ", environment: {A: '{b}'}"),
         "{b} in '{b}' is no axis"),
        (with_run("serve {words}"), "the axis release changes no command"),
        (with_run("serve {release}"), "the axis kv changes no command"),
        (with_run("serve {release} {words}", ", limit: 0"), "limit"),
        (make_text(axes=TWO_GPUS, run="run: {x: {command: serve}}\n"),
         "it needs GPUs of B200 and of H200"),
        (with_run("serve {release} {words}", ", when: {kv: fp8}", (TREE, WHOLE_PAGES)),
         "nothing is run where release"),
        (with_run("serve {release} {topk} {words}", "", (TREE,)),
         "{topk} is named by a command, and does not apply where"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_reason(tmp_path: Path, content: str, reason: str) -> None:
    assert reason in get_refusal(tmp_path, content)


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
