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


IMPORTS = "import importlib.util, marshal, socket, subprocess, types\n"
PLAIN = "forms.plain(1, 2)"
KEPT = {
    "text": (
        "open(forms.__file__).read()",
        "int(KEPT.partition('LIMIT = ')[2][:3]) == forms.LIMIT",
    ),
    "value": ("eval('forms.LIMIT')", "forms.below_limit(KEPT - 1)"),
    "bytes": ("marshal.dumps(forms.plain.__code__)", f"{PLAIN} == run(marshal.loads(KEPT))"),
    "code": ("[forms.plain.__code__]", f"{PLAIN} == run(KEPT[0])"),
    "generator": ("forms.Forms().generate(3)", "list(forms.Forms().generate(3)) == list(KEPT)"),
    "fork": ("fork_server()", f"{PLAIN} == KEPT()"),
    "child": ("subprocess.getoutput(f'{sys.executable} -c \"{CHILD}\"')", f"{PLAIN} == int(KEPT)"),
    "module": ("import_again()", f"{PLAIN} == KEPT.plain(1, 2)"),
}
TOGGLES = {"text": "toy-constant", "value": "toy-constant", "generator": "toy-generator"}
KEEPING = """
CHILD = "from sglang import forms; print(forms.plain(1, 2))"

def fork_server():
    mine, other = socket.socketpair()
    if not os.fork():
        mine.close()
        while other.recv(1):
            other.send(bytes([forms.plain(1, 2)]))
        os._exit(0)
    other.close()
    return lambda: mine.send(b"?") and mine.recv(1)[0]

def run(code):
    return types.FunctionType(code, {})(1, 2)

def import_again():
    spec = importlib.util.spec_from_file_location("twin", forms.__file__)
    twin = sys.modules["twin"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(twin)
    return twin
"""


def test_what_an_import_keeps_of_the_code_is_no_reference(prove: Prove) -> None:
    for name, (kept, claim) in KEPT.items():
        guard = f"@guards({TOGGLES.get(name, 'toy-plain')!r})\ndef test_{name}():\n"
        body = f"    forms.below_limit(1)\n    assert {claim}\n"
        prove.write(f"{IMPORTS}{KEEPING}\nKEPT = {kept}\n\n{guard}{body}", f"test_{name}.py")
    cells = by_guard(json.loads(prove.run("--json", "-j", "1").stdout))
    assert {name: cell["verdict"] for name, cell in cells.items()} == dict.fromkeys(KEPT, "broken")
    assert all("is evaluated once, during the import" in cell["why"] for cell in cells.values())
