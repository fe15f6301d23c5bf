"""A real release takes its CUDA path on the virtual GPU, in a process that starts on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from harness.core import device, paths
from harness.patching.child_environment import STARTUP_FOLDER

PROGRAM = """
import gc
gc.disable()  # a quarter of the imports' time
import json, torch
from sglang.srt import utils
import sglang.srt.model_executor.model_runner
from sgl_kernel import rmsnorm
norm = rmsnorm(torch.ones(2, 8, device="cuda"), torch.full((8,), 3.0, device="cuda"))
from harness.device.record import RECORD
print(json.dumps([bool(utils.is_cuda()), utils.is_cpu(), norm.mean().item(), RECORD.as_dict()]))
"""


def test_sglang_finds_cuda_and_computes_with_stand_ins() -> None:
    environment = {
        **os.environ,
        device.DEVICE_VARIABLE: device.VIRTUAL,
        "PYTHONPATH": f"{STARTUP_FOLDER}:{paths.project_folder()}",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    is_cuda, is_cpu, mean, record = json.loads(done.stdout.splitlines()[-1])
    assert (is_cuda, is_cpu) == (True, False)
    assert abs(mean - 3) < 1e-4
    assert record["stand_ins"] == {"sgl_kernel.rmsnorm": 1}
    assert record["refusals"] == {}
    assert any(question.startswith("is_cuda() is ") for question in record["branches"])
