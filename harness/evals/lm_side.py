"""lm-eval's half of an evaluation: its tasks and its scoring, asked of a server that is up.

    python -m harness.evals.lm_side READ WRITE      (in lm-eval's own Python, by `Scorer`)

It is lm-eval's own client for OpenAI's completions but for one thing: an item that the server
answers with an error stays an item, and is said to have no answer. lm-eval would stop there, or
score an empty string as wrong. Each answer is kept with its tokens and how likely they were.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import logging
import math
import os
import sys
import traceback
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NoReturn

NOTHING = "\x00no answer\x00"  # what lm-eval scores in place of an answer; its score is dropped
SECONDS = 600.0


def main(read: int, write: int) -> NoReturn:
    import lm_eval
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.WARNING)

    class Client(LocalCompletionsAPI):  # type: ignore[misc]
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
            self.heard: dict[tuple[str, int], dict[str, Any]] = {}

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            with concurrent.futures.ThreadPoolExecutor(self.asked["concurrency"]) as pool:
                return list(pool.map(self._one, requests))

        def _one(self, request: Any) -> str:
            prompt, settings = request.args
            key = (request.task_name, request.doc_id)
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
            heard = ask(self.asked["url"] + "/v1/completions", question)
            self.heard[key] = {"prompt": prompt, **heard}
            return NOTHING if heard["error"] else str(heard["text"])

    manager: TaskManager | None = None
    known: Any = None
    _say(write, {"ready": os.getpid()})
    with os.fdopen(read) as orders:
        for line in orders:
            asked = json.loads(line)
            try:
                if asked["known"] != known:
                    known = asked["known"]
                    manager = TaskManager(
                        include_path=known["folder"], metadata=known["metadata"]
                    )
                missing = [task for task in asked["tasks"] if task not in manager.all_tasks]
                if missing:
                    raise ValueError(f"lm-eval knows no task {', '.join(missing)}")
                client = Client(asked)
                found = lm_eval.simple_evaluate(
                    model=client,
                    tasks=asked["tasks"],
                    task_manager=manager,
                    samples=asked["samples"],
                    log_samples=True,
                    bootstrap_iters=0,
                    random_seed=asked["seed"],
                    numpy_random_seed=asked["seed"],
                    torch_random_seed=asked["seed"],
                    fewshot_random_seed=asked["seed"],
                )
                answers = [
                    _answer(task, sample, client.heard)
                    for task, samples in found["samples"].items()
                    for sample in samples
                ]
                Path(asked["out"]).write_text(json.dumps(answers))
                _say(write, {"done": asked["out"]})
            except Exception as error:
                traceback.print_exc()
                _say(write, {"failed": f"{type(error).__name__}: {error}"[:2000]})
    os._exit(0)


def _answer(task: str, sample: dict[str, Any], heard: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """One item with its score; the score is nothing where there was no answer."""
    said = heard.get((task, sample["doc_id"]), {})
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


def ask(url: str, question: dict[str, Any]) -> dict[str, Any]:
    """One completion: its text, its tokens, how likely each was, and by how much it won."""
    request = urllib.request.Request(
        url, json.dumps(question).encode(), {"content-type": "application/json"}
    )
    # A proxy of the environment has no business here.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    nothing = {"text": "", "tokens": [], "logprobs": [], "margins": []}
    try:
        with opener.open(request, timeout=SECONDS) as answer:
            return understood(json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        words = error.read().decode(errors="replace")[:300]
        return {**nothing, "error": f"HTTP {error.code}: {words}"}
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        return {**nothing, "error": f"{type(error).__name__}: {error}"}


def understood(said: dict[str, Any]) -> dict[str, Any]:
    choice = said["choices"][0]
    text = choice["text"]
    if not isinstance(text, str):
        raise TypeError(f"the text of the answer is {text!r}")
    found = choice.get("logprobs") or {}
    tokens = found.get("tokens") or []
    logprobs = found.get("token_logprobs") or []
    margins: list[float | None] = []
    for place, best in enumerate(found.get("top_logprobs") or []):
        mine = logprobs[place]
        others = [value for token, value in (best or {}).items() if token != tokens[place]]
        known = others and all(map(_finite, [mine, *others]))
        margins.append(mine - max(others) if known else None)
    return {
        "text": text,
        "tokens": tokens,
        # JSON has no NaN: a likelihood that is no number is nothing.
        "logprobs": [value if _finite(value) else None for value in logprobs],
        "margins": margins if len(margins) == len(tokens) else [],
        "error": "",
    }


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _say(write: int, what: dict[str, Any]) -> None:
    os.write(write, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
