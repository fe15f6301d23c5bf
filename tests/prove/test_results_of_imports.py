"""What ran before the forks, in whatever way, is no reference for a guard of the same code."""

from __future__ import annotations

import json

from proving import Prove, by_guard

CONFTEST = """
import threading
from sglang import forms

KEPT = []

def compute():
    KEPT.append(forms.plain(1, 2))

thread = threading.Thread(target=compute)
thread.start()
thread.join()

def pytest_configure(config):
    KEPT.append(forms.with_default(1))

def pytest_sessionstart(session):
    KEPT.append(forms.outer(1)(1))

def pytest_collection_modifyitems(items):
    KEPT.append(forms.decorated(1))
"""
GUARDS = """
from conftest import KEPT

PREPARED = []

def prepare():
    PREPARED.append(forms.cached(1))

@guards("toy-plain")
def test_thread():
    assert forms.plain(1, 2) == KEPT[0]

@guards("toy-default")
def test_configuration():
    assert forms.with_default(1) == KEPT[1]

@guards("toy-closure")
def test_session():
    assert forms.outer(1)(1) == KEPT[2]

@guards("toy-decorated")
def test_collection():
    assert forms.decorated(1) == KEPT[3]

@guards("toy-cached")
@pytest.mark.prepared(by=prepare, names=())
def test_preparation():
    assert forms.cached(1) == PREPARED[0]
"""


def test_a_result_from_before_the_forks_is_no_reference(prove: Prove) -> None:
    prove.write(CONFTEST, "conftest.py", head="")
    prove.write(GUARDS)
    cells = by_guard(json.loads(prove.run("--json", "-j", "1").stdout))
    assert {name: cell["verdict"] for name, cell in cells.items()} == dict.fromkeys(
        ("thread", "configuration", "session", "collection", "preparation"), "broken"
    )
    for cell in cells.values():
        assert "what an import computed with" in cell["why"]
