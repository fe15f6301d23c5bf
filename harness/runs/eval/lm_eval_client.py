"""Runs lm-eval's tasks against a server, in lm-eval's own Python, and scores the answers.

    python -m harness.runs.eval.lm_eval_client READ WRITE      (file descriptors; by `LmEvalScorer`)

It imports nothing of this project. It differs from lm-eval's own completions client in one thing:
an item that the server answers with an error stays an item without an answer. lm-eval would stop
there, or score an empty string as wrong. Each answer keeps its tokens, logprobs and margins.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import logging
import math
import os
import random
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from typing import Any, NoReturn

from harness.store.record_files import round_numbers

NO_ANSWER_TEXT = "\x00no answer\x00"  # lm-eval scores it in place of an answer; not used
REQUEST_SECONDS = 600.0


def main(read: int, write: int) -> NoReturn:
    import lm_eval
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.WARNING)

    class Client(LocalCompletionsAPI):  # type: ignore[misc, unused-ignore]
        """lm-eval's client, with one request at a time in each thread and errors by item."""

        def __init__(self, request: dict[str, Any]) -> None:
            backend = "huggingface" if request.get("tokenizer") else None
            super().__init__(
                base_url=request["url"] + "/v1/completions",
                model=request["model"],
                tokenizer=request.get("tokenizer"),
                tokenizer_backend=backend,
                tokenized_requests=False,
                max_retries=1,
            )
            self.concurrency = request["concurrency"]
            self.completion_client = CompletionClient(request)

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            with concurrent.futures.ThreadPoolExecutor(self.concurrency) as pool:
                return list(pool.map(self.completion_client.answer, requests))

        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
            raise ValueError(f"{requests[0].task_name} asks for likelihoods, not for an answer")

        loglikelihood_rolling = loglikelihood

    catalogue: LmEvalTasks | None = None
    _write_message(write, {"ready": os.getpid()})
    with os.fdopen(read) as requests:
        for line in requests:
            request = json.loads(line)
            try:
                if catalogue is None or catalogue.settings != request["known"]:
                    catalogue = LmEvalTasks(TaskManager, request["known"])
                tasks = catalogue.load(request["tasks"])
                sizes = {name: len(task.eval_docs) for name, task in tasks.items()}
                samples = request["samples"] = select_existing_items(request["samples"], sizes)
                answers = []
                if samples:
                    client = Client(request)
                    chosen = {name: tasks[name] for name in samples}
                    result = lm_eval.evaluate(
                        lm=client,
                        task_dict={"tasks": chosen, "groups": {}, "group_map": {}},
                        samples=samples,
                        bootstrap_iters=0,
                    )
                    completions = client.completion_client.completions
                    answers = collect_answers(result["samples"], completions)
                Path(request["out"]).write_text(json.dumps(answers))
                _write_message(write, {"done": request["out"]})
            except Exception as error:
                traceback.print_exc()
                _write_message(write, {"failed": f"{type(error).__name__}: {error}"[:2000]})
    os._exit(0)


class LmEvalTasks:
    """The tasks of lm-eval and of this project. Reading all of lm-eval's takes seconds."""

    _all_names: set[str] | None = None  # all tasks, once lm-eval's own are read

    def __init__(self, manager_class: Any, settings: dict[str, Any]) -> None:
        self.settings = settings
        self._manager_class = manager_class
        self._managers: dict[bool, Any] = {}
        self._loaded: dict[str, Any] = {}

    def load(self, names: list[str]) -> dict[str, Any]:
        """Load tasks once: a task draws all its items, and the batches use them in turn."""
        manager = self._find_manager(names)
        for name in names:
            if name not in self._loaded:
                random.seed(self.settings["metadata"]["seed"])
                try:
                    task = manager.load([name])["tasks"][name]
                    item_count = len(task.eval_docs)
                except IndexError:  # lm-eval reads the first item
                    item_count = 0
                if not item_count:
                    raise ValueError(f"the task {name} has no items")
                if task.get_config("num_fewshot") is None:
                    task.set_config(key="num_fewshot", value=0)
                self._loaded[name] = seed_examples_by_item(task, self.settings["metadata"]["seed"])
        return {name: self._loaded[name] for name in names}

    def _find_manager(self, tasks: list[str]) -> Any:
        """Find a task manager that has all tasks; read lm-eval's own tasks only if needed."""
        for every in (False, True):
            if every:
                self._refuse_unknown(tasks)
            if every not in self._managers:
                self._managers[every] = self._manager_class(
                    include_path=self.settings["folder"],
                    include_defaults=every,
                    metadata=self.settings["metadata"],
                )
            manager = self._managers[every]
            if set(tasks) <= set(manager.all_subtasks):
                return manager
            groups = set(tasks) & (set(manager.all_tasks) - set(manager.all_subtasks))
            if groups:
                raise ValueError(f"{groups.pop()} is several tasks of lm-eval: name one by one")
        LmEvalTasks._all_names = set(manager.all_tasks)
        self._refuse_unknown(tasks)
        raise AssertionError(tasks)

    def _refuse_unknown(self, tasks: list[str]) -> None:
        for task in tasks:
            if self._all_names is not None and task not in self._all_names:
                raise ValueError(f"lm-eval knows no task {task}")


