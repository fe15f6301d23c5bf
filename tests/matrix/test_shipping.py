"""Nodes with Ray alone: the error, and the packages that `--ship` brings."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from calling import PATIENCE_SECONDS, wait_until
from driving import RAY_WARNINGS, Drive, make_cell
from fixture_types import Patch

from harness.core import paths
from harness.core.outcomes import Outcome
from harness.runs.matrix import code_shipping
from harness.store.matrix.values import CellAttempt

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

pytestmark = RAY_WARNINGS
OBJECTS = 80 << 20


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[Cluster]:
    """A head, and a node whose Python finds Ray and not unfix."""
    pytest.importorskip("ray", reason="n/a: Ray is not installed")
    from ray.cluster_utils import Cluster

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "bare"], check=True)
    bare = str(home / "bare" / "bin" / "python")
    show = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.check_output([bare, "-c", show], text=True)
    # A path file's own path files are not read: the packages are found, and unfix is not.
    Path(site.strip(), "ours.pth").write_text(sysconfig.get_path("purelib"))
    env = {**os.environ, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
    for ours in ("PYTHONPATH", "UNFIX_HOME"):
        env.pop(ours, None)
    found = [bare, "-P", "-c", "import harness.runs.matrix"]
    has_unfix = subprocess.run(found, env=env, stderr=subprocess.DEVNULL).returncode == 0
    assert not has_unfix, "unfix is there"
    head = {"num_cpus": 0, "object_store_memory": OBJECTS, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    start = [bare, "-c", "from ray.scripts.scripts import main; main()", "start", "--block"]
    start += [
        "--address",
        cluster.address,
        "--num-cpus",
        "1",
        "--object-store-memory",
        str(OBJECTS),
    ]
    start += ["--resources", '{"bare": 1}']
    started = subprocess.Popen(start, env=env, cwd=home, stdout=subprocess.DEVNULL)
    yield cluster
    started.terminate()
    started.wait(PATIENCE_SECONDS)
    cluster.shutdown()  # type: ignore[no-untyped-call]


def run_from_elsewhere(cluster: Cluster, drive: Drive, *words: str) -> CellAttempt:
    """Run by a process in another folder, since Ray's workers import from the driver's folder."""
    running = drive.start("--on", "ray", "--address", cluster.address, *words)
    running.communicate(timeout=PATIENCE_SECONDS)
    return drive.newest().cells[0].attempts[-1]


def test_a_node_without_unfix_gets_it_by_ship(cluster: Cluster, home: Path, drive: Drive) -> None:
    import ray

    with ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR):
        wait_until(lambda: "bare" in ray.cluster_resources())  # type: ignore[no-untyped-call]
    show = "python -c 'import harness; print(harness.__file__)'; echo $UNFIX_HOME"
    drive.write(make_cell("one", show, custom={"bare": 1.0}))
    bare = run_from_elsewhere(cluster, drive)
    assert bare.outcome is Outcome.NOT_READY
    assert "the node lacks unfix (No module named" in bare.how
    assert "--ship" in bare.how
    brought = run_from_elsewhere(cluster, drive, "--ship")
    node_home = home / ".cache" / "unfix"
    assert brought.outcome is Outcome.PASSED, brought
    assert brought.output.split() == [
        str(node_home / "checkout" / "harness" / "__init__.py"),
        str(node_home),
    ]
    assert (node_home / "checkout" / "suites").is_dir()
    assert not (node_home / "checkout" / ".git").exists()


def test_the_checkout_and_the_packages_that_it_needs_are_shipped(monkeypatch: Patch) -> None:
    environment: dict[str, Any] = code_shipping.build_runtime_environment()
    assert Path(environment["working_dir"]) == paths.project_folder()
    assert any(one.startswith("ast-grep-py") for one in environment["pip"])
    assert not any("mypy" in one or ";" in one for one in environment["pip"])
    assert {".git", ".venv", ".releases", ".unfix"} <= set(environment["excludes"])
