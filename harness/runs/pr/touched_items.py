"""The architectures of the zoo and the deployments that run changed code.

Earlier runs know which functions of SGLang and which kernels each of them ran. Example: a change of
`Rotary.forward` concerns each item whose run has `Rotary.forward` among its functions, whatever
lines of it moved since. Where an item's functions are not known, its kernels and the file of its
model stand for them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from harness.core import paths
from harness.core.outcomes import RunStatus, Verdict
from harness.core.wording import format_count
from harness.releases.managed_releases import get_newest_release
from harness.releases.source_trees import SourceTree
from harness.runs.pr import source_change
from harness.runs.pr.source_change import SourceChange
from harness.store import record_files
from harness.store.lane_runs import LaneResult, LaneRunTable
from harness.store.pr.part_results import TouchedItem

_MODELS = "sglang.srt.models."
MAX_READ_RUNS = 30  # in search of an item's functions; older ones may have none
MAX_NAMED = 12  # of items that were not run, in a note
_START_SECONDS = 20.0  # of a worker's import of SGLang
_UNKNOWN_SECONDS = 60.0  # of an item that has not run yet
_WHOLE_VERDICTS = (
    Verdict.HOLDS,
    Verdict.NA,
)  # it ran to its end, or is not there
# What a change may be about, with the words of it in names of SGLang and in our definitions.
FEATURES = {
    "windows": {"window", "windows", "sliding", "swa"},
    "adapters": {"lora", "adapter", "adapters"},
    "quantized weights": {
        "quant",
        "quantized",
        "quantization",
        "fp8",
        "int8",
        "awq",
        "gptq",
        "scales",
    },
    "pages": {"page", "paged", "pages"},
    "drafts": {"draft", "drafts", "eagle", "speculative", "spec", "verify", "mtp"},
    "experts": {"moe", "expert", "experts", "topk", "router"},
    "states": {"mamba", "conv", "ssm", "delta", "gdn", "linear"},
    "latent attention": {"mla", "latent", "nope", "absorb"},
    "logit caps": {"softcap", "softcapping", "cap"},
    "sinks": {"sink", "sinks"},
    "images": {"vision", "image", "images", "mrope", "vit"},
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class ItemKind:
    """What a kind of items is called."""

    noun: str
    command: str  # that shows an item on both ends, with {names}, {base} and {head}
    record_command: str  # that stores what items run, with {names} and {base}
    whole: str  # the word in place of {names} that stands for all of them
    ends: int  # on how many ends an item runs

    def fill_command(self, name: str, base: str, head: str) -> str:
        return self.command.format(names=name, base=base, head=head)

    def fill_record_command(self, names: Sequence[str], base: str) -> str:
        chosen = " ".join(names) if len(names) <= MAX_NAMED else self.whole
        return " ".join(self.record_command.format(names=chosen, base=base).split())


@dataclass(frozen=True)
class ChangedNames:
    """Changed code by name, as the base or the head calls it."""

    functions: frozenset[tuple[str, str]]  # module, qualified name
    kernels: frozenset[str]  # module:name
    models: frozenset[str]  # the names of changed model files, and the classes in these


def find_known_results(
    table: LaneRunTable[Any], run_type: type[Any], release: str, names: Collection[str]
) -> dict[str, LaneResult]:
    """Return the newest result of each item: on this release, else on any, else as recorded."""
    results: dict[str, LaneResult] = {}

    def is_unknown(name: str) -> bool:
        return name in names and (name not in results or not results[name].functions)

    def add(run: Any) -> None:
        for one in run.results:
            if is_unknown(one.name) and (one.functions or one.name not in results):
                results[one.name] = one

    listed = [
        run for run in table.list_runs() if run.status is RunStatus.FINISHED and not run.toggles
    ]
    listed.sort(key=lambda run: run.release == release)
    for run in listed[: -MAX_READ_RUNS - 1 : -1]:
        if any(map(is_unknown, run.planned)):
            add(table.load_whole(run))
    file = find_record(table.kind)
    if file is not None:
        add(msgspec.json.decode(record_files.read_record_text(file), type=run_type))
    return results


def leave_out_recorded(
    table: LaneRunTable[Any], release: str, code: str, names: Iterable[str]
) -> list[str]:
    """Leave out the items that finished runs on a release have, if this code of ours made them.

    One that was killed or took too long, so that its functions are not stored, runs again.
    """
    recorded = {
        one.name
        for run in table.list_runs()
        if (run.release, run.status, run.toggles, run.code)
        == (release, RunStatus.FINISHED, [], code)
        for one in table.load_whole(run).results
        if one.functions or one.verdict in _WHOLE_VERDICTS
    }
    return [name for name in names if name not in recorded]


def choose_quickest(
    names: Iterable[str], results: Mapping[str, LaneResult], seconds: float
) -> list[str]:
    """Choose the quickest items that fit into some seconds, by what earlier runs took."""
    lengths = {
        name: results[name].seconds if name in results else _UNKNOWN_SECONDS for name in names
    }
    chosen, used = set(), 0.0
    for name in sorted(lengths, key=lambda name: lengths[name]):
        used += lengths[name]
        if used > seconds:
            break
        chosen.add(name)
    return [name for name in lengths if name in chosen]


def find_record(kind: str) -> Path | None:
    """Find the record of the newest release; None if this checkout of unfix has none."""
    name = f"{kind}-{get_newest_release().name}.json.xz"
    file = paths.project_folder() / "bench" / "recorded" / name
    return file if file.is_file() else None


def find_changed_code(
    change: SourceChange, kernels: Iterable[str], results: Iterable[LaneResult]
) -> ChangedNames:
    """Name the changed functions, and those that use a changed constant."""
    modules = {module for result in results for module in result.functions}
    traced = source_change.find_traced_lines(change.base, change.old_lines, modules)
    functions = {*find_functions(change.base, traced)}
    functions |= {*find_functions(change.head, change.new_lines)}
    models = {name for name in change.modules if name.startswith(_MODELS)}
    classes = {
        node.name
        for module in models
        for tree in (change.base, change.head)
        for node in source_change.parse_module(tree, module).body
        if isinstance(node, ast.ClassDef)
    }
    return ChangedNames(
        frozenset(functions),
        frozenset({*kernels, *(f"{module}:{name}" for module, name in functions)}),
        frozenset({*(name.removeprefix(_MODELS) for name in models), *classes}),
    )


def find_functions(
    tree: SourceTree, lines: Mapping[str, Collection[int]]
) -> Iterator[tuple[str, str]]:
    """Yield the innermost functions around these lines, with their modules."""
    for module, numbers in lines.items():
        areas = list(_iterate_functions(source_change.parse_module(tree, module), ""))
        for number in numbers:
            inside = [(len(area), name) for area, name in areas if number in area]
            if inside:
                yield module, min(inside)[1]


def _iterate_functions(node: ast.AST, prefix: str) -> Iterator[tuple[range, str]]:
    """Yield each function's lines and its qualified name, as Python makes it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _FUNCTIONS):
            first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
            yield range(first, (child.end_lineno or first) + 1), f"{prefix}{child.name}"
            yield from _iterate_functions(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _iterate_functions(child, f"{prefix}{child.name}.")
        else:
            yield from _iterate_functions(child, prefix)


def find_touched(
    code: ChangedNames, results: Mapping[str, LaneResult], models: Mapping[str, set[str]]
) -> list[TouchedItem]:
    """Return the items that run changed code: the most concerned first, then the quickest."""
    touched = []
    for name, words in models.items():
        result = results.get(name)
        kernels = sorted(code.kernels & set(result.kernels if result is not None else ()))
        functions = sorted(
            f"{module}:{function}"
            for module, function in code.functions
            if result is not None and function in result.functions.get(module, ())
        )
        reasons = []
        if kernels:
            reasons.append(f"launches {', '.join(one.partition(':')[2] for one in kernels)}")
        if functions:
            count = format_count(len(functions), "changed function")
            reasons.append(f"runs {count}, such as {functions[0]}")
        if not reasons and words & code.models:
            reasons.append("its model's file changed")
        if reasons:
            hits = len(kernels) + len(functions)
            seconds = result.seconds if result is not None else 0.0
            item = TouchedItem(name, "; ".join(reasons), hits, seconds)
            item.runs = [*kernels, *functions]
            touched.append(item)
    return touched


def find_features(text: str) -> set[str]:
    """Find what a text is about: the features of which it has a word.

    Example: `sliding_window_size` and `full_to_swa_index_mapping` are about a window.
    """
    words = set(re.findall(r"[a-z]+[0-9]*", text.lower()))
    return {name for name, marks in FEATURES.items() if not words.isdisjoint(marks)}


def find_changed_features(change: SourceChange) -> set[str]:
    """Find what a change is about, by its lines, the functions around them and its files."""
    texts = list(change.modules)
    for tree, lines in ((change.base, change.removed), (change.head, change.added)):
        for module, numbers in lines.items():
            source = tree.read(module)
            text = source.text.split("\n") if source is not None else []
            texts += [text[number - 1] for number in numbers]
        texts += [name for _, name in find_functions(tree, lines)]
    return find_features(" ".join(texts))


def sort_touched(
    touched: Iterable[TouchedItem], features: Collection[str], definitions: Mapping[str, str]
) -> list[TouchedItem]:
    """Sort the most concerned first, then those that have what the change is about.

    The quickest of equals is first. Before all others come those that run a changed function which
    none before them runs, so that no function takes the room of another.
    """
    touched = list(touched)
    for one in touched:
        shared = find_features(_drop_remarks(definitions.get(one.name, ""))) & set(features)
        one.shared = sorted(shared)
        if shared:
            one.why += f"; has {', '.join(one.shared)}"
    ordered = sorted(touched, key=lambda one: (-one.hits, -len(one.shared), one.seconds, one.name))
    first, covered = [], set[str]()
    for one in ordered:
        if not covered.issuperset(one.runs):
            first.append(one)
            covered.update(one.runs)
    return [*first, *(one for one in ordered if one not in first)]


def _drop_remarks(text: str) -> str:
    return re.sub(r"#[^\n]*", "", text)


def leave_out(
    touched: Iterable[TouchedItem],
    kind: ItemKind,
    limit: int | None,
    seconds_left: float,
    lanes: int = 1,
) -> None:
    """Say of each item beyond the limit or the budget that it is left out, and why."""
    chosen, used = 0, _START_SECONDS * kind.ends
    for one in touched:
        cost = one.seconds * kind.ends / lanes
        if limit is not None and chosen >= limit:
            one.left_out = f"--{kind.noun}s {limit}"
        elif used + cost > seconds_left:
            one.left_out = f"more than the {seconds_left:.0f} s that are left of --budget"
            one.is_over_budget = True
        else:
            chosen += 1
            used += cost
