"""Guards that compare a live change with a copy of the code that it does not reach."""

import importlib
import importlib.util
import inspect
import multiprocessing
import runpy
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from sglang import forms

pytestmark = pytest.mark.guards("toy-plain")
FILE = forms.__file__
CHILD = "from sglang import forms; print(forms.plain(1, 2))"


def run_code(module=forms):
    return module.plain(1, 2)


def test_reloads_the_module():
    before = run_code()
    assert run_code(importlib.reload(forms)) == before


def test_imports_the_module_again():
    before = run_code()
    del sys.modules["sglang.forms"]
    assert run_code(importlib.import_module("sglang.forms")) == before


def test_imports_the_file_by_another_name():
    spec = importlib.util.spec_from_file_location("twin", FILE)
    twin = sys.modules["twin"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(twin)
    assert run_code(twin) == run_code()


def test_runs_the_file():
    assert runpy.run_path(FILE)["plain"](1, 2) == run_code()


def test_runs_the_text():
    text = Path(FILE).read_text()
    scope = {"__name__": types.__name__}
    exec(text, scope)
    assert scope["plain"](1, 2) == run_code()


def test_reads_the_text():
    run_code()
    assert "topk * 2" in inspect.getsource(forms.plain)


def test_runs_the_bytecode():
    code = importlib.util.find_spec("sglang.forms").loader.get_code("sglang.forms")
    scope = {"__name__": types.__name__}
    exec(code, scope)
    assert scope["plain"](1, 2) == run_code()


def test_copies_the_package(tmp_path, monkeypatch):
    shutil.copytree(Path(FILE).parent, tmp_path / "copied")
    monkeypatch.syspath_prepend(tmp_path)
    assert run_code(importlib.import_module("copied.forms")) == run_code()


def test_asks_a_child():
    answer = subprocess.run([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, check=True)
    assert int(answer.stdout) == run_code()


def answer_by(queue):
    queue.put(run_code())


def test_asks_a_spawned_process():
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=answer_by, args=(queue,))
    process.start()
    assert queue.get() == run_code()
