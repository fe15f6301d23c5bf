"""lm-eval's half of an evaluation: its tasks and its scoring, asked of a server that is up.

    python -m harness.eval.lm_side READ WRITE      (in lm-eval's own Python, by `Scorer`)

It is lm-eval's own client for OpenAI's completions but for one thing: an item that the server
answers with an error stays an item, and is said to have no answer. lm-eval would stop there, or
score an empty string as wrong. Each answer is kept with its tokens and how likely they were.
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

NOTHING = "\x00no answer\x00"  # what lm-eval scores in place of an answer; its score is dropped
SECONDS = 600.0


def main(read: int, write: int) -> NoReturn:
    import lm_eval
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.WARNING)

    class Client(LocalCompletionsAPI):  # type: ignore[misc, unused-ignore]
        """lm-eval's client, one request at a time per thread, with errors by item."""

        def __init__(self, asked: dict[str, Any]) -> None:
            backend = "huggingface" if asked.get("tokenizer") else None
            super().__init__(
                base_url=asked["url"] + "/v1/completions",
                model=asked["model"],
                tokenizer=asked.get("tokenizer"),
                tokenizer_backend=backend,
                tokenized_requests=False,
                max_retries=1,
            )
            self.asked = asked
            self.line = Line(asked)

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            with concurrent.futures.ThreadPoolExecutor(self.asked["concurrency"]) as pool:
                return list(pool.map(self.line.answer, requests))

        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
            raise ValueError(f"{requests[0].task_name} is not answered in words: only likelihoods")

        loglikelihood_rolling = loglikelihood

    catalogue: Tasks | None = None
    _say(write, {"ready": os.getpid()})
    with os.fdopen(read) as orders:
        for line in orders:
            asked = json.loads(line)
            try:
                if catalogue is None or catalogue.known != asked["known"]:
                    catalogue = Tasks(TaskManager, asked["known"])
                tasks = catalogue.load(asked["tasks"])
                sizes = {name: len(task.eval_docs) for name, task in tasks.items()}
                asked["samples"] = within(asked["samples"], sizes)
                answers = []
                if asked["samples"]:
                    client = Client(asked)
                    wanted = {name: tasks[name] for name in asked["samples"]}
                    found = lm_eval.evaluate(
                        lm=client,
                        task_dict={"tasks": wanted, "groups": {}, "group_map": {}},
                        samples=asked["samples"],
                        bootstrap_iters=0,
                    )
                    answers = answers_of(found["samples"], client.line.heard)
                Path(asked["out"]).write_text(json.dumps(answers))
                _say(write, {"done": asked["out"]})
            except Exception as error:
                traceback.print_exc()
                _say(write, {"failed": f"{type(error).__name__}: {error}"[:2000]})
    os._exit(0)


class Tasks:
    """lm-eval's tasks and ours, with these settings. Reading all of lm-eval's takes seconds."""

    _names: set[str] | None = None  # of all that lm-eval can be asked for, whatever the settings

    def __init__(self, kind: Any, known: dict[str, Any]) -> None:
        self.known = known
        self._kind = kind
        self._managers: dict[bool, Any] = {}
        self._loaded: dict[str, Any] = {}

    def load(self, names: list[str]) -> dict[str, Any]:
        """They are kept: a task draws all its items, and is asked for them batch by batch."""
        manager = self._manager(names)
        for name in names:
            if name not in self._loaded:
                random.seed(self.known["metadata"]["seed"])
                try:
                    task = manager.load([name])["tasks"][name]
                    some = len(task.eval_docs)
                except IndexError:  # lm-eval looks at the first one
                    some = 0
                if not some:
                    raise ValueError(f"the task {name} has no items")
                if task.get_config("num_fewshot") is None:
                    task.set_config(key="num_fewshot", value=0)
                self._loaded[name] = by_item(task, self.known["metadata"]["seed"])
        return {name: self._loaded[name] for name in names}

    def _manager(self, tasks: list[str]) -> Any:
        """One that knows them all."""
        for every in (False, True):
            if every:
                self._refuse_strange(tasks)
            if every not in self._managers:
                self._managers[every] = self._kind(
                    include_path=self.known["folder"],
                    include_defaults=every,
                    metadata=self.known["metadata"],
                )
            found = self._managers[every]
            if set(tasks) <= set(found.all_subtasks):
                return found
            several = set(tasks) & (set(found.all_tasks) - set(found.all_subtasks))
            if several:
                raise ValueError(f"{several.pop()} is several tasks of lm-eval: name one by one")
        Tasks._names = set(found.all_tasks)
        self._refuse_strange(tasks)
        raise AssertionError(tasks)

    def _refuse_strange(self, tasks: list[str]) -> None:
        for task in tasks:
            if self._names is not None and task not in self._names:
                raise ValueError(f"lm-eval knows no task {task}")


