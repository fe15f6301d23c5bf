"""SGLang's own CUDA C++ kernels, executed on this CPU in an engine and in a test suite, each night.

The engine's tokens are those of SGLang's CPU engine; each launch of a suite is checked in the test
that made it.
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
ON_DEVICE = ("--device", "virtual", "--cuda-kernels")
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
SUITE = """
import torch
from sglang.kernels.ops.kvcache.kvcache import store_cache

def store(slot):
    row = torch.ones(1, 128, dtype=torch.bfloat16, device="cuda")
    keys, values = torch.zeros(2, 16, 128, dtype=torch.bfloat16, device="cuda")
    store_cache(row, row, keys, values, torch.tensor([slot], device="cuda"))

def test_inside():
    store(15)

def test_outside():
    store(40)
"""


def execute_command(folder: Path, options: tuple[str, ...], *command: str) -> tuple[int, str]:
    """Run a command under `unfix exec`; return its exit code and what it has printed."""
    words = ["exec", *options, "--release", RELEASE, "--", "python", *command]
    done = subprocess.run(
        [str(paths.project_folder() / "unfix"), *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    return done.returncode, done.stdout


def generate_tokens(
    folder: Path, options: tuple[str, ...], device: str, attention: str
) -> tuple[list[list[int]], str]:
    """Return an engine's tokens, and what the run has printed."""
    (folder / "engine.py").write_text(ENGINE)
    _, printed = execute_command(folder, options, "engine.py", str(MODEL), device, attention)
    lines = [line for line in printed.splitlines() if line.startswith("TOKENS ")]
    assert len(lines) == 1, printed[-3000:]
    tokens: list[list[int]] = json.loads(lines[0].removeprefix("TOKENS "))
    return tokens, printed


def test_a_llama_gives_the_same_tokens_with_its_cuda_kernels(tmp_path: Path) -> None:
    tokens, printed = generate_tokens(tmp_path, ON_DEVICE, "cuda", "triton")
    [ran] = [line for line in printed.splitlines() if "CUDA C++ ran, " in line]
    assert [name for name in KERNELS if name not in ran] == []
    assert tokens == generate_tokens(tmp_path, (), "cpu", "torch_native")[0]


def test_a_launch_past_its_tensor_fails_its_test_alone(tmp_path: Path) -> None:
    (tmp_path / "test_stores.py").write_text(SUITE)
    command = ["-m", "pytest", "-v", "-p", "no:cacheprovider", "test_stores.py"]
    code, printed = execute_command(tmp_path, ("--check", *ON_DEVICE), *command)
    assert code == 1, printed[-3000:]
    assert "test_inside PASSED" in printed
    assert "test_outside VIOLATION" in printed
    assert "checked 2 launches of 1 kernel in 2 tests" in printed
    assert "checked 2 launches of " in printed
