"""What a run changes in a process that runs many tests is put back before the next one."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from harness.workers.process_state import ProcessState

NAME = "sglang.state_of_a_test"
TEXT = """
import functools
LIMIT = 7
CACHE = {"a": [1]}
SEEN = {1, 2}
ORDER = [3]

@functools.lru_cache
def width(rows):
    return rows * LIMIT

def remember(value, seen=[]):
    seen.append(value)
    return seen

class Pool:
    size = 4
    sizes = {}

pool = Pool()
pool.free = 4
"""


@pytest.fixture
def module() -> Iterator[Any]:
    new_module: Any = ModuleType(NAME)
    new_module.__dict__["__name__"] = NAME
    sys.modules[NAME] = new_module
    exec(TEXT, vars(new_module))
    yield new_module
    del sys.modules[NAME]


def test_names_containers_classes_and_objects_of_a_module_are_put_back(module: Any) -> None:
    state = ProcessState()
    before = {**vars(module)}
    module.LIMIT, module.added = 0, 1
    module.CACHE["a"].append(2)
    module.CACHE["b"] = []
    module.SEEN.clear()
    module.ORDER[:] = [4, 5]
    module.Pool.size, module.Pool.added = 5, 6
    module.Pool.sizes["x"] = 1
    module.pool.free, module.pool.used = 0, 4
    module.remember(1)
    assert state.restore() == ""
    assert vars(module) == before
    assert ({"a": [1]}, {1, 2}, [3]) == (module.CACHE, module.SEEN, module.ORDER)
    assert (module.Pool.size, module.Pool.sizes) == (4, {})
    assert not hasattr(module.Pool, "added")
    assert vars(module.pool) == {"free": 4}
    assert module.remember(2) == [2]


def test_random_numbers_and_settings_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ProcessState()
    first = random.random()
    folder = os.getcwd()
    os.environ["UNFIX_LEFT"] = "1"
    monkeypatch.setattr(sys, "path", sys.path)
    sys.path.insert(0, "/nowhere")
    os.chdir("/")
    assert state.restore() == ""
    assert random.random() == first
    assert os.getcwd() == folder
    assert "UNFIX_LEFT" not in os.environ
    assert sys.path[0] != "/nowhere"


def test_what_cannot_be_put_back_is_named(module: Any) -> None:
    class Closed(type):
        def __setattr__(cls, name: str, value: object) -> None:
            raise TypeError("closed")

    module.Closed = Closed("Closed", (), {"__module__": NAME, "size": 1})
    state = ProcessState()
    type.__setattr__(module.Closed, "size", 2)
    assert state.restore() == "its state cannot be put back: TypeError: closed"


CACHES = """
import functools

class Sizes:
    @classmethod
    @functools.lru_cache
    def read(cls):
        return SIZE

    @staticmethod
    @functools.lru_cache
    def double():
        return 2 * SIZE

def collect(*, found=[]):
    found.append(SIZE)
    return list(found)

def cache_once(function):
    result_map = {}

    def read(*key):
        if key not in result_map:
            result_map[key] = function(*key)
        return result_map[key]

    return read

@cache_once
def load(number):
    return SIZE + number

SIZE = 1
"""


def test_answers_that_methods_loaders_and_defaults_by_name_keep_are_put_back(module: Any) -> None:
    exec(compile(CACHES, NAME, "exec"), vars(module))
    state = ProcessState()

    def ask() -> list[Any]:
        return [module.Sizes.read(), module.Sizes.double(), module.collect(), module.load(1)]

    module.SIZE = 5
    assert ask() == [5, 10, [5], 6]
    assert state.restore() == ""
    assert ask() == [1, 2, [1], 2]


def test_a_thread_of_the_run_is_an_addition_and_a_librarys_daemon_is_none() -> None:
    state, end = ProcessState(), threading.Event()

    def wait() -> None:
        end.wait()

    wait.__module__ = NAME
    of_library = threading.Thread(target=functools.partial(end.wait), daemon=True)
    of_library.start()
    assert state.find_running() == ""
    of_run = threading.Thread(target=wait, daemon=True, name="left")
    of_run.start()
    assert state.find_running() == "its thread left goes on"
    end.set()
    of_run.join()
    of_library.join()


def test_a_process_of_the_run_is_an_addition() -> None:
    state = ProcessState()
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert state.find_running() == "a process of it goes on"
    finally:
        child.kill()
        child.wait()
