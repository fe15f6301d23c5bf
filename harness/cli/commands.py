"""The commands of `unfix`, and with them the kinds of runs, in one table.

A command is a module of `harness/cli` of its name, or `command.py` in a folder of its name. One
that stores runs has a `RunKind`, whose folders in `harness/store` and `reports` have its name, too.
To add either, write these and add its row here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.cli.run_kinds import MatrixKind, ProveKind, RunKind, make_page_name_of


@dataclass(frozen=True)
class Command:
    """A command, as `unfix --help` names it."""

    name: str
    summary: str
    kind: RunKind | None = None  # of the runs that it stores
    module: str = ""  # if it has another name

    @property
    def module_name(self) -> str:
        name = self.module or self.name
        is_folder = (Path(__file__).parent / name / "command.py").exists()
        return f"harness.cli.{name}.command" if is_folder else f"harness.cli.{name}"


_TABLE = (
    Command(
        "prove",
        "the proof: every guard with its fix applied, and with it reverted",
        ProveKind(
            "prove",
            "a proof",
            make_list_label=lambda run: str(run.kind),
            json_properties=("counts", "green", "problems"),
            list_properties=("counts", "green"),
            make_page_name=lambda run: f"prove-{make_page_name_of(run)}",
            has_junit=True,
        ),
    ),
    Command(
        "lifecycle",
        "every guard on every unpatched release: the lifetime of each bug",
        module="prove",
    ),
    Command(
        "bisect",
        "the fix that a symptom is about, over toggles, releases or commits",
        RunKind(
            "bisect",
            "a search",
            make_list_label=lambda search: f"bisect {search.kind}",
            json_properties=(),
            list_properties=("verdict",),
            is_row_enough=True,
            describe_verdict=lambda search: str(search.verdict),
            get_exit_code=lambda search: 0 if search.found else 1,
            make_page_name=lambda search: f"bisect-{search.id}",
        ),
    ),
    Command(
        "fuzz",
        "suites for a budget of time: each failure shrunk, stored, replayable anywhere",
        RunKind(
            "fuzz",
            "a fuzzing run",
            make_list_label=lambda run: "fuzz",
            json_properties=("green",),
            is_row_enough=True,
            make_page_name=lambda run: str(run.id),
        ),
    ),
    Command(
        "mutate",
        "mutation testing: faults of the known kinds, planted anywhere in SGLang",
        RunKind(
            "mutate",
            "a mutation run",
            make_list_label=lambda run: "mutate",
            json_properties=("counts", "score", "green", "problems"),
            list_properties=("green", "score"),
            make_page_name=lambda run: f"mutate-{make_page_name_of(run)}",
        ),
    ),
    Command("audit", "static analysis of every kernel of a release: int32 overflow in addresses"),
    Command(
        "zoo",
        "every model architecture, tiny, on the virtual GPU, compared with transformers",
        RunKind(
            "zoo",
            "a zoo run",
            make_list_label=lambda run: "zoo",
            json_properties=("counts", "green", "problems", "kernels"),
            list_properties=("counts", "green"),
            make_page_name=lambda run: f"zoo-{make_page_name_of(run)}",
        ),
    ),
    Command(
        "rehearse",
        "a deployment at full size without a GPU: its memory, launches, overflows",
        RunKind(
            "rehearse",
            "a rehearsal",
            make_list_label=lambda run: "rehearse",
            json_properties=("counts", "green", "problems"),
            list_properties=("counts", "green"),
            make_page_name=lambda run: f"rehearse-{make_page_name_of(run)}",
        ),
    ),
    Command("kernels", "every kernel of a release: who launches it under check, and what would"),
    Command(
        "pr",
        "what a change of SGLang does: toggles, suites, audit, kernels, faults, zoo",
        RunKind(
            "pr",
            "a review",
            make_list_label=lambda run: "pr",
            json_properties=("headline", "result", "green", "problems"),
            list_properties=("headline", "green"),
            is_row_enough=True,
            describe_verdict=lambda run: str(run.word),
            make_page_name=lambda run: f"pr-{make_page_name_of(run)}",
            has_sarif=True,
        ),
    ),
    Command(
        "eval",
        "accuracy, end to end: a real server's answers compared with a baseline's",
        RunKind(
            "eval",
            "an evaluation",
            make_list_label=lambda evaluation: "eval",
            list_properties=("name", "counts", "green"),
            is_row_enough=True,
        ),
    ),
    Command(
        "matrix",
        "the configuration matrix: plan, run and shard combinations of options",
        MatrixKind(
            "matrix",
            "a matrix run",
            make_list_label=lambda run: "matrix",
            json_properties=("counts", "green", "problems"),
            list_properties=("name", "plan", "shard", "counts", "green"),
            get_exit_code=lambda run: int(run.exit_code),
        ),
    ),
    Command("upstream", "a finding as a pull request: patch, test, text, verified; a backport"),
    Command("watch", "findings and their fixes in a newer SGLang: fixed, changed, still there"),
    Command("report", "stored runs: table, page, JUnit, Markdown, JSON"),
    Command("list", "the registry, with each toggle's state on a release"),
    Command("show", "one toggle: its story, its state, its patch as a diff"),
    Command("adopt", "a toggle from a fix: a diff, a commit, or the changes between two releases"),
    Command("drift", "every toggle on every release: fixed, buggy, absent or stale"),
    Command("exec", "any command under toggles: unfix exec --revert ID -- COMMAND"),
    Command("releases", "list, add and remove managed releases"),
    Command("doctor", "what this machine has, what it lacks, and the stand-ins"),
    Command("test", "this project's own tests"),
)
COMMANDS = {command.name: command for command in _TABLE}
KINDS = {name: command.kind for name, command in COMMANDS.items() if command.kind is not None}
