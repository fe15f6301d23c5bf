"""Each row of a record of the zoo is explained, and the page names what saw each planted fault."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from harness.core import paths
from harness.core.outcomes import Verdict
from harness.store.record_files import read_record_text
from harness.store.zoo.values import ZooClaim, ZooRun

RECORDED = paths.project_folder() / "bench" / "recorded"
RECORDS = sorted(RECORDED.glob("zoo-*.json.xz"))
PLANTED = {  # a fault of tests/zoo/toggles: the architecture that it is in
    "zoo-head-scale": ["qwen3"],
    "zoo-expert-off-by-one": ["mixtral"],
    "zoo-rope-of-another-layer": ["laguna"],
    "zoo-window-one-short": ["laguna"],
    "zoo-stale-graph-address": ["llama"],
    "zoo-use-before-its-event": ["olmo2"],
    "zoo-scale-of-another-block": ["qwen3_fp8_blocks"],
    "zoo-scale-of-another-int8-block": ["qwen3_int8_blocks"],
    "zoo-scale-of-another-expert": ["qwen3_moe_fp8_blocks"],
    "zoo-zero-point-forgotten": ["qwen3_moe_awq", "qwen3_moe_gptq"],
    "zoo-adapter-scaling": ["llama_lora"],
    "zoo-experts-renormalized": ["olmoe"],
    "zoo-experts-not-scaled": ["glm4_moe"],
    "zoo-multiplier-forgotten": ["granite"],
    "zoo-step-without-bias": ["qwen3_next"],
    "zoo-sinks-forgotten": ["gpt_oss_wide"],
    "zoo-cap-halved": ["gemma2_full"],
    "zoo-last-cached-key-lost": ["llama"],
}


def test_there_is_a_record() -> None:
    assert RECORDS, "without one the tests below are skipped"


def read_run(file: Path) -> ZooRun:
    return msgspec.json.decode(read_record_text(file), type=ZooRun)


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.name)
def test_a_recorded_architecture_that_does_not_start_has_its_reason(file: Path) -> None:
    run = read_run(file)
    assert run.status == "finished"
    unexplained = [
        result.name
        for result in run.models
        if not result.starts
        and not any(
            claim.claim in (ZooClaim.STARTS, ZooClaim.MEMORY)  # a known report ends its start
            and claim.verdict is Verdict.KNOWN
            for claim in result.claims
        )
    ]
    assert not unexplained


def test_each_recorded_release_is_run_every_night() -> None:
    text = (paths.project_folder() / ".github" / "workflows" / "nightly.yml").read_text()
    releases = yaml.safe_load(text)["jobs"]["zoo"]["strategy"]["matrix"]["release"]
    assert {read_run(file).release for file in RECORDS} <= set(releases)


def test_the_page_names_the_column_that_saw_each_planted_fault() -> None:
    page = (paths.project_folder() / "docs" / "zoo.md").read_text()
    failing_columns: dict[
        str, tuple[str, ...]
    ] = {}  # the columns that fail in each of a fault's architectures
    for run in map(read_run, RECORDED.glob("planted-in-zoo-*.json.xz")):
        planted = {
            fault: PLANTED[fault] for toggle in run.toggles if (fault := toggle.removeprefix("-"))
        }
        failures = {
            row.name: [failure.claim.value for failure in row.failures] for row in run.models
        }
        names = {name for each in planted.values() for name in each}
        assert {name for name, claims in failures.items() if claims} == names
        for fault, each in planted.items():
            (failing_columns[fault],) = {tuple(failures[name]) for name in each}
    assert set(failing_columns) == set(PLANTED)
    for fault, claims in failing_columns.items():
        assert f"| `{fault}` | {', '.join(PLANTED[fault])} | {', '.join(claims)} |" in page
