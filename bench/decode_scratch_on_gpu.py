"""DeepSeek-V2-Lite's decode on a real card, with weights of no values: from how many requests on
does the scratch for split keys not fit beside the pool?

    unfix exec --record FILE -- python -m bench.decode_scratch_on_gpu REQUESTS ...

It needs a card and SGLang for it. Name numbers of requests, the smaller first: one below the
threshold that `unfix rehearse` says for this card, and the threshold. A line is printed for each,
with the memory in use before it, and the error if it does not fit.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch

from fixtures.rehearse.full_size_batches import FullSizeModel
from harness.runs.rehearse.deployment import read_model

MODEL = "deepseek-v2-lite"
LENGTH = 8  # tokens of a request: the scratch does not depend on it


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(read_model(MODEL).config))
        words = ["--model-path", folder, "--load-format", "dummy", "--skip-tokenizer-init"]
        words += ["--attention-backend", "triton", "--disable-cuda-graph"]
        words += ["--sampling-backend", "pytorch"]
        model = FullSizeModel(words)
    print(json.dumps({"card": torch.cuda.get_device_name(), **model.read_limits()}), flush=True)
    for count in map(int, sys.argv[1:]):
        free, total = torch.cuda.mem_get_info()
        shown = {"requests": count, "GB in use": round((total - free) / 1e9, 2), "fits": True}
        try:
            with torch.no_grad():
                model.decode(count, LENGTH)
            torch.cuda.synchronize()
        except torch.OutOfMemoryError as error:
            shown |= {"fits": False, "error": str(error).partition(". GPU")[0]}
        print(json.dumps(shown), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