def by_item(task: Any, seed: int) -> Any:
    """Have a task draw the examples of an item by that item, whatever was asked before it."""
    original = task.fewshot_context

    def fewshot_context(doc: Any, *arguments: Any, **options: Any) -> Any:
        text = json.dumps(doc, sort_keys=True, default=str)
        task.set_fewshot_seed(seed + zlib.crc32(text.encode()))
        return original(doc, *arguments, **options)

    task.fewshot_context = fewshot_context
    return task


def within(samples: dict[str, list[int]], sizes: dict[str, int]) -> dict[str, list[int]]:
    """The items that there are, in the tasks' own order: lm-eval takes any number by its place."""
    there = {
        task: sorted({number for number in numbers if 0 <= number < sizes[task]})
        for task, numbers in samples.items()
    }
    return {task: numbers for task, numbers in there.items() if numbers}


class Line:
    """What is asked of one server, and what was heard; from several threads."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked
        self.heard: dict[tuple[str, int], dict[str, Any]] = {}
        self._ends = time.monotonic() + asked["seconds"]
        self._silent = 0  # requests in a row that were not answered in time
        self._lock = threading.Lock()

    def answer(self, request: Any) -> str:
        prompt, settings = request.args
        # lm-eval counts what it was told to ask for, whichever items these are.
        number = self.asked["samples"][request.task_name][request.doc_id]
        until = settings.get("until") or []
        question = {
            "model": self.asked["model"],
            "prompt": prompt,
            "max_tokens": settings.get("max_gen_toks", 256),
            "temperature": settings.get("temperature", 0.0),
            "stop": [until] if isinstance(until, str) else list(until),
            "logprobs": 2,
            "seed": self.asked["seed"],
        }
        heard = self._ask(question)
        self.heard[request.task_name, number] = {"prompt": prompt, **heard}
        return NOTHING if heard["error"] else str(heard["text"])

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """A server that hangs is not waited for again and again: the rest are errors at once."""
        left = self._ends - time.monotonic()
        with self._lock:
            silent = self._silent
        if silent >= self.asked["concurrency"]:
            return no_answer(f"not asked: {silent} requests in a row had no answer in time")
        if left <= 0:
            return no_answer(f"not asked: {self.asked['seconds']:.0f} s were over")
        limit = min(self.asked["limit"], left)
        began = time.monotonic()
        heard = ask(self.asked["url"] + "/v1/completions", question, limit)
        in_time = not heard["error"] or time.monotonic() - began < limit
        with self._lock:
            self._silent = 0 if in_time else self._silent + 1
        return heard


def answers_of(
    samples: dict[str, list[dict[str, Any]]], heard: dict[tuple[str, int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """One answer an item: where lm-eval scores it by several filters, by its first."""
    answers: dict[tuple[str, int], dict[str, Any]] = {}
    for task, found in samples.items():
        for sample in found:
            answers.setdefault((task, sample["doc_id"]), _answer(task, sample, heard))
    return list(answers.values())


def _answer(task: str, sample: dict[str, Any], heard: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """One item with its score; the score is nothing where there was no answer."""
    said = heard.get((task, sample["doc_id"]), no_answer("it was never asked"))
    metrics = [sample[name] for name in sample.get("metrics", ()) if name in sample]
    value = metrics[0] if metrics else None
    error = str(said.get("error", ""))
    right = None
    if not error:
        if isinstance(value, (list, tuple)):
            value = value[0] if value else None
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):
            error = f"its score is {value!r}, which is neither right nor wrong"
        else:
            right = bool(value)
    prompt = said.get("prompt") or str(sample["arguments"])
    return {
        "task": task,
        "number": sample["doc_id"],
        "prompt": prompt,
        "target": str(sample["target"]),
        "text": str(said.get("text", sample.get("filtered_resps", ""))),
        "right": right,
        "error": error,
        "tokens": said.get("tokens", []),
        "logprobs": said.get("logprobs", []),
        "margins": said.get("margins", []),
    }


def ask(url: str, question: dict[str, Any], limit: float = SECONDS) -> dict[str, Any]:
    """One completion: its text, its tokens, how likely each was, and by how much it won.

    Whatever goes wrong is this item's error, and no other's.
    """
    request = urllib.request.Request(
        url, json.dumps(question).encode(), {"content-type": "application/json"}
    )
    # A proxy of the environment has no business here.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=limit) as answer:
            return understood(json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        words = ""
        with contextlib.suppress(OSError, http.client.HTTPException):
            words = error.read().decode(errors="replace")[:300]
        return no_answer(f"HTTP {error.code}: {words}")
    except Exception as error:
        return no_answer(f"{type(error).__name__}: {error}"[:600])


def no_answer(error: str) -> dict[str, Any]:
    return {"text": "", "tokens": [], "logprobs": [], "margins": [], "error": plain(error)}


def understood(said: Any) -> dict[str, Any]:
    """The parts of an answer, or an exception: half an answer is none."""
    if isinstance(said, dict) and "choices" not in said:
        raise ValueError(f"no answer: {json.dumps(said)[:300]}")
    [choice] = said["choices"]
    text, why = choice["text"], choice.get("finish_reason")
    if not isinstance(text, str):
        raise TypeError(f"the text of the answer is {text!r}")
    if why not in (None, "stop", "length"):
        raise ValueError(f"the answer was given up: {str(why)[:200]}")
    found = choice.get("logprobs") or {}
    tokens = found.get("tokens") or []
    logprobs = found.get("token_logprobs") or []
    best = found.get("top_logprobs") or []
    if not all(isinstance(one, list) for one in (tokens, logprobs, best)):
        raise TypeError("tokens and their likelihoods are no lists")
    if not all(isinstance(token, str) for token in tokens):
        raise TypeError("a token of the answer is no text")
    if len(logprobs) not in (0, len(tokens)) or len(best) not in (0, len(tokens)):
        raise ValueError(
            f"{len(tokens)} tokens, {len(logprobs)} likelihoods, {len(best)} of the best"
        )
    return {
        "text": plain(text),
        "tokens": [plain(token) for token in tokens],
        # JSON has no NaN: a likelihood that is no number is nothing.
        "logprobs": [float(value) if _finite(value) else None for value in logprobs],
        "margins": [
            _margin(token, mine, there)
            for token, mine, there in zip(tokens, logprobs, best, strict=False)
        ],
        "error": "",
    }


def _margin(token: str, mine: Any, best: dict[str, Any] | None) -> float | None:
    """By how much a token won over the best other one."""
    others = [value for other, value in (best or {}).items() if other != token]
    known = others and all(_finite(value) for value in (mine, *others))
    return float(mine) - max(map(float, others)) if known else None


def _finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def plain(text: str) -> str:
    """Half a character, as a broken detokenizer sends, cannot be kept as it is."""
    return text.encode(errors="backslashreplace").decode()


def _say(write: int, what: dict[str, Any]) -> None:
    os.write(write, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
