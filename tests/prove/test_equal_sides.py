"""Both sides of a guard are the same to it, except for the toggled code."""

from __future__ import annotations

import json
from typing import Any

import pytest
from proving import Prove

from harness.core import write_confinement

# It fails on both sides, and its message is all that it sees.
SNAPSHOT = """
import json, gc, inspect, logging, re, resource, tempfile, warnings
from pathlib import Path
import hypothesis

def list_folder(folder):
    return sorted(str(file.relative_to(folder)) for file in Path(folder).rglob("*"))

def see(request):
    node = request.node
    callspec = getattr(node, "callspec", None)
    options = {k: repr(v) for k, v in vars(request.config.option).items()}
    fds = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in ("0", "1", "2")}
    opened = []
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            # A socket has a number, and the file of the counts the process's.
            opened.append((fd, os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]
                .partition("attestations/")[0]))
        except OSError:
            pass
    return {
        "name": [node.name, node.nodeid, node.originalname, repr(node.location)],
        "keywords": sorted(map(str, node.keywords)),
        "markers": sorted(repr(mark.name) for mark in node.iter_markers()),
        "fixtures": sorted(request.fixturenames),
        "parameters": repr(callspec and (callspec.params, callspec.indices, callspec.id)),
        "properties": repr(node.user_properties),
        "environment": dict(os.environ),
        "argv": sys.argv,
        "cmdline": open("/proc/self/cmdline").read(),
        "options": options,
        "folder": os.getcwd(),
        "files here": sorted(os.listdir()),
        "home": str(Path.home()), "files at home": list_folder(Path.home()),
        "temporary": tempfile.gettempdir(), "temporary files": list_folder(tempfile.gettempdir()),
        "path": sys.path,
        "modules": sorted(sys.modules),
        "callers": [frame.function for frame in inspect.stack(0)],
        "place and address": [request.session.items.index(node), id(node)],
        "hashes": [hash("toy"), list({"fixed", "buggy", "toy"})],
        "threads": [thread.name for thread in threading.enumerate()],
        "descriptors": fds, "open": opened,
        "limits": [resource.getrlimit(getattr(resource, name)) for name in dir(resource)
                   if name.startswith("RLIMIT")],
        "umask": os.umask(0o022),
        "loggers": sorted(logging.root.manager.loggerDict),
        "warnings": repr(warnings.filters),
        # The first search with the fix out is longer; repetitions are alike, and they decide.
        "hypothesis": re.sub("max_examples=[0-9]+", "", repr(hypothesis.settings.default)),
        "seed": repr(hypothesis.core.global_force_seed),
        "group": [os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()],
        "hooks": [repr(type(threading.excepthook)), repr(type(sys.excepthook))],
    }

@guards("toy-plain")
def test_plain(request):
    buggy()
    pytest.fail(json.dumps(see(request)))

@guards("toy-plain")
@pytest.mark.parametrize("row", range(8))
def test_with_a_parameter(request, row, tmp_path, monkeypatch):
    buggy()
    pytest.fail(json.dumps({"tmp": str(tmp_path), **see(request)}))

@guards("toy-plain", "toy-default")
class TestIt:
    def test_in_a_class_of_two_toggles(self, request):
        buggy()
        forms.with_default(1)
        pytest.fail(json.dumps(see(request)))

@guards("toy-plain")
@given(number=st.integers(0, 3))
def test_with_examples(request, number):
    buggy()
    pytest.fail(json.dumps(see(request)))
"""


def read_snapshots(prove: Prove) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return what each guard sees on its two sides."""
    prove.write(SNAPSHOT)
    # Without namespaces a folder has the number of its lane. With them, the sides of some of these
    # cells run in different lanes.
    lanes = "3" if write_confinement.can_make_namespaces() else "1"
    done = prove.run("--json", "-j", lanes)
    assert done.stdout, done.stderr
    cells = json.loads(done.stdout)["cells"]
    snapshots = [
        (
            f"{cell['guard']} {cell['toggle']}",
            read_snapshot("fixed", cell),
            read_snapshot("buggy", cell),
        )
        for cell in cells
    ]
    assert len(snapshots) == 12
    return snapshots


def read_snapshot(side: str, cell: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cell["sides"][side]["headline"])
    return found


def test_a_guard_sees_the_same_on_both_sides(prove: Prove) -> None:
    for guard, fixed, buggy in read_snapshots(prove):
        assert len(fixed) > 25, guard
        differing = {
            name: (fixed[name], buggy[name]) for name in fixed if fixed[name] != buggy[name]
        }
        assert not differing, guard
        words = json.dumps(fixed["name"]) + fixed["environment"]["PYTEST_CURRENT_TEST"]
        assert "fixed" not in words
        assert "buggy" not in words


@pytest.mark.skipif(not write_confinement.can_confine(), reason="n/a: this kernel has no Landlock")
def test_a_folder_that_a_guard_may_not_write_is_named(prove: Prove) -> None:
    prove.write(
        "@guards('toy-plain')\ndef test_it():\n"
        "    buggy()\n    open('/tmp/unfix-test-counter', 'w')\n"
    )
    cell = prove.cells()["it"]
    assert cell["verdict"] == "broken"
    assert "Permission denied: '/tmp/unfix-test-counter'" in cell["why"]
