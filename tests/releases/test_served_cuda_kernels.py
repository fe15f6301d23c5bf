"""A Llama gives the same tokens with SGLang's own CUDA kernels, and with its code for a CPU.

Both engines run on this CPU: one takes SGLang's default path on the virtual GPU, where its CUDA C++
kernels are executed as they are; the other is SGLang's CPU engine.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from harness.core import paths
from harness.releases import cuda_toolkit, managed_releases

RELEASE = "0.5.23"
SECONDS = 1800  # for one engine, with the builds of its kernels
pytestmark = [
    pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test"),
    pytest.mark.skipif(cuda_toolkit.find_toolkit() is None, reason="no CUDA toolkit is installed"),
    pytest.mark.skipif(
        not managed_releases.get_release(RELEASE).is_installed,
        reason=f"SGLang {RELEASE} is not installed",
    ),
]
MODEL = paths.project_folder() / "fixtures/models/trained/llama"
ENGINE = """
import json, sys
import sglang

def main():
    device, attention = sys.argv[2:]
    engine = sglang.Engine(
        model_path=sys.argv[1], device=device, attention_backend=attention, dtype="bfloat16",
        mem_fraction_static=0.3, max_total_tokens=512, max_running_requests=2,
        disable_cuda_graph=True, disable_overlap_schedule=True, skip_server_warmup=True,
        random_seed=0, log_level="error",
    )
    prompts = ["abc abc abc ", "one two "]
    answers = engine.generate(prompts, {"temperature": 0.0, "max_new_tokens": 8})
    print("TOKENS", json.dumps([answer["output_ids"] for answer in answers]))
    engine.shutdown()

if __name__ == "__main__":
    main()
"""
KERNELS = ("run_activation", "clamp_position", "run_rope", "store_cache")


def generate_tokens(
    folder: Path, device: str, attention: str, *options: str
) -> tuple[list[list[int]], str]:
    """Return an engine's tokens, and what the run has printed."""
    script = folder / "engine.py"
    script.write_text(ENGINE)
    words = ["exec", *options, "--release", RELEASE, "--", "python", str(script), str(MODEL)]
    done = subprocess.run(
        [str(paths.project_folder() / "unfix"), *words, device, attention],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOKENS ")]
    assert len(lines) == 1, done.stdout[-3000:]
    tokens: list[list[int]] = json.loads(lines[0].removeprefix("TOKENS "))
    return tokens, done.stdout


def test_a_llama_gives_the_same_tokens_with_its_cuda_kernels(tmp_path: Path) -> None:
    options = ("--device", "virtual", "--cuda-kernels")
    tokens, printed = generate_tokens(tmp_path, "cuda", "triton", *options)
    [ran] = [line for line in printed.splitlines() if "CUDA C++ ran as they are" in line]
    assert [name for name in KERNELS if name not in ran] == []
    assert tokens == generate_tokens(tmp_path, "cpu", "torch_native")[0]