def seed_examples_by_item(task: Any, seed: int) -> Any:
    """Draw the few-shot examples of an item by its own seed, independent of earlier items."""
    original = task.fewshot_context

    def fewshot_context(doc: Any, *arguments: Any, **options: Any) -> Any:
        text = json.dumps(doc, sort_keys=True, default=str)
        task.set_fewshot_seed(seed + zlib.crc32(text.encode()))
        return original(doc, *arguments, **options)

    task.fewshot_context = fewshot_context
    return task


def select_existing_items(
    items_by_task: dict[str, list[int]], sizes: dict[str, int]
) -> dict[str, list[int]]:
    """Return the numbers that exist, in the order of the task; lm-eval checks none of them."""
    existing = {
        task: sorted({number for number in numbers if 0 <= number < sizes[task]})
        for task, numbers in items_by_task.items()
    }
    return {task: numbers for task, numbers in existing.items() if numbers}


class CompletionClient:
    """Sends the items to one server, and records the completions; used by several threads."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.completions: dict[tuple[str, int], dict[str, Any]] = {}
        self._deadline = time.monotonic() + request["seconds"]
        self._quiet_since: float | None = None  # since then no answer has come; None: not asked
        self._lock = threading.Lock()

    def answer(self, request: Any) -> str:
        prompt, settings = request.args
        # lm-eval numbers the chosen items from 0.
        number = self.request["samples"][request.task_name][request.doc_id]
        until = settings.get("until") or []
        question = {
            "model": self.request["model"],
            "prompt": prompt,
            "max_tokens": settings.get("max_gen_toks", 256),
            "temperature": settings.get("temperature", 0.0),
            "stop": [until] if isinstance(until, str) else list(until),
            "logprobs": 2,
            "seed": self.request["seed"],
        }
        completion = self._request_in_time(question)
        self.completions[request.task_name, number] = {"prompt": prompt, **completion}
        return NO_ANSWER_TEXT if completion["error"] else str(completion["text"])

    def _request_in_time(self, question: dict[str, Any]) -> dict[str, Any]:
        """Request one completion; once no answer has come for a whole limit, the rest fail."""
        began = time.monotonic()
        left = self._deadline - began
        with self._lock:
            quiet_since = self._quiet_since = self._quiet_since or began
        if began - quiet_since >= self.request["limit"]:
            return make_failed_completion(
                f"not asked: no answer had come for {self.request['limit']:g} s"
            )
        if left <= 0:
            return make_failed_completion(f"not asked: {self.request['seconds']:.0f} s were over")
        limit = min(self.request["limit"], left)
        completion = request_completion(self.request["url"] + "/v1/completions", question, limit)
        ended = time.monotonic()
        if not completion["error"] or ended - began < limit:
            with self._lock:
                self._quiet_since = ended
        return completion


def collect_answers(
    samples: dict[str, list[dict[str, Any]]], completions: dict[tuple[str, int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Collect one answer per item; of several lm-eval filters the first scores it."""
    answers: dict[tuple[str, int], dict[str, Any]] = {}
    for task, task_samples in samples.items():
        for sample in task_samples:
            answers.setdefault((task, sample["doc_id"]), _score_answer(task, sample, completions))
    return list(answers.values())


