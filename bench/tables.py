"""Writes the tables of the docs that come from records or from code, and the pages of findings.

    .venv/bin/python -m bench.tables            writes them
    .venv/bin/python -m bench.tables --check    names the pages that are not fresh

A page marks a table by `<!-- generated: NAME -->` and `<!-- end -->`; NAME is one of `TABLES`.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.measuring import RECORDED, read_record
from harness.core import paths
from harness.core.outcomes import Verdict
from harness.findings import finding_files, pages
from harness.runs.eval import power_analysis
from harness.runs.kernels.values import KernelInventory, KernelKind
from harness.runs.mutate import operators
from harness.sanitizer.violations import targets
from harness.store.record_files import read_record_text
from harness.store.zoo.values import CLAIM_VERDICTS, ZooRun

FINDING_PAGES = paths.project_folder() / "docs" / "findings"
BLOCK = re.compile(r"(<!-- generated: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def list_pages() -> list[Path]:
    root = paths.project_folder()
    return sorted([root / "README.md", *(root / "docs").rglob("*.md")])


def make_finding_pages() -> dict[Path, str]:
    return {
        FINDING_PAGES / f"{finding.name}.md": pages.make_page(finding)
        for finding in finding_files.load_findings()
    }


def write_tables(text: str) -> str:
    """Return a page with each marked table as it is now."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{TABLES[block[2]]()}\n\n{block[4]}", text)


def make_table(head: str, rows: list[tuple[Any, ...]]) -> str:
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def load_record(name: str) -> Any:
    return read_record(RECORDED / f"{name}.json.xz")


def describe_proofs(name: str) -> str:
    run = load_record(name)
    cells = Counter(cell["verdict"] for cell in run["cells"])
    minutes, seconds = divmod(round(run["seconds"]), 60)
    return f"{cells['proven']} cells proven, {cells['n/a']} n/a, in {minutes} min {seconds} s"


def describe_faults(name: str) -> str:
    run = load_record(name)
    fates = ", ".join(f"{count} {fate}" for fate, count in run["counts"].items())
    return f"{run['planned']} faults: {fates}; score {run['score']:.1f} %"


def make_figures() -> str:
    live, startup = load_record("live-cpu"), load_record("startup-cpu")
    searches = load_record("searches-cpu")["every toggle"]
    runs = [search["runs"] for search in searches["each"] if not search["all"]]
    kernels, fleet = load_record("kernels-cpu")["summary"], load_record("fleet")
    means = next(x for x in load_record("release-checks-h100")["output"] if "geometric" in x)
    audit, rehearsal = load_record("audit-0.5.23"), load_record("rehearse-0.5.23")
    adopting = load_record("adopting")["summary"]
    findings = Counter(finding["rank"] for finding in audit["findings"])
    rows: list[tuple[str, str, str]] = [
        ("`prove --release all`, CPU", describe_proofs("proofs/cpu"), "proofs/cpu"),
        ("`prove --release all`, H100", describe_proofs("proofs/cuda-h100"), "proofs/cuda-h100"),
        ("`prove` of 0.5.23, CPU", describe_proofs("proofs/cpu-0.5.23"), "proofs/cpu-0.5.23"),
        (
            "a toggle in and out, live",
            f"{live['median_ms']['function']:.1f} ms for a function, "
            f"{live['median_ms']['kernel']:.1f} ms for a kernel, "
            f"{live['median_ms']['upstream']:.1f} ms with SGLang's own patcher",
            "live-cpu",
        ),
        (
            "a Python process of a release, nothing toggled",
            f"{startup['start_line_ms']:.1f} ms more",
            "startup-cpu",
        ),
        ("`adopt`", f"{adopting['round trip']} to the registry's toggle", "adopting"),
        (
            f"`bisect` of one culprit among {searches['toggles']}",
            f"{min(runs)} to {max(runs)} runs of a guard",
            "searches-cpu",
        ),
        (
            "`mutate`, nine families of 0.5.23",
            describe_faults("mutation-0.5.23"),
            "mutation-0.5.23",
        ),
        ("`mutate`, CUDA sources", describe_faults("mutation-cuda-0.5.23"), "mutation-cuda-0.5.23"),
        (
            "a kernel under every check on a CPU",
            f"{kernels['geometric mean']} times faster than Triton's interpreter, "
            f"which checks nothing; slowest {kernels['slowest']} times",
            "kernels-cpu",
        ),
        ("a kernel under check on an H100", means.partition(": ")[2], "release-checks-h100"),
        (
            "`audit` of 0.5.23",
            f"{audit['seconds']:.0f} s; {findings['possible']} of {findings.total()} findings "
            "in no rehearsed deployment",
            "audit-0.5.23",
        ),
        (
            "`rehearse --all`",
            f"{len(rehearsal['deployments'])} deployments in {rehearsal['seconds']:.0f} s",
            "rehearse-0.5.23",
        ),
        (
            f"a matrix of {fleet['cells']:,} simulated cells",
            f"stored in {fleet['run_and_store_s']:.0f} s, merged in {fleet['merge_s']:.0f} s",
            "fleet",
        ),
    ]
    return make_table("what | figure | record", [(*row[:2], f"`{row[2]}`") for row in rows])


