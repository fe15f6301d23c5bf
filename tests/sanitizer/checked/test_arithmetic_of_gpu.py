"""The CPU's results equal those of compiled Triton on a GPU bit for bit, or are refused."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

from harness.core import paths
from harness.store.record_files import read_record_text

RECORDED = paths.project_folder() / "bench" / "recorded" / "arithmetic-h200.json.xz"


def load_script() -> Any:
    place = paths.project_folder() / "bench" / "cases" / "arithmetic.py"
    spec = importlib.util.spec_from_file_location("arithmetic_bench", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_checker_computes_the_bits_that_the_gpu_did() -> None:
    bench = load_script()
    recorded = json.loads(read_record_text(RECORDED))["answers"]
    now = bench.compute_answers("cpu")
    assert set(now) == set(recorded)
    assert bench.list_differences(recorded, now) == []
    refused = {name for name, text in now.items() if text.startswith("refused")}
    assert refused == {"fp8e5 to bf16"}


def test_a_wrong_bit_is_reported() -> None:
    bench = load_script()
    recorded = json.loads(read_record_text(RECORDED))["answers"]
    wrong = {**recorded, "add bf16": "ff" + recorded["add bf16"][2:]}
    assert bench.list_differences(recorded, wrong)[0].startswith("add bf16: 1 of 256, first at 0")
