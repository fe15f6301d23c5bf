"""A process that reads kernels ends with its answers, or is ended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.patching.child_environment import ChildEnvironment
from harness.workers import answering_process

ANSWERS = """
import os, pathlib, sys, time
os.write(1, sys.stdin.buffer.read() + b" answered\\n")
os.close(1)
time.sleep(2)
pathlib.Path(__file__).with_name("went on").touch()
"""


def test_a_process_that_has_answered_and_does_not_exit_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answers.py").write_text(ANSWERS)
    monkeypatch.setattr(answering_process, "EXIT_SECONDS", 0.1)
    environment = ChildEnvironment()
    environment.add_python_path(tmp_path)
    called = sys.executable, "answers", b"it", environment, tmp_path / "log"
    assert list(answering_process.iterate_answers(*called)) == [b"it answered\n"]
    assert not (tmp_path / "went on").exists()