def make_finding_index() -> str:
    return pages.make_index(finding_files.load_findings())


def make_operator_table() -> str:
    known = operators.load_operators().values()
    rows = [(f"[{operator.name}](#{operator.name})", operator.symptom.value) for operator in known]
    return make_table("operator | symptom", rows)


def make_same_odds() -> str:
    sizes, rows = (200, 400, 800), []
    for churn in (0.0, 0.01, 0.02, 0.05):
        odds = (power_analysis.compute_verdict_odds(0.0, items, 12, churn) for items in sizes)
        rows.append((f"{churn:.0%}", *(f"{odd[Verdict.SAME]:.0%}" for odd in odds)))
    return make_table("flips | " + " | ".join(f"{items} items" for items in sizes), rows)


def make_covering() -> str:
    rows = []
    for model in load_record("covering")["models"]:
        if "fleet" in model["model"]:  # its file has changed since
            continue
        pairs = model.get("allpairspy")
        left = pairs and (
            f"{pairs['uncovered']} uncovered" if pairs["uncovered"] else pairs["cells"]
        )
        others = [cover["cells"] for name, cover in model.items() if name.startswith("covertable")]
        published = min(model["published"].values(), default="")
        rows.append((model["model"], model["unfix"]["cells"], published, min(others), left or ""))
    return make_table("model | unfix | best published | covertable | allpairspy", rows)


def make_zoo_runs() -> str:
    rows = []
    for file in sorted(RECORDED.glob("zoo-*.json.xz"), key=lambda file: len(file.name)):
        run = msgspec.json.decode(read_record_text(file), type=ZooRun)
        starting = [result for result in run.models if result.starts]
        cells = (
            run.release,
            f"{len(starting)} of {len(run.models)}",
            len({result.model_class for result in starting}),
            f"{sum(not result.failures for result in run.families)} of {len(run.families)}",
            len(run.kernels),
            *(run.counts.get(verdict.value, 0) for verdict in CLAIM_VERDICTS),
            f"{run.seconds / 60:.0f} min",
        )
        rows.append(cells)
    head = "release | architectures that start | model classes | families without a failure"
    verdicts = " | ".join(verdict.value for verdict in CLAIM_VERDICTS)
    return make_table(f"{head} | Triton kernels under check | {verdicts} | time", rows)


