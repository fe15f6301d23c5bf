"""What ran each changed line, and what comes nearest to one that nothing ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.core.cpp_tokens import is_cpp_path
from harness.runs.pr.changed_functions import ChangedLine, FunctionLines
from harness.runs.pr.source_change import LinesByModule
from harness.store.pr.line_results import ChangedFunction, UnrunLine
from harness.store.pr.part_results import TouchedItem
from harness.store.pr.values import PrRun

MAX_EVIDENCE = 6  # sentences of a function
# What would run a line of these modules.
_NEEDS = (
    ("sglang/kernels/", "a guard in suites/cuda_kernels"),
    ("sglang.kernels.ops", "a formula in fixtures/zoo/families"),
    ("sglang.srt.models", "a row in suites/zoo/architectures"),
    ("sglang.srt.layers", "a row in suites/zoo/architectures"),
)
# Items that compare memory and indices, and no answers: a line that they alone ran may be wrong.
_WITHOUT_ANSWERS = ("rehearse ", "suites/deployments/")
_NO_TOOLKIT = "CUDA sources are built with the toolkit: `unfix releases add cuda-toolkit`"


@dataclass
class LineRuns:
    """The lines that each guard, row and deployment ran, on both ends."""

    base: dict[str, LinesByModule] = field(default_factory=dict)  # by the item's name
    head: dict[str, LinesByModule] = field(default_factory=dict)

    @property
    def everything(self) -> list[LinesByModule]:
        return [*self.base.values(), *self.head.values()]

    def add(self, is_head: bool, name: str, lines: Mapping[str, Iterable[int]]) -> None:
        known = (self.head if is_head else self.base).setdefault(name, {})
        for module, numbers in lines.items():
            known.setdefault(module, set()).update(numbers)

    def find_items(self, line: ChangedLine, is_head: bool) -> set[str]:
        """Find the items that ran a line, by the lines that decide it."""
        return {
            name
            for name, ran in (self.head if is_head else self.base).items()
            if any(
                not numbers.isdisjoint(ran.get(module, ()))
                for module, numbers in line.deciding.items()
            )
        }

    def find_nearest(self, module: str, has_toolkit: bool) -> str:
        """Name what runs most lines of a module, and say what its other lines need."""
        ran = {
            name: len(lines[module])
            for runs in (self.base, self.head)
            for name, lines in runs.items()
            if lines.get(module)
        }
        if ran:
            name = max(ran, key=lambda one: (ran[one], one))
            return f"nothing ran it; {name} runs {ran[name]} other lines of the file"
        if is_cpp_path(module) and not has_toolkit:
            return f"nothing ran it; {_NO_TOOLKIT}"
        for prefix, need in _NEEDS:
            if module.startswith(prefix):
                return f"nothing runs a line of its file; it needs {need}"
        return "nothing runs a line of its file; it needs a guard in suites"


def note_runs(functions: Iterable[FunctionLines], runs: LineRuns, has_toolkit: bool) -> None:
    """Note for each function what ran its changed lines, and which lines nothing ran."""
    for function in functions:
        shown, items = function.shown, set[str]()
        for lines, is_head in ((function.new, True), (function.removed, False)):
            for line in lines:
                found = runs.find_items(line, is_head)
                items |= found
                if all(name.startswith(_WITHOUT_ANSWERS) for name in found):
                    shown.unrun.append(UnrunLine(line.line, line.text, not is_head))
        shown.ran_by = sorted(items)
        if shown.unrun and items and all(name.startswith(_WITHOUT_ANSWERS) for name in items):
            shown.nearest = f"{min(items)} ran it, which compares no answers"
        elif shown.unrun:
            shown.nearest = runs.find_nearest(shown.module, has_toolkit)


def note_left_out(functions: Iterable[ChangedFunction], items: Iterable[TouchedItem]) -> None:
    """Note the items that run a function with lines that nothing ran, and were left out."""
    left_out = [item for item in items if item.left_out]
    for function in functions:
        name = f"{function.module}:{function.name}"
        function.left_out = [item.name for item in left_out if name in item.runs]
        if function.left_out and function.unrun and not function.ran_by:
            function.nearest = (
                f"nothing ran it; {function.left_out[0]} is known to run the function"
            )


def note_evidence(run: PrRun) -> None:
    """Put what is worse beside the changed lines that it comes from."""
    by_item: dict[str, list[str]] = {}
    for name, sentence in run.worse_items:
        by_item.setdefault(name, []).append(sentence)
    for function in run.functions:
        names = [*function.ran_by, f"{function.module}:{function.name}", function.path]
        worse = [name for name in names if name in by_item]
        found = [sentence for name in worse for sentence in by_item[name]]
        function.evidence = list(dict.fromkeys(found))[:MAX_EVIDENCE]
        commands = (make_command(name, run.base, run.head) for name in worse)
        function.again = next((command for command in commands if command), "")


def make_command(item: str, base: str, head: str) -> str:
    """Make the shortest command that shows what is worse of an item; '' if there is none."""
    kind, _, name = item.partition(" ")
    if kind == "zoo":
        return f"./unfix zoo {name} --since {base} --release {head}"
    if kind == "rehearse":
        return f"./unfix rehearse {name} --diff {base}..{head}"
    return f"./unfix prove {item} --release {base},{head}" if "::" in item else ""
