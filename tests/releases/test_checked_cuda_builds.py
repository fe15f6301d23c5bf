"""SGLang's own loader, nvcc, ptxas and host code with checks; the executor in place of the GPU.

Needs the CUDA toolkit, and SGLang 0.5.23: it runs in a process of its own, on the virtual GPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core import paths
from harness.releases import cuda_toolkit

pytestmark = pytest.mark.skipif(
    cuda_toolkit.find_toolkit() is None, reason="no CUDA toolkit is installed"
)
_PROGRAM = r"""
import contextlib, ctypes, json, os, sys
from pathlib import Path

from harness.sanitizer.device import installation
from harness.sanitizer.plugins.for_sglang import device_hooks
from harness.sanitizer.device.cards import get_card

installation.install_device()
import torch

from harness.core import paths
from harness.core.after_import import call_after_import
from harness.sanitizer.check.gpu_facts import violation_from_record
from harness.sanitizer.cuda import checked_launches, checked_modules, checked_toolchain, cudart
from harness.sanitizer.cuda.fatbin import HEADER
from harness.sanitizer.cuda import host_calls
from harness.sanitizer.plugins.for_sglang import checked_loader, jit_loader
from harness.sanitizer import gpu
from harness.sanitizer.gpu import empty_memory, shadow_entries
from harness.sanitizer.gpu.kernel_summaries import KernelSummaries
from harness.sanitizer.gpu.process_reports import PROCESS_REPORTS
from harness.sanitizer.ptx.executor import load_module
from harness.sanitizer.ptx.instrumented_kernel import MARKED_KEY
from harness.sanitizer.ptx.launch import Allocation
from harness.releases import cuda_toolkit

folder, calls = Path(sys.argv[1]), host_calls.CALLS
plain = cuda_toolkit.find_toolkit()
paths.cuda_builds_folder = lambda: folder
toolkit = checked_toolchain.make_checked_toolkit(plain.home, gpu.ALL_CHECKS)
paths.cuda_builds_folder = lambda: plain.folder.parent / "cuda-builds"
device_hooks.leave_load_jit()
cudart.install_cudart(get_card(), calls)
plain.set_variables(os.environ)
toolkit.set_variables(os.environ)
jit_loader._answer_stream_queries()
jit_loader._forget_answers()

def read_modules(fatbin):
    _, _, header, size = HEADER.unpack(ctypes.string_at(fatbin, HEADER.size))
    keys = MARKED_KEY.findall(ctypes.string_at(fatbin, header + size))
    calls._lines[fatbin, host_calls.HOOKS.get_device_code()] = host_calls.KernelLines([])
    return [load_module((toolkit.kernels / f"{key.decode()}.ptx").read_text()) for key in keys]

calls._read_modules = read_modules
host_calls.find_living_allocation = lambda _: Allocation("memory", 1 << 32, 1 << 47)
summaries = KernelSummaries()
number = torch.zeros(1, dtype=torch.int64)
entries = len(shadow_entries.ShadowTable) * shadow_entries.SLOTS_PER_TABLE
shadows = torch.zeros(entries, dtype=torch.int64)

def number_launch(stream):
    number.add_(1)
    return number.untyped_storage().data_ptr(), shadows.untyped_storage().data_ptr()

launches = checked_launches.CheckedCudaLaunches(toolkit, summaries, number_launch=number_launch)
launches.install()
checked_modules._started.append(launches)
note_call = launches.note_call

@contextlib.contextmanager
def note_and_run(name, names, args):
    calls._stack.append(call := host_calls.HostCall(name, {}, ()))
    try:
        with note_call(name, names, args):
            yield
    finally:
        calls._stack.pop()
        for error in call.errors:  # of the executor, which the host code only has as a number
            raise error

launches.note_call = note_and_run
call_after_import({
    jit_loader._ARCHITECTURE: jit_loader._choose_architecture,
    **checked_loader.HOOKS,
})
from sglang.kernels.jit.utils import load_jit, make_cpp_args

def clamp(file, is_empty=False):
    args = make_cpp_args(torch.int64)
    wrappers = [("clamp_position", f"ClampPosition<{args}>::run")]
    module = load_jit("clamp", *args, cuda_files=[file], cuda_wrappers=wrappers)
    lengths = torch.arange(1000, device="cuda")
    if is_empty:
        empty_memory.fill_with_poison(lengths)
    positions = torch.zeros_like(lengths)
    module.clamp_position(positions, lengths)
    right = positions.equal((lengths - 1).clamp(min=0))
    found = PROCESS_REPORTS.read_new_reports()
    return right, [str(violation_from_record(*one)) for one in found]

own = "elementwise/clamp_position.cuh"
import sglang.kernels.jit
source = Path(sglang.kernels.jit.__file__).parent / "csrc" / own
text = source.read_text()

def plant(name, old, new):
    file = folder / name / "clamp_position.cuh"
    file.parent.mkdir()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    return clamp(str(file))

found = {
    "none": clamp(own),
    "overrun": plant("overrun", "if (idx < n) {", "if (idx <= n) {"),
    "race": plant("race", "dst[idx] =", "dst[idx / 999] ="),
    "empty": clamp(own, is_empty=True),
}
print(json.dumps([found, sum(one.checked_launches for one in summaries)]))
"""


def test_a_module_of_sglang_is_built_and_launched_with_checks(tmp_path: Path) -> None:
    if importlib.util.find_spec("sglang.kernels") is None:
        pytest.skip("this release has no sglang.kernels")
    standins = paths.HARNESS_FOLDER / "releases" / "standins"
    path = os.pathsep.join(map(str, (paths.HARNESS_FOLDER.parent, standins)))
    words = [sys.executable, "-P", "-c", _PROGRAM, str(tmp_path)]
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found, launches = json.loads(done.stdout.splitlines()[-1])
    assert found["none"] == [True, []]
    assert launches == 4
    right, reports = found["overrun"]
    assert right
    assert [report.splitlines()[0] for report in reports] == [
        f"clamp_position_kernel<long> {verb} 8 bytes past the end of {name} "
        "(its index 1000, and it is int64 [1000])"
        for verb, name in (("read", "seq_lens"), ("wrote", "dst"))
    ]
    assert all("thread (232, 0, 0)" in report for report in reports)
    assert "clamp_position.cuh:18" in reports[0]
    race = found["race"][1][0]
    assert "different values to dst, index 0, without an order" in race
    assert "clamp_position.cuh:19" in race
    empty = found["empty"][1][0]
    assert empty.startswith(
        "clamp_position_kernel<long> read uninitialized memory: seq_lens, index"
    )
