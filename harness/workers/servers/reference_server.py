"""Plain transformers behind a server's endpoint, in float32: the reference answers.

    python -m harness.workers.servers.reference_server MODEL --port N    (in a release's own Python)

It has no cache between requests, no batches and no fast kernels: it is slow, and correct.
"""

from __future__ import annotations

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ReferenceModel:
    def __init__(self, folder: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self.torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.lock = threading.Lock()
        self.eos_token = self.model.config.eos_token_id

    def complete(self, prompt: str, max_tokens: int, stop: list[str]) -> dict[str, Any]:
        """Decode greedily, with the log probability of each token and of the runner-up."""
        torch = self.torch
        tokens: list[int] = []
        logprobs: list[float] = []
        best: list[dict[str, float]] = []
        text = ""
        with self.lock, torch.no_grad():
            cache = None
            input_ids = torch.tensor([self.tokenizer(prompt)["input_ids"]])
            while len(tokens) < max_tokens:
                out = self.model(input_ids, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                likely = out.logits[0, -1].float().log_softmax(-1)
                values, ids = (found.tolist() for found in likely.topk(2))
                if ids[0] == self.eos_token:
                    break
                tokens.append(ids[0])
                logprobs.append(values[0])
                best.append(dict(zip(map(self.decode_token, ids), values, strict=True)))
                text = self.tokenizer.decode(tokens)
                if any(end in text for end in stop):
                    break
                input_ids = torch.tensor([[ids[0]]])
        for end in stop:
            text = text.split(end)[0]
        words = [self.decode_token(token) for token in tokens]
        found = {"tokens": words, "token_logprobs": logprobs, "top_logprobs": best}
        return {"choices": [{"text": text, "logprobs": found}]}

    def decode_token(self, token: int) -> str:
        return str(self.tokenizer.decode([token]))


class JsonRequestHandler(BaseHTTPRequestHandler):
    """A handler that reads and answers JSON."""

    disable_nagle_algorithm = True  # otherwise each answer waits for an acknowledgement

    def read_json(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        return body

    def send_json(self, payload: Any, code: int = 200) -> None:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class BacklogHTTPServer(ThreadingHTTPServer):
    request_queue_size = 128  # with the default of 5, a sixth simultaneous client waits a second


def serve_reference(model: ReferenceModel, port: int) -> None:
    class Handler(JsonRequestHandler):
        def do_GET(self) -> None:
            self.send_json({"healthy": True})

        def do_POST(self) -> None:
            request = self.read_json()
            if self.path != "/v1/completions":
                self.send_json({})
                return
            stop = request.get("stop") or []
            self.send_json(model.complete(request["prompt"], request["max_tokens"], stop))

    BacklogHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    serve_reference(ReferenceModel(given.model), given.port)