def make_zoo_cards() -> str:
    record = load_record("cards-zoo-h200")
    rows = record["rows"].values()
    holding = [row for row in rows if row["ranks"] == "holds"]
    failing = [name for name, row in record["rows"].items() if row["ranks"] == "fails"]
    parts = [row["ranks error"] / row["ranks tolerance"] for row in holding]
    counts = Counter(row["ranks"] for row in rows)
    release = record["machine"]["versions"]["sglang"]
    virtual = msgspec.json.decode(
        read_record_text(RECORDED / "ranks-zoo-0.5.23.json.xz"), type=ZooRun
    )
    seconds = sum(result.processor_seconds for result in virtual.models)
    counts_of_claims = ", ".join(
        f"{virtual.counts.get(verdict.value, 0)} {verdict.value}" for verdict in CLAIM_VERDICTS
    )
    return (
        f"Virtual ranks, SGLang {virtual.release}, {virtual.ranks}: "
        f"{sum(result.starts for result in virtual.models)} architectures start; "
        f"{counts_of_claims}; "
        f"{seconds / 60:.0f} min of a processor.\n\n"
        f"SGLang {release} in {record['dtype']} on two H200, {record['layout']} over NCCL: of "
        f"{len(rows)} rows {len(rows) - counts['not run']} load on one card, and {len(holding)} "
        f"give its logits on two, within {max(parts):.2f} of their tolerance. "
        f"{', '.join(failing)} differ, {counts['stopped']} stop. A row that stops on one card "
        "lacks kernels of its sizes or type, or a model in the release, or meets a known bug."
    )


def make_reached_kernels() -> str:
    text = read_record_text(RECORDED / "kernels-0.5.23.json.xz")
    inventory = msgspec.json.decode(text, type=KernelInventory)
    counts = (inventory.count_reached(kind) for kind in (KernelKind.TRITON, KernelKind.CUDA))
    row = (inventory.release, *(f"{reached} of {total}" for reached, total in counts))
    return make_table("release | Triton kernels launched under check | CUDA C++ kernels", [row])


WORDS = {
    "chance": "chance: random numbers, the clock, its process, an address",
    "draw": "a draw of Hypothesis",
    "file": "a file that counts its runs, in six folders",
    "memory": "memory that all runs share",
    "name": "a name: its own, pytest's variable, all variables, its folders",
}


def make_false_proofs() -> str:
    record = load_record("false-proofs")
    kinds = [*((WORDS[name], kind) for name, kind in record["by kind"].items()), ("all", record)]
    rows = [(name, f"{kind['tries']:,}", kind["proven"]) for name, kind in kinds]
    return make_table("its outcome comes from | tries | proven", rows)


def make_language_table() -> str:
    """Compare Triton's own tests under check and in its interpreter."""
    suite = load_record("triton-language")["Triton"]
    files = suite["files"].values()
    pairs = [pair for file in files for pair in file.get("beside the interpreter", {}).values()]
    outcomes = [
        Counter(side and side["outcome"] for side in sides) for sides in zip(*pairs, strict=True)
    ]
    own, rows = suite["outcomes"], []
    for name in ("passed", "skipped"):
        rows.append((name, *(f"{counts[name]} of {len(pairs)}" for counts in outcomes)))
    rows.append(("reported", own["reported"], "nothing is checked"))
    rows.append(("refused by name", own["refused"], ""))
    failed = own["failed"] + own["too slow"]
    rows.append(("failed, or 40 s are too few", failed, outcomes[1]["failed"]))
    seconds = (f"{one:.0f} s" for one in suite["CPU seconds of those"])
    rows.append((f"processor, of the {suite['passed in both']} that pass in both", *seconds))
    return make_table("Triton's `unit/language` | under check | its interpreter", rows)


def make_target_table() -> str:
    heads = ("found", *(target.value for target in targets.Target))
    return make_table(" | ".join(heads), targets.list_rows())


TABLES: dict[str, Callable[[], str]] = {
    "figures": make_figures,
    "findings": make_finding_index,
    "operators": make_operator_table,
    "power": power_analysis.format_power_table,
    "targets": make_target_table,
    "triton-language": make_language_table,
    "same-odds": make_same_odds,
    "covering": make_covering,
    "zoo-runs": make_zoo_runs,
    "zoo-cards": make_zoo_cards,
    "reached-kernels": make_reached_kernels,
    "false-proofs": make_false_proofs,
}


def main(words: list[str]) -> int:
    stale = []
    fresh_pages = make_finding_pages()
    for page in sorted({*list_pages(), *fresh_pages}):
        text = page.read_text() if page.is_file() else ""
        fresh = fresh_pages.get(page) or write_tables(text)
        if fresh != text:
            stale.append(str(page.relative_to(paths.project_folder())))
            if "--check" not in words:
                page.write_text(fresh)
    print("\n".join(stale) or "all tables are fresh")
    return 1 if stale and "--check" in words else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
