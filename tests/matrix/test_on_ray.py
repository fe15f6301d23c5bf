"""Cells on a real Ray cluster of several nodes: the same outcomes as here, no unnoticed loss."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from calling import PATIENCE_SECONDS, is_alive, wait_until
from driving import RAY_WARNINGS, Drive, make_cell

from harness.core.errors import NotReadyError
from harness.runs.matrix.cell_plan import MatrixCell
from harness.runs.matrix.cell_scheduler import CellExecutor, CellScheduler, RetryRules, RunLocation
from harness.runs.matrix.local_executor import LocalExecutor, MachineDevices
from harness.store.matrix.table import MatrixTable
from harness.store.matrix.values import CellAttempt, MatrixCellResult

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

pytestmark = RAY_WARNINGS
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}
# A dead node, which refuses to answer, is noticed after two seconds, not after a quarter of a
# minute; a node that a busy machine slows down has the usual time.
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 10000,
    "health_check_failure_threshold": 4,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray", reason="n/a: Ray is not installed")
    from ray.cluster_utils import Cluster

    # The head has no CPU: cells run on nodes that may die.
    head = {**NODE, "num_cpus": 0, "_system_config": QUICK, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**NODE, resources={"npu": 1, "accelerator_type:H200": 1, "stays": 1})
    cluster.add_node(**NODE, resources={"stays": 1})
    yield cluster
    cluster.shutdown()  # type: ignore[no-untyped-call]


@pytest.fixture
def on_ray(cluster: Cluster) -> Iterator[Any]:
    from harness.runs.matrix.ray_executor import RayExecutor

    executor = RayExecutor(cluster.address, node_loss_seconds=1.0)
    yield executor
    executor.close()


Results = dict[str, MatrixCellResult]


def run_cells(
    cells: list[MatrixCell], executor: CellExecutor, folder: Path, rules: RetryRules | None = None
) -> Results:
    """Run these cells; return the result."""
    results: Results = {
        one.identity: MatrixCellResult(one.identity, one.values, one.work, one.command, one.why)
        for one in cells
    }

    def keep(ended: list[tuple[str, CellAttempt]]) -> None:
        for name, attempt in ended:
            results[name].attempts.append(attempt)

    place = RunLocation("run", folder, folder)
    CellScheduler(cells, executor, place, rules or RetryRules(), keep).run()
    return results


def test_the_same_cells_come_to_the_same_here_and_on_ray(on_ray: Any, tmp_path: Path) -> None:
    show = 'echo "$CUDA_VISIBLE_DEVICES,$OMP_NUM_THREADS,$(env | grep -c ^RAY_),$PWD"'
    flaky = "test -e $HERE.flag || { touch $HERE.flag; exit 1; }"
    ends = {
        "passed": show, "failed": "exit 1", "error": "exit 2", "not-ready": "exit 3",
        "segfault": "kill -SEGV $$", "hang": "sleep 610 & sleep 610", "flaky": flaky,
    }  # fmt: skip
    shown_attempts = []
    for place, executor in (("ray", on_ray), ("local", LocalExecutor(1, MachineDevices(1.0)))):
        here = f"HERE={tmp_path}/{place}; "
        limits = dict.fromkeys(ends, PATIENCE_SECONDS) | {"hang": 1.0}
        cells = [make_cell(name, here + ends[name], limit=limits[name]) for name in ends]
        (tmp_path / place).mkdir()
        found = run_cells(cells, executor, tmp_path / place, RetryRules(retries=1))
        attempts = {name: result.attempts for name, result in found.items()}
        shown_attempts.append({name: [(a.outcome, a.how, a.number, a.last) for a in tried]
                     for name, tried in attempts.items()})  # fmt: skip
        assert all(result.outcome_word == name for name, result in found.items())
        logs = (tmp_path / place / "passed" / "log").read_text()
        assert logs == f",1,0,{tmp_path / place}\n"
        assert (tmp_path / place / "failed" / "log.1").exists()
    assert shown_attempts[0] == shown_attempts[1]


def test_a_killed_node_loses_only_its_cells(cluster: Cluster, on_ray: Any, tmp_path: Path) -> None:
    doomed = cluster.add_node(**NODE, resources={"doomed": 1})
    wait_until(lambda: len(list_nodes()) == 4)
    on_ray.nodes = [node["Resources"] for node in list_nodes()]
    # The new node may be slow to start on a busy machine.
    on_ray.node_loss_seconds = PATIENCE_SECONDS
    # Each writes its process and its count. The first round waits until the node is gone; the
    # victim's first attempt does not end before the test has looked.
    begin = "printf x >> {0}/{1}.ran; echo $$ >> {0}/{1}.pid; "
    wait = "until test -e {0}/{2}; do sleep 0.1; done"
    script = begin + wait
    # The others run on the two nodes that stay: on the doomed one they would take its place.
    cells = [
        make_cell(
            f"c{n}",
            script.format(tmp_path, f"c{n}", "gone"),
            limit=PATIENCE_SECONDS,
            custom={"stays": 0.001},
        )
        for n in range(6)
    ]
    script = begin + 'test "$(wc -c < {0}/{1}.ran)" -gt 1 || ' + wait
    doomed_script = script.format(tmp_path, "victim", "seen")
    victim = make_cell("victim", doomed_script, limit=PATIENCE_SECONDS, custom={"doomed": 0.001})
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_cells, [victim, *cells], on_ray, tmp_path / "logs")
        wait_until((tmp_path / "victim.pid").exists)
        cluster.remove_node(doomed, allow_graceful=False)
        (tmp_path / "gone").touch()
        # The victim may run again elsewhere: another node like it starts once the first has gone.
        cluster.add_node(**NODE, resources={"doomed": 1})
        found = running.result(PATIENCE_SECONDS)
    assert {result.outcome_word for result in found.values()} == {"passed"}
    lost = {name for name, result in found.items() if result.lost_attempt_count}
    assert lost == {"victim"}
    assert [one.outcome.value for one in found["victim"].attempts] == ["lost", "passed"]
    assert all(len((tmp_path / f"c{n}.ran").read_text()) == 1 for n in range(6))
    (tmp_path / "seen").touch()
    first = int((tmp_path / "victim.pid").read_text().split()[0])
    wait_until(lambda: not is_alive(first))


def list_nodes() -> list[dict[str, Any]]:
    import ray

    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in found if node["Alive"]]


def test_a_lost_driver_leaves_nothing_and_is_gone_on_with(cluster: Cluster, drive: Drive) -> None:
    wait = f"test -e {drive.flag('go')} || {{ touch {drive.flag('there')}; sleep 617; }}"
    long = f"{drive.marks('long')}; echo $$ > {drive.flag('pid')}; {wait}"
    drive.write(make_cell("done", drive.marks("done")), make_cell("long", long))
    words = ["--on", "ray", "--address", cluster.address]
    running = drive.start(*words)
    wait_until(lambda: drive.flag("there").exists() and drive.newest().counts.get("passed") == 1)
    running.kill()
    running.communicate()
    pid = int(drive.flag("pid").read_text())
    wait_until(lambda: not is_alive(pid))
    drive.flag("go").touch()
    resumed = drive.start(*words, "--resume")
    assert resumed.communicate(timeout=PATIENCE_SECONDS)
    assert resumed.returncode == 0
    assert drive.words() == {"done": "passed", "long": "passed"}
    assert (drive.times("done"), drive.times("long")) == (1, 2)
    assert drive.newest().where == "ray"


def test_a_cluster_that_is_not_there_ends_with_3_and_words(drive: Drive) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    drive.write(make_cell("one", "true"))
    with pytest.raises(NotReadyError, match=rf"no Ray cluster answers at {address}: .*ray start"):
        drive.run("--on", "ray", "--address", address)
    assert MatrixTable(drive.store).list_runs() == []
