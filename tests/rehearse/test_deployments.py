"""Deployments as data, and the calls that are refused by name."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.core import paths
from harness.core.errors import UnfixError
from harness.runs.rehearse.deployment import (
    REHEARSE_FOLDER,
    Deployment,
    check_deployment,
    read_deployments,
    read_model,
)
from harness.sanitizer.device.cards import load_cards

SMALLEST_SET = 24


def test_each_model_has_a_published_source_and_an_architecture() -> None:
    files = sorted((paths.project_folder() / REHEARSE_FOLDER / "models").glob("*.yaml"))
    for file in files:
        model = read_model(file.stem)
        assert model.source.startswith("https://"), file
        # A place where the figures were read as well, or that there was none.
        assert re.search(
            r"[\w-]+/[\w.-]+, \S+|transformers \S+|nothing was found", model.compared
        ), file
        assert model.config["architectures"], file
        text = model.config.get("text_config", model.config)
        assert isinstance(text["rms_norm_eps"], float), file  # and not the text '1e-05'


def test_the_fixed_set_is_large_and_each_deployment_is_another_one() -> None:
    deployments = read_deployments()
    assert len(deployments) >= SMALLEST_SET
    assert {deployment.gpu for deployment in deployments.values()} <= set(load_cards())
    assert len({deployment.command for deployment in deployments.values()}) == len(deployments)


@pytest.mark.parametrize("field", ["options", "variables", "thresholds", "config", "name"])
def test_a_line_that_sets_what_the_call_sets_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    folder = tmp_path / REHEARSE_FOLDER
    folder.mkdir(parents=True)
    (folder / "models").symlink_to(paths.project_folder() / REHEARSE_FOLDER / "models")
    (folder / "deployments.yaml").write_text(f"lite: {{model: deepseek-v2-lite, {field}: []}}\n")
    monkeypatch.setattr(paths, "project_folder", lambda: tmp_path)
    with pytest.raises(UnfixError, match=f"unknown field `{field}`"):
        read_deployments()


def test_the_command_of_a_deployment_can_be_pasted_into_a_shell() -> None:
    overrides = '{"max_position_embeddings": 1010000}'
    arguments = ["--tp", "4", "--json-model-override-args", overrides]
    command = Deployment("qwen3-next-80b-a3b", arguments=arguments).command
    assert command.startswith("./unfix rehearse qwen3-next-80b-a3b --gpu H200 ")
    assert shlex.split(command)[-len(arguments) :] == arguments


def test_the_command_of_a_deployment_names_its_release_and_its_toggles() -> None:
    deployment = Deployment(
        "llama-3.1-8b",
        arguments=["--tp", "2"],
        options=["--release", "0.5.23", "--revert", "28788,33665"],
        variables={"SGLANG_DEBUG_ENABLE_PR": "a b"},
    )
    assert deployment.command == (
        "SGLANG_DEBUG_ENABLE_PR='a b' ./unfix rehearse llama-3.1-8b --gpu H200 --gpus 8 "
        "--release 0.5.23 --revert 28788,33665 -- --tp 2"
    )


LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 "


@pytest.mark.parametrize(
    ("setting", "size", "context", "begin", "end"),
    [
        ("--context-length", 900, 1000, "", "--context-length 908"),
        ("--context-length", 992, 1000, "", "--context-length 1000"),
        ("--context-length", 993, 1000, LONGER, "--context-length 1001"),
        ("--chunked-prefill-size", 992, 1000, "", "--chunked-prefill-size 992"),
        (
            *("--chunked-prefill-size", 993, 1000, LONGER),
            "--context-length 1001 --chunked-prefill-size 993",
        ),
        ("--max-running-requests", 5000, 1000, "", "--max-running-requests 5000"),
        ("--max-running-requests", 5, 2000, LONGER, "--max-running-requests 5"),
    ],
)
def test_a_command_of_a_size_has_the_context_that_its_requests_need(
    setting: str, size: int, context: int, begin: str, end: str
) -> None:
    deployment = Deployment("m", arguments=["--tp", "8"])
    command = deployment.make_command(setting, size, context, model_context=1000, spare=8)
    assert command == f"{begin}{deployment.command} {end}"


def test_a_server_argument_is_read_in_both_ways_of_writing_it() -> None:
    deployment = Deployment("m", arguments=["--tp", "8", "--page-size=64", "--enable-mixed-chunk"])
    names = ("--tp", "--page-size", "--enable-mixed-chunk", "--ep")
    assert [deployment.get_argument(name) for name in names] == ["8", "64", "", None]


def test_a_whole_name_that_a_longer_one_begins_with_is_no_short_one() -> None:
    for word in ("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode", "--enable-lora", "--tp"):
        check_deployment(Deployment("m", arguments=[word, "8"]))


@pytest.mark.parametrize(
    "words",
    [
        ["--context-bucket", "4096"],
        ["--cuda-graph-prefill-max-context=4096"],
        ["--enable-piecewise-cuda-graph"],
        ["--enforce-piecewise-cuda-graph"],
        ["--enable-breakable-cuda-graph"],
        ["--decode-context-parallel-size", "2"],
        ["--cuda-graph-backend-prefill", "tc_piecewise"],
        ["--cuda-graph-backend-prefill=disabled", "--cuda-graph-backend-prefill=full"],
        ["--attn-cp-size", "1", "--dcp-size=2"],
        ["--pp-size", "2"],
    ],
)
def test_each_spelling_of_what_is_not_rehearsed_is_refused(words: list[str]) -> None:
    with pytest.raises(UnfixError, match="is not rehearsed: leave it out to rehearse the rest"):
        check_deployment(Deployment("m", arguments=words))


def test_a_value_that_switches_such_a_feature_off_is_taken() -> None:
    for words in (
        ["--cuda-graph-backend-prefill=disabled"],
        ["--cuda-graph-backend-prefill", "disabled", "--cuda-graph-max-bs-decode", "8"],
        ["--attn-cp-size", "1", "--attention-context-parallel-size=1"],
        ["--dcp-size", "1", "--decode-context-parallel-size=1"],
        ["--pp-size=1", "--pipeline-parallel-size", "1", "--disaggregation-mode", "null"],
    ):
        check_deployment(Deployment("m", arguments=words))


@pytest.mark.parametrize(
    ("words", "graphs", "prefill_graphs"),
    [
        ([], False, False),
        (["--cuda-graph-max-bs-decode", "8"], True, False),
        (["--cuda-graph-max-bs-prefill=8192"], False, True),
        (["--cuda-graph-bs-prefill", "64", "--cuda-graph-bs", "8"], True, True),
        (["--cuda-graph-backend-prefill", "breakable"], False, True),
        (["--cuda-graph-backend-prefill=disabled"], False, False),
    ],
)
def test_arguments_say_which_graphs_are_captured(
    words: list[str], graphs: bool, prefill_graphs: bool
) -> None:
    deployment = check_deployment(Deployment("m", arguments=words))
    assert (deployment.has_graphs, deployment.has_prefill_graphs) == (graphs, prefill_graphs)


def test_the_draft_model_is_one_of_the_models_folder() -> None:
    deployment = read_deployments()["llama-3.1-8b-eagle3"]
    assert deployment.draft_config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert read_deployments()["llama-3.1-8b-tp1"].draft_config == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama-3.1-8x"], "no model is called llama-3.1-8x; did you mean llama-3.1-8b?"),
        ([], "which model?"),
        (["llama-3.1-8b", "--gpu", "H300"], "there is no card 'H300'"),
        (
            ["llama-3.1-8b", "--", "--speculative-algorithm", "NGRAM"],
            "--speculative-algorithm NGRAM is not rehearsed; these are: EAGLE, EAGLE3, NEXTN",
        ),
        (
            ["llama-3.1-8b", "--", "--speculative-draft-model-path=llama-3.1-8b-eagle"],
            "no model is called llama-3.1-8b-eagle; did you mean llama-3.1-8b-eagle3?",
        ),
        (
            ["llama-3.1-8b", "--", "--lora-paths", "a=b"],
            "--lora-paths: an adapter of its own (--enable-lora has the largest ones) is not",
        ),
        (
            [
                *("llama-3.1-8b", "--", "--cuda-graph-max-bs-decode=8"),
                *("--speculative-algorithm", "EAGLE"),
            ],
            "CUDA graphs of drafts are not rehearsed: leave --cuda-graph-max-bs-decode out",
        ),
        (
            ["llama-3.1-8b", "--", "--cuda-graph-backend-prefill", "tc_piecewise"],
            "--cuda-graph-backend-prefill: prefill in CUDA graphs of compiled code or of a whole",
        ),
        (
            [
                *("llama-3.1-8b", "--", "--cuda-graph-max-bs-prefill=8"),
                *("--speculative-algorithm", "EAGLE"),
            ],
            "CUDA graphs of drafts are not rehearsed: leave --cuda-graph-max-bs-prefill out",
        ),
        (
            ["llama-3.1-8b", "--", "--dcp-size=2"],
            "--dcp-size: context parallelism of decode is not rehearsed: leave it out",
        ),
        (
            ["llama-3.1-8b", "--", "--cuda-graph-config", "{}"],
            "--cuda-graph-config: a configuration of graphs (--cuda-graph-bs-decode has those",
        ),
        (
            ["llama-3.1-8b", "--", "--speculative-algo", "EAGLE"],
            "--speculative-algo is short for --speculative-algorithm, which a rehearsal reads by",
        ),
        (
            ["llama-3.1-8b", "--", "--cuda-graph-bs-d=8"],
            "--cuda-graph-bs-d is short for --cuda-graph-bs-decode, ",
        ),
        (
            ["llama-3.1-8b", "--", "--lora-p", "a=b"],
            "--lora-p is short for --lora-paths, ",
        ),
        (["llama-3.1-405b-tp8", "--", "--tp", "4"], "so --tp 4 cannot apply; name its model"),
        (["llama-3.1-405b-tp8", "--gpu", "H100"], "so --gpu cannot apply"),
        (["--all", "--gpus", "4"], "so --gpus cannot apply"),
        (["llama-3.1-8b", "--diff", "0.5.20"], "--diff 0.5.20 is not A..B"),
        (["--config", "no/such.json"], "no/such.json cannot be read"),
    ],
)
def test_a_wrong_call_says_what_would_work(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rehearse", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_models_configuration_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"hidden_size": 64}))
    assert main(["rehearse", "--config", str(file)]) == 2
    assert "has no `architectures`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "splits"),
    [
        (["--enable-prefill-cp", "--cp-strategy", "interleave"], True),
        (["--attn-cp-size", "2"], True),
        (["--attn-cp-size=1"], False),
        (["--tp", "8"], False),
    ],
)
def test_arguments_say_whether_ranks_split_a_prompt(words: list[str], splits: bool) -> None:
    assert check_deployment(Deployment("m", arguments=words)).splits_context is splits