def _score_answer(
    task: str, sample: dict[str, Any], completions: dict[Any, dict[str, Any]]
) -> dict[str, Any]:
    """Score one item; the score is None without an answer."""
    never = make_failed_completion("it was never asked")
    completion = completions.get((task, sample["doc_id"]), never)
    metrics = [sample[name] for name in sample.get("metrics", ()) if name in sample]
    value = metrics[0] if metrics else None
    error = str(completion.get("error", ""))
    right = None
    if not error:
        if isinstance(value, (list, tuple)):
            value = value[0] if value else None
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):
            error = f"its score is {value!r}, which is neither right nor wrong"
        else:
            right = bool(value)
    prompt = completion.get("prompt") or str(sample["arguments"])
    return {
        "task": task,
        "number": sample["doc_id"],
        "prompt": prompt,
        "target": str(sample["target"]),
        "text": str(completion.get("text", sample.get("filtered_resps", ""))),
        "right": right,
        "error": error,
        "tokens": completion.get("tokens", []),
        "logprobs": completion.get("logprobs", []),
        "margins": completion.get("margins", []),
    }


def request_completion(
    url: str, question: dict[str, Any], timeout: float = REQUEST_SECONDS
) -> dict[str, Any]:
    """Request one completion: text, tokens, logprobs, margins; a failure is the item's error."""
    request = urllib.request.Request(
        url, json.dumps(question).encode(), {"content-type": "application/json"}
    )
    # The server is local: a proxy of the environment is ignored.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            return parse_completion(json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        text = ""
        with contextlib.suppress(OSError, http.client.HTTPException):
            text = error.read().decode(errors="replace")[:300]
        return make_failed_completion(f"HTTP {error.code}: {text}")
    except Exception as error:
        return make_failed_completion(f"{type(error).__name__}: {error}"[:600])


def make_failed_completion(error: str) -> dict[str, Any]:
    return {
        "text": "",
        "tokens": [],
        "logprobs": [],
        "margins": [],
        "error": escape_surrogates(error),
    }


def parse_completion(response: Any) -> dict[str, Any]:
    """Parse the parts of a completion; raise if any part is missing or malformed."""
    if isinstance(response, dict) and "choices" not in response:
        raise ValueError(f"no answer: {json.dumps(response)[:300]}")
    [choice] = response["choices"]
    text, reason = choice["text"], choice.get("finish_reason")
    if not isinstance(text, str):
        raise TypeError(f"the text of the answer is {text!r}")
    if reason not in (None, "stop", "length"):
        raise ValueError(f"the answer was given up: {str(reason)[:200]}")
    details = choice.get("logprobs") or {}
    tokens = details.get("tokens") or []
    logprobs = details.get("token_logprobs") or []
    top_logprobs = details.get("top_logprobs") or []
    if not all(isinstance(part, list) for part in (tokens, logprobs, top_logprobs)):
        raise TypeError("tokens and their logprobs are no lists")
    if not all(isinstance(token, str) for token in tokens):
        raise TypeError("a token of the answer is no text")
    if len(logprobs) not in (0, len(tokens)) or len(top_logprobs) not in (0, len(tokens)):
        raise ValueError(
            f"{len(tokens)} tokens, {len(logprobs)} logprobs, {len(top_logprobs)} top logprobs"
        )
    completion = {
        "text": escape_surrogates(text),
        "tokens": [escape_surrogates(token) for token in tokens],
        # JSON has no NaN: a logprob that is not a number becomes null.
        "logprobs": [float(value) if _is_finite(value) else None for value in logprobs],
        "margins": [
            _compute_margin(token, logprob, top)
            for token, logprob, top in zip(tokens, logprobs, top_logprobs, strict=False)
        ],
        "error": "",
    }
    rounded: dict[str, Any] = round_numbers(completion)
    return rounded


def _compute_margin(token: str, logprob: Any, top_logprobs: dict[str, Any] | None) -> float | None:
    """Return the logprob of a token minus that of the best other token."""
    others = [value for other, value in (top_logprobs or {}).items() if other != token]
    known = others and all(_is_finite(value) for value in (logprob, *others))
    return float(logprob) - max(map(float, others)) if known else None


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def escape_surrogates(text: str) -> str:
    """Escape half a character, as a broken detokenizer sends it; it cannot be stored as UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def _write_message(write: int, message: dict[str, Any]) -> None:
    os.write(write, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
