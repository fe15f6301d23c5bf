"""Checked sessions: their launches, and that a closed one keeps no tensor alive."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import weakref
from typing import Any

import calling
import pytest
import torch
from checks import check_on_cpu, make_numbers
from kernels_to_check import by_row, copy
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from harness.checking import Check, OutOfBounds
from harness.core import paths
from harness.sanitizer.check.cpu_launcher import CpuLauncher


def test_a_refused_launch_keeps_no_tensor_alive() -> None:
    """A tensor of many gigabytes must be freed at once, not by the garbage collector."""

    def launch_out_of_bounds() -> weakref.ref[torch.Tensor]:
        target = make_numbers(20)
        with contextlib.suppress(OutOfBounds), check_on_cpu():
            copy[(3,)](make_numbers(24), target, 24, 0, BLOCK=8)
            raise AssertionError("it was not refused")
        return weakref.ref(target)

    launch_out_of_bounds()  # the first one loads parts of torch, with reference cycles
    gc.disable()
    try:
        assert launch_out_of_bounds()() is None
    finally:
        gc.enable()


def test_a_closed_session_keeps_no_tensor_alive() -> None:
    """An error keeps the session alive: its frames hold functions that close over it."""
    with check_on_cpu() as session:
        source, target = make_numbers(24), make_numbers(24)
        session.allow(target, write=lambda x, y, z: slice(8 * x, 8 * x + 8))
        copy[(3,)](source, target, 24, 0, BLOCK=8)
    living = [weakref.ref(source), weakref.ref(target)]
    del source, target
    assert [launch.kernel for launch in session.launches] == ["copy"]
    assert [reference() for reference in living] == [None, None]


def test_sessions_do_not_nest() -> None:
    with pytest.raises(RuntimeError, match="do not nest"), check_on_cpu(), check_on_cpu():
        pass


def test_a_session_leaves_triton_unpatched() -> None:
    def list_patch_points() -> list[Any]:
        return [JITFunction.__dict__["run"], Autotuner.__dict__["_bench"], driver._active]

    before = list_patch_points()
    with check_on_cpu():
        copy[(1,)](make_numbers(8), make_numbers(8), 8, 0, BLOCK=8)
        assert list_patch_points() != before
    with pytest.raises(OutOfBounds), check_on_cpu():
        copy[(1,)](make_numbers(1), make_numbers(8), 8, 0, BLOCK=8)
    assert list_patch_points() == before


def test_launches_are_listed_with_grid_and_arguments() -> None:
    with check_on_cpu() as session:
        assert isinstance(session, Check)
        copy[(2,)](make_numbers(16), make_numbers(16), 16, 0, BLOCK=8)
        assert [(launch.kernel, launch.grid) for launch in session.launches] == [
            ("copy", (2, 1, 1))
        ]
        assert session.launches[0].arguments["count"] == 16


def test_a_session_refuses_tritons_interpreter() -> None:
    script = "from harness import checking\nwith checking.checked('cpu'): pass"
    imports = {"PYTHONPATH": str(paths.HARNESS_FOLDER.parent)}
    environment = {**os.environ, **imports, "TRITON_INTERPRET": "1"}
    done = calling.run_program([sys.executable, "-c", script], env=environment)
    assert done.returncode == 1
    assert "start without TRITON_INTERPRET" in done.stderr


def test_a_launch_of_no_program_is_listed_and_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CpuLauncher, "get_program", lambda *_: pytest.fail("a program is made"))
    target = torch.zeros(4, dtype=torch.int8)
    with check_on_cpu() as session:
        session.run_only("by_row", [])
        by_row[(4,)](target, 1)
        assert [launch.grid for launch in session.launches] == [(4, 1, 1)]
    assert not target.any()
