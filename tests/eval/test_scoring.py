"""lm-eval's side: its requests to a server, and its handling of every response."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from calling import PATIENCE_SECONDS, wait_until
from faked import FakeServers, SharedLmEval, draw_questions, with_share, write_fake_lm_eval
from fixture_types import Patch
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import NotReadyError, UnfixError
from harness.runs.eval import lm_eval_client
from harness.runs.eval.lm_eval_scorer import LmEvalScorer
from harness.store import record_files
from harness.store.eval.values import ItemAnswer, ServedConfiguration
from harness.workers.servers.server import ServerFailed, SglangServer

TASK = "unfix_recall"
Answers = list[ItemAnswer]


def ask_server(
    shared: SharedLmEval, server: SglangServer, numbers: Any = None, **settings: Any
) -> Answers:
    settings = {
        "items": 60,
        "concurrency": 4,
        "model": "m",
        "request_timeout": PATIENCE_SECONDS,
        **settings,
    }
    samples = settings.pop("samples", {TASK: list(range(20)) if numbers is None else numbers})
    return shared.scorer.score_items(server, samples, **settings)


def test_prompts_arrive_verbatim_and_answers_match(
    serve: FakeServers, lm_eval: SharedLmEval
) -> None:
    record = serve.root / "asked"
    server = serve(record=str(record))
    numbers = [3, 57, 20, 21]  # any, in any order: lm-eval itself counts them from 0
    answers = ask_server(lm_eval, server, numbers)
    expected = draw_questions(60)
    requests = [json.loads(line) for line in record.read_text().splitlines()]
    assert {one["prompt"] for one in requests} == {expected[number]["prompt"] for number in numbers}
    assert {one["stop"] == [";"] and one["max_tokens"] == 24 for one in requests} == {True}
    assert {(one["temperature"], one["logprobs"], one["seed"]) for one in requests} == {(0.0, 2, 0)}
    assert [answer.number for answer in answers] == sorted(numbers)
    for answer in answers:
        item = expected[answer.number]
        assert (answer.task, answer.prompt) == (TASK, item["prompt"])
        assert answer.target == answer.text == item["answer"][:-1]
        assert answer.right is True
        assert answer.error == ""
        assert answer.tokens == list(answer.text)
        assert answer.logprobs == [-0.125] * len(answer.text)
        assert answer.margins == [4.0] * len(answer.text)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("http", "HTTP 500: the scheduler fell over"),
        ("garbage", "JSONDecodeError"),
        ("null", "TypeError: the text of the answer is None"),
        ("abort", "given up: abort"),
        ("hang", "timed out"),
    ],
)
def test_no_answer_is_an_error(
    serve: FakeServers, lm_eval: SharedLmEval, how: str, words: str
) -> None:
    share = [5, 1]
    numbers = list(range(20, 40))  # of a later batch
    bad = [number for number in with_share(share, 40) if number >= 20]
    assert 0 < len(bad) < 10
    bes: dict[str, Any] = {how: share}
    server = serve(**bes)
    limit = 8.0 if how == "hang" else PATIENCE_SECONDS  # long enough for a busy machine
    answers = ask_server(lm_eval, server, numbers, request_timeout=limit)
    assert [answer.number for answer in answers] == numbers
    for answer in answers:
        if answer.number in bad:
            assert answer.right is None
            assert words in answer.error
        else:
            assert (answer.right, answer.error) == (True, "")
    served = ServedConfiguration("s", "m", "r", [], "cpu", answers=answers)
    assert any(f"{len(bad)} of its answers are errors" in one for one in served.problems)


def test_a_server_that_gives_no_answer_for_a_whole_limit_gets_no_more_questions(
    serve: FakeServers, lm_eval: SharedLmEval, tmp_path: Path
) -> None:
    record = tmp_path / "asked"
    server = serve(hang=[1, 1], record=str(record))
    answers = ask_server(lm_eval, server, list(range(40)), concurrency=4, request_timeout=0.5)
    assert [answer.right for answer in answers] == [None] * 40
    errors = [answer.error for answer in answers]
    request_count = sum("timed out" in error for error in errors)
    assert 1 <= request_count <= 4
    assert errors.count("not asked: no answer had come for 0.5 s") == 40 - request_count
    # A busy server reads a request after its sender has given up.
    assert wait_until(
        lambda: record.exists() and 1 <= len(record.read_text().splitlines()) <= request_count
    )


def test_a_dying_servers_answers_are_kept(serve: FakeServers, lm_eval: SharedLmEval) -> None:
    server = serve(dies_at=10)
    answers = ask_server(lm_eval, server, list(range(40)))
    assert [answer.number for answer in answers] == list(range(40))
    right = [answer for answer in answers if answer.right]
    assert 5 <= len(right) <= 9
    assert all(answer.error and answer.right is None for answer in answers if answer not in right)
    assert wait_until(lambda: server.has_exited)
    assert server.describe_exit() == "RuntimeError: no more (exit code 1)"


def test_likelihoods_that_are_no_numbers(serve: FakeServers, lm_eval: SharedLmEval) -> None:
    answers = ask_server(lm_eval, serve(nan=[2, 1]))
    strange = with_share([2, 1], 20)
    for answer in answers:
        assert answer.right is True
        assert answer.error == ""
        known = answer.number not in strange
        assert [one is not None for one in answer.logprobs] == [known] * len(answer.text)
        assert [one is not None for one in answer.margins] == [known] * len(answer.text)


SHOTS = """
task: shots
custom_dataset: !function shots.documents
output_type: generate_until
test_split: test
fewshot_split: test
num_fewshot: 3
doc_to_text: "what is {{a}}?"
doc_to_target: "{{a}}"
generation_kwargs: {until: [";"], max_gen_toks: 9}
metric_list: [{metric: exact_match}]
"""
SHOTS_SCORE = SHOTS[SHOTS.index("generation_kwargs") :]
CHOICES = 'doc_to_choice: ["{{a}}", "other"]\nmetric_list: [{metric: acc}]\n'


def write_task(folder: Path, definition: str) -> None:
    (folder / "shots.yaml").write_text(definition)
    (folder / "shots.py").write_text(
        "from datasets import Dataset\n"
        "def documents(**settings):\n"
        "    return {'test': Dataset.from_list([{'a': f'n{n}'} for n in range(30)])}\n"
    )


def test_few_shot_examples_are_the_items(
    serve: FakeServers, lm_eval: SharedLmEval, monkeypatch: Patch
) -> None:
    """lm-eval draws them in sequence: in batches, an item would get others."""
    write_task(serve.root, SHOTS)
    monkeypatch.setattr("harness.runs.eval.lm_eval_scorer.TASKS_FOLDER", serve.root)
    server = serve()
    every = ask_server(lm_eval, server, samples={"shots": list(range(30))})
    assert len({answer.prompt.rpartition("what is")[0] for answer in every}) > 10
    assert all(answer.prompt.count("what is") == 4 for answer in every)
    for some in ([3], [20, 21, 29], [0, 29]):
        again = ask_server(lm_eval, server, samples={"shots": some})
        assert [one.prompt for one in again] == [every[number].prompt for number in some]


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("unfix_recal", "lm-eval knows no task unfix_recal"),
        ("unfix", "unfix is several tasks of lm-eval"),
        ("unfix_reca", "lm-eval knows no task unfix_reca"),  # from its own input before
    ],
)
def test_a_task_that_there_is_not(
    serve: FakeServers, lm_eval: SharedLmEval, task: str, words: str
) -> None:
    with pytest.raises(UnfixError, match=words):
        ask_server(lm_eval, serve(), samples={task: [0]})


@pytest.mark.parametrize("kind", ["multiple_choice", "loglikelihood"])
def test_a_task_that_is_scored_by_likelihood_is_refused(
    serve: FakeServers, lm_eval: SharedLmEval, monkeypatch: Patch, kind: str
) -> None:
    write_task(serve.root, SHOTS.replace("generate_until", kind).replace(SHOTS_SCORE, CHOICES))
    monkeypatch.setattr("harness.runs.eval.lm_eval_scorer.TASKS_FOLDER", serve.root)
    record = serve.root / "asked"
    with pytest.raises(UnfixError, match="shots asks for likelihoods, not for an answer"):
        ask_server(lm_eval, serve(record=str(record)), samples={"shots": [0]})
    assert not record.exists()


def test_items_that_a_task_does_not_have_are_not_made_up(
    serve: FakeServers, lm_eval: SharedLmEval
) -> None:
    record = serve.root / "asked"
    server = serve(record=str(record))
    answers = ask_server(lm_eval, server, [58, 59, 60, 61])
    assert [answer.number for answer in answers] == [58, 59]
    assert ask_server(lm_eval, server, [60, 61]) == []
    assert len(record.read_text().splitlines()) == 2
    with pytest.raises(UnfixError, match="the task unfix_recall has no items"):
        ask_server(lm_eval, server, items=0)


def stand_in(patch: Patch, folder: Path, code: str) -> LmEvalScorer:
    """Return a scorer whose lm-eval runs this code on a request."""
    python = write_fake_lm_eval(folder, code)
    patch.setattr("harness.runs.eval.lm_eval_scorer.find_lm_eval_python", lambda: python)
    return LmEvalScorer(folder / "log", 0)


def test_lm_eval_that_ends_is_no_traceback_and_no_hang(
    serve: FakeServers, monkeypatch: Patch
) -> None:
    scorer = stand_in(monkeypatch, serve.root, "print('no memory'); sys.exit(1)")
    server = serve()
    for _ in range(2):
        with pytest.raises(NotReadyError, match="lm-eval ended: no memory"):
            scorer.score_items(server, {TASK: [0, 1]}, items=9, concurrency=2, model="m")
    scorer.close()


def test_lm_eval_that_is_silent_is_given_up(serve: FakeServers, monkeypatch: Patch) -> None:
    monkeypatch.setattr("harness.runs.eval.lm_eval_scorer.SCORING_SECONDS", 0.1)
    monkeypatch.setattr("harness.runs.eval.lm_eval_scorer.DEAD_SERVER_SECONDS", 0.3)
    scorer = stand_in(monkeypatch, serve.root, "")
    server = serve()
    options: dict[str, Any] = {"items": 9, "concurrency": 2, "model": "m"}
    with pytest.raises(ServerFailed, match="no answers within"):
        scorer.score_items(server, {TASK: [0]}, request_timeout=0.1, total_timeout=0.2, **options)
    server.stop()
    began = time.monotonic()
    with pytest.raises(ServerFailed, match="no answers within"):
        scorer.score_items(server, {TASK: [0]}, **options)
    assert (
        time.monotonic() - began < PATIENCE_SECONDS
    )  # the limits of the request are an hour and more
    scorer.close()


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
near = st.fixed_dictionaries(
    {"text": st.text() | json_values},
    optional={
        "finish_reason": st.sampled_from([None, "stop", "length", "abort", 3]),
        "logprobs": json_values
        | st.fixed_dictionaries(
            {},
            optional={
                "tokens": st.lists(st.text(max_size=3), max_size=3) | json_values,
                "token_logprobs": st.lists(st.floats() | st.none(), max_size=3) | json_values,
                "top_logprobs": st.lists(
                    st.none() | st.dictionaries(st.text(max_size=2), st.floats(), max_size=3),
                    max_size=3,
                )
                | json_values,
            },
        ),
    },
)
completions = json_values | st.fixed_dictionaries(
    {"choices": json_values | st.lists(near, max_size=2)}
)


@given(completions)
def test_any_answer_is_understood_whole_or_not_at_all(answer: Any) -> None:
    try:
        found = lm_eval_client.parse_completion(answer)
    except Exception:
        return  # an error of this item; `ask` takes any
    assert isinstance(found["text"], str)
    assert found["text"] == lm_eval_client.escape_surrogates(answer["choices"][0]["text"])
    assert found["error"] == ""
    count = len(found["tokens"])
    assert all(isinstance(token, str) for token in found["tokens"])
    for name in ("logprobs", "margins"):
        assert len(found[name]) in (0, count)
        assert all(one is None or math.isfinite(one) for one in found[name])
    json.dumps(found, allow_nan=False).encode()


def test_margins_are_over_the_best_other_token() -> None:
    best = [{"a": -0.5, "b": -1.5, "c": -9.0}, {"b": -2.0}, None, {"c": -1.0, "d": math.nan}]
    likelihoods = [-0.5, -2.0, -math.inf, -1.0]
    logprobs = {"tokens": list("abcc"), "token_logprobs": likelihoods, "top_logprobs": best}
    choice = {"text": "abcc", "logprobs": logprobs}
    found = lm_eval_client.parse_completion({"choices": [choice]})
    assert found["margins"] == [1.0, None, None, None]
    assert found["logprobs"] == [-0.5, -2.0, None, -1.0]


def test_answers_are_judged_by_the_numbers_that_a_record_keeps() -> None:
    """A lead of twice the noise, which is no drift, was one by its sixteenth digit."""
    likelihood, runner_up = -0.00012345678, -5.6250004
    logprobs = {
        "tokens": ["a"],
        "token_logprobs": [likelihood],
        "top_logprobs": [{"a": likelihood, "b": runner_up}],
    }
    found = lm_eval_client.parse_completion({"choices": [{"text": "a", "logprobs": logprobs}]})
    assert found["logprobs"] == [-0.000123457]
    assert found["margins"] == [5.62488]
    assert record_files.round_numbers(found) == found


@pytest.mark.parametrize(
    ("value", "right", "error"),
    [
        (1.0, True, ""),
        (0, False, ""),
        ([1.0, 7], True, ""),
        (0.5, None, "its score is 0.5, which is neither right nor wrong"),
        (math.nan, None, "its score is nan"),
        (None, None, "its score is None"),
    ],
)
def test_a_score_is_right_or_wrong_or_nobody_knows(value: Any, right: Any, error: str) -> None:
    sample = {"doc_id": 4, "metrics": ["m"], "m": value, "arguments": [["p"]], "target": "t"}
    heard: dict[Any, dict[str, Any]] = {("task", 4): {"prompt": "p", "text": "x", "error": ""}}
    second = {**sample, "m": 0.0}  # by another filter of the same task
    [answer] = lm_eval_client.collect_answers({"task": [sample, second]}, heard)
    assert answer["right"] is right
    assert error in answer["error"]
    [never] = lm_eval_client.collect_answers({"task": [sample]}, {})
    assert (never["right"], never["error"]) == (None, "it was never asked")
    heard["task", 4]["error"] = "HTTP 500"
    [failed] = lm_eval_client.collect_answers({"task": [sample]}, heard)
    assert (failed["right"], failed["error"]) == (None, "HTTP 500")
