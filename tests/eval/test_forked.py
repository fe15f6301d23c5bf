"""Servers forked from a process that has imported SGLang; here a fake of the same name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from calling import PATIENCE_SECONDS, copy_toy_release, is_alive, wait_until
from faked import PYTHON, read_pids
from fixture_types import Patch

from harness.core import paths
from harness.core.outcomes import Outcome
from harness.releases import source_trees
from harness.workers import command_supervisor
from harness.workers.servers.server import ServerFailed, ServerSetup, SglangServer
from harness.workers.servers.warm_start import ServerZygote

MODULES = {
    "torch/__init__.py": "from torch import cuda\ndef set_num_threads(count): pass\n",
    "torch/cuda.py": "def is_available(): return False\n",
    "sglang/srt/entrypoints/__init__.py": "",
    "sglang/srt/entrypoints/http_server.py": """
import json, os, sys
from tests.eval import fake_server
def launch_server(words):
    EAGER = "--disable-piecewise-cuda-graph"
    sys.argv = ["fake", *(word for word in words if word != EAGER)]
    if (EAGER in words) != (os.environ.get("GRAPHS") == "of prefills"):
        raise SystemExit(8)
    if "--leave" in words:
        raise SystemExit(7)
    fake_server.main()
""",
    "sglang/srt/server_args.py": """
import os
class ServerArgs:
    if os.environ.get("GRAPHS") == "of prefills":
        disable_piecewise_cuda_graph = False
def prepare_server_args(words):
    return words
""",
    "sglang/srt/managers/__init__.py": "",
    "sglang/srt/managers/detokenizer_manager.py": "",
    "sglang/srt/managers/scheduler.py": "",
    "sglang/srt/models/__init__.py": "",
    "sglang/srt/models/registry.py": "import os\nassert os.environ.get('EARLY') != 'no'\n",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: Patch) -> Path:
    copy_toy_release(tmp_path / "sglang")
    for name, text in MODULES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "sglang" / "srt" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(paths.project_folder())]))
    # The fake is not the toy that this process could import.
    monkeypatch.setattr(source_trees, "find_installed_tree", lambda: None)
    return tmp_path


@pytest.fixture
def zygote(place: Path) -> Iterator[ServerZygote]:
    with ServerZygote(make_setup(), place / "zygote.log") as found:
        yield found


def make_setup(*words: str, **be: object) -> ServerSetup:
    return ServerSetup(PYTHON, ("--be", json.dumps(be), *words), environment={"NAME": "x"})


def test_a_forked_server_leaves_no_process(zygote: ServerZygote, place: Path) -> None:
    pids = place / "pids"
    first = make_setup(deaf=True, brood=["plain", "mute"], pids=str(pids))
    with (
        SglangServer(first, place / "one", zygote) as one,
        SglangServer(make_setup(), place / "two", zygote) as two,
    ):
        one.wait_until_ready(PATIENCE_SECONDS)
        two.wait_until_ready(PATIENCE_SECONDS)
        assert one.is_warm
        assert one.port != two.port
        assert wait_until(lambda: len(read_pids(pids)) == 2)
    assert not any(map(is_alive, read_pids(pids)))
    record = command_supervisor.read_exit(place / "one")
    assert record is not None
    assert record.kind is Outcome.STOPPED


def test_a_forked_server_that_dies_says_why(zygote: ServerZygote, place: Path) -> None:
    with (
        SglangServer(make_setup(stillborn=True), place / "one", zygote) as server,
        pytest.raises(ServerFailed, match=r"RuntimeError: no more \(exit code 1\)"),
    ):
        server.wait_until_ready(PATIENCE_SECONDS)
    with (
        SglangServer(make_setup("--leave"), place / "two", zygote) as server,
        pytest.raises(ServerFailed, match=r"exit code 7"),
    ):
        server.wait_until_ready(PATIENCE_SECONDS)


def test_a_release_that_captures_prefills_gets_the_option_against_it(place: Path) -> None:
    setup = ServerSetup(PYTHON, ("--be", "{}"), environment={"GRAPHS": "of prefills"})
    with (
        ServerZygote(setup, place / "zygote.log") as zygote,
        SglangServer(setup, place / "one", zygote) as warm,
        SglangServer(setup, place / "two") as cold,
    ):
        warm.wait_until_ready(PATIENCE_SECONDS)
        cold.wait_until_ready(PATIENCE_SECONDS)
        assert (warm.is_warm, cold.is_warm) == (True, False)


def test_without_its_zygote_a_server_starts_cold(zygote: ServerZygote, place: Path) -> None:
    with SglangServer(make_setup(), place / "one", zygote) as one:
        one.wait_until_ready(PATIENCE_SECONDS)
        zygote.process.process.kill()
        zygote.process.process.wait()
        assert wait_until(lambda: one.has_exited)  # its supervisor noticed
    with SglangServer(make_setup(), place / "two", zygote) as two:
        two.wait_until_ready(PATIENCE_SECONDS)
        assert not two.is_warm


def test_a_failing_import_is_the_reason_of_the_failure(place: Path) -> None:
    setup = ServerSetup(PYTHON, (), environment={"EARLY": "no"})
    with ServerZygote(setup, place / "zygote.log") as zygote:
        for name in ("one", "two"):
            with pytest.raises(
                ServerFailed, match=r"cannot be imported here: AssertionError|ended"
            ):
                SglangServer(setup, place / name, zygote)
