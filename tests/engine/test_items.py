"""Which item runs when, and in which worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_kind import ToyEngine, ToyPool, ToyWorker


class LazyPool(ToyPool):
    """A pool that finds its next item only when a job is free for it."""

    def refill(self) -> None:
        word = next(self.words, "")
        if word:
            self.waiting.append(word)

    words: Iterator[str] = iter(())


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[list[ToyPool]]:
    made: list[ToyPool] = []
    yield made
    for pool in made:
        pool.end_workers()


def run_pool(pool: ToyPool, jobs: int = 2) -> None:
    engine = ToyEngine([pool], jobs)
    try:
        engine.run()
    finally:
        engine.end()


@pytest.mark.parametrize("forks", [True, False])
def test_each_item_ends_once_with_so_many_at_a_time(tmp_path: Path, forks: bool) -> None:
    words = [f"pass {number}" for number in range(20)]
    pool = ToyPool(tmp_path, *words, jobs=3, forks=forks)
    run_pool(pool, jobs=3)
    assert sorted(pool.results) == sorted(words)
    assert max(beside for _, beside in pool.begun) <= 2
    assert pool.started_workers == 1 if forks else pool.started_workers <= 4


def test_an_item_is_found_when_a_job_is_free_for_it(tmp_path: Path) -> None:
    pool = LazyPool(tmp_path, jobs=1)
    taken: list[int] = []

    def find_words() -> Iterator[str]:
        for number in range(4):
            taken.append(len(pool.results))
            yield f"pass {number}"

    pool.words = find_words()
    run_pool(pool, jobs=1)
    assert taken == [0, 1, 2, 3]


def test_a_pool_that_is_done_can_get_more(tmp_path: Path) -> None:
    pool = ToyPool(tmp_path)
    engine = ToyEngine([pool], 2)
    engine.run()  # it starts a worker, and has nothing to run
    for number in range(3):
        pool.waiting.append(f"pass {number}")
        pool.has_ended = False
        engine.run()
    engine.end()
    assert len(pool.results) == 3
    assert pool.started_workers == 1


def test_messages_longer_than_a_pipe_block_neither_side(tmp_path: Path) -> None:
    words = [f"say {200_000 + number} {'y' * 100_000}" for number in range(4)]
    pool = ToyPool(tmp_path, *words, jobs=4, forks=False)
    run_pool(pool, jobs=4)
    wanted = [int(word.split()[1]) for word in pool.results]
    assert [len(text) for text in pool.results.values()] == wanted


# Several releases


def test_the_first_release_goes_first_and_the_next_one_imports_meanwhile(
    tmp_path: Path, pools: list[ToyPool]
) -> None:
    gate, import_gate = tmp_path / "gate", tmp_path / "imported"
    for name in "abcd":
        words, start = (f"await {gate} {name}1", f"pass {name}2"), f"await {import_gate}"
        start = "" if name == "a" else start  # the first one is imported first
        pools.append(ToyPool(tmp_path, *words, name=name, jobs=1, start=start))
    turns = ToyEngine(pools, 1).iterate_turns()
    for _ in turns:
        if pools[0].running:
            import_gate.touch()
        if pools[1].is_collected:
            break
    assert [bool(pool.workers) for pool in pools] == [True, True, False, False]
    assert not pools[1].begun
    gate.touch()
    for _ in turns:
        pass
    assert all(len(pool.results) == 2 for pool in pools)


def test_a_release_whose_last_items_run_makes_room_for_the_next(
    tmp_path: Path, pools: list[ToyPool]
) -> None:
    gate = tmp_path / "gate"
    pools += [ToyPool(tmp_path, f"await {gate} {name}", name=name) for name in "abcd"]
    engine = ToyEngine(pools, 4)
    for _ in engine.iterate_turns():
        if pools[0].running and pools[1].running:
            break
    # Nothing of both waits any more, so two more of them import.
    assert engine.select_active_pools() == pools
    gate.touch()


def test_an_item_to_run_alone_waits_for_every_release(tmp_path: Path, pools: list[ToyPool]) -> None:
    first, second = ToyPool(tmp_path, name="a"), ToyPool(tmp_path, name="b")
    pools += [first, second]
    first.alone.extend(["pass alone", "pass alone too"])
    second.waiting.extend(f"pass {number}" for number in range(5))
    ToyEngine(pools, 2).run()
    ends = [float(text.split()[1]) for text in second.results.values()]
    assert min(float(text.split()[1]) for text in first.results.values()) > max(ends)
    assert [beside for _, beside in first.begun] == [0, 0]


# Workers that run one item at a time


def test_a_spare_worker_starts_and_idle_ones_are_let_go(
    tmp_path: Path, pools: list[ToyPool]
) -> None:
    words = [f"await {tmp_path / name}" for name in ("one", "two", "three", "four")]
    pool = ToyPool(tmp_path, *words, forks=False, jobs=2)
    pools.append(pool)
    turns = ToyEngine(pools, 2).iterate_turns()
    for _ in turns:
        if len(pool.running) == 2 and all(worker.is_ready for worker in pool.workers):
            break
    assert len(pool.workers) == 3  # one for when an item ends its worker
    pool.waiting.clear()
    (tmp_path / "one").touch()
    for _ in turns:
        if len(pool.workers) < 3:
            break
    assert len(pool.running) == 1  # it goes on
    assert len(pool.workers) == 2


def test_all_workers_are_asked_to_end_before_one_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ToyPool(tmp_path, "pass 1", "pass 2", "pass 3", forks=False)
    events: list[str] = []
    ask, end = ToyWorker.ask_to_end, ToyWorker.end

    def ask_to_end(worker: ToyWorker) -> None:
        events.append("ask")
        ask(worker)

    def end_worker(worker: ToyWorker, kill: bool = False) -> int:
        events.append("end")
        return end(worker, kill)

    engine = ToyEngine([pool], 2)
    engine.run()
    monkeypatch.setattr(ToyWorker, "ask_to_end", ask_to_end)
    monkeypatch.setattr(ToyWorker, "end", end_worker)
    engine.end()
    assert events[: events.index("end")].count("ask") >= events.count("end") > 1


def test_nothing_begins_beside_an_item_that_runs_alone(tmp_path: Path) -> None:
    """Items may come later: those of a search that goes on, or of another release."""

    class RefillingPool(ToyPool):
        def refill(self) -> None:
            if self.runs_alone and "pass late" not in self.results and not self.waiting:
                self.waiting.append("pass late")
                (tmp_path / "go").touch()

        def check_limits(self, now: float) -> None:
            if self.runs_alone:
                self.refill()

    pool = RefillingPool(tmp_path)
    pool.alone.append(f"await {tmp_path / 'go'}")
    run_pool(pool)
    assert dict(pool.begun)["pass late"] == 0
