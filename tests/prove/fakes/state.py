"""Guards whose outcome depends on earlier runs, or on chance, and not on the bug."""

import ctypes
import itertools
import mmap
import os
import random
import socket
import stat
import subprocess
import sys
import tempfile
from multiprocessing import resource_tracker, shared_memory

import pytest
from sglang import forms

from harness.core import cache

pytestmark = pytest.mark.guards("toy-plain")
NAME = f"unfix-fakes-{os.environ.get('UNFIX_HOME', '').replace('/', '-')}"


def find_cache():
    return os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))


KEY = random.Random(NAME).getrandbits(31)

PLACES = {
    "home": lambda: os.path.expanduser("~"),
    "cache": find_cache,
    "triton": lambda: os.environ.get("TRITON_CACHE_DIR", os.path.expanduser("~/.triton")),
    "temporary": lambda: tempfile.gettempdir(),
    "TMPDIR": lambda: os.environ.get("TMPDIR", "/tmp"),
    "working": lambda: os.getcwd(),
}
FIXED_PLACES = {
    "cache_at_import": find_cache(),
    "tmp": "/tmp",
    "var_tmp": "/var/tmp",
    "shm": "/dev/shm",
    "own_folder": os.path.dirname(__file__),
    "unfix_home": os.environ.get("UNFIX_HOME", "/tmp"),
    "state_of_unfix": os.path.join(os.environ.get("UNFIX_HOME", "/tmp"), ".unfix"),
    "kernels_of_unfix": os.path.join(os.environ.get("UNFIX_HOME", "/tmp"), ".unfix", "kernels"),
    "cuda_builds": os.path.join(os.environ.get("UNFIX_HOME", "/tmp"), ".releases", "cuda-builds"),
}


def run_code():
    return forms.plain(1, 2)


def count_calls(folder, *names):
    """Count the calls by the length of a file."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "-".join((NAME, *names))), "a") as calls:
        calls.write("x")
        return calls.tell()


@pytest.mark.parametrize("place", PLACES)
def test_fails_from_its_second_run_on(place):
    run_code()
    assert count_calls(PLACES[place](), place, "second") < 2


@pytest.mark.parametrize("place", FIXED_PLACES)
def test_fails_from_its_second_run_on_in_a_fixed_place(place):
    run_code()
    assert count_calls(FIXED_PLACES[place], place, "second") < 2


def test_pytest_s_own_folder(tmp_path):
    run_code()
    assert count_calls(tmp_path.parent.parent.parent, "pytest") < 2


def test_mode_of_its_own_file():
    run_code()
    mode = stat.S_IMODE(os.stat(__file__).st_mode)
    os.chmod(__file__, mode ^ stat.S_IXOTH)
    assert not mode & stat.S_IXOTH


shared = mmap.mmap(-1, 4096)
shared_folder = os.open("/dev/shm", os.O_DIRECTORY)
numbers = itertools.count(1)
seen = []


def test_memory_that_forks_share():
    run_code()
    shared[0] += 1
    assert shared[0] % 2


def test_compiled_kernels():
    """Count the runs by the entries of the cache, where compiled kernels are."""
    run_code()
    calls = 0
    while cache.is_cached("fakes", name := f"{calls:064}"):
        calls += 1
    cache.save_cached("fakes", name, calls)
    assert calls % 2 == 0


def test_shared_memory_of_a_name():
    run_code()
    found = True
    try:
        memory = shared_memory.SharedMemory(NAME[-60:], create=True, size=8)
        resource_tracker.unregister(memory._name, "shared_memory")
        found = False
    except FileExistsError:
        pass
    assert not found


def test_shared_memory_of_a_key():
    run_code()
    libc = ctypes.CDLL(None)
    known = libc.shmget(KEY, 8, 0)
    if known >= 0:
        libc.shmctl(known, 0, None)  # removes it
    else:
        assert libc.shmget(KEY, 8, 0o1000 | 0o600) >= 0
    assert known < 0


def test_shared_memory_by_an_open_folder():
    run_code()
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with open(os.open(f"{NAME}-open", flags, dir_fd=shared_folder), "a") as calls:
        calls.write("x")
        assert calls.tell() % 2


def test_process_of_an_earlier_run():
    run_code()
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0{NAME[-80:]}")
    except OSError:
        held.close()
    assert held.fileno() >= 0
    os.set_inheritable(held.fileno(), True)
    subprocess.Popen(
        ["setsid", "-f", sys.executable, "-c", "import time; time.sleep(600)"],
        close_fds=False,
    )


def test_global_of_an_earlier_run():
    run_code()
    seen.append(next(numbers))
    assert len(seen) < 2


def test_parent_of_an_earlier_run():
    run_code()
    assert count_calls(PLACES["home"](), f"parent-{os.getppid()}") < 2


# Chance, at rates at which seven runs or more hardly ever come out as in a proof


@pytest.mark.parametrize("rate", [0.02, 0.98])
def test_random_numbers(rate):
    run_code()
    assert random.random() >= rate


@pytest.mark.parametrize("rate", [2, 98])
def test_number_of_its_process(rate):
    run_code()
    assert os.getpid() * 37 % 100 >= rate


def test_all_of_its_environment():
    run_code()
    words = sorted(os.environ.items())
    assert random.Random(repr(words)).random() < 0.98


def test_seeds_itself_by_its_folder(tmp_path):
    run_code()
    assert random.Random(str(tmp_path)).random() < 0.98
