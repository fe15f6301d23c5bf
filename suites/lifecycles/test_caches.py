"""What can happen to a request, on SGLang's real scheduler with each kind of cache.

THE INVARIANTS IN PLAIN WORDS, BETWEEN TWO ITERATIONS OF ITS LOOP

1. Each page of the KV pools, each row of the table of requests and each recurrent state has one
   owner, or is free once. A node of the tree is locked as often as requests hold it.
2. Each row that a request reads was written for its own tokens, in every buffer of the pools.
3. A request gets the answer that it gets alone, and one end; an abort ends no other.
4. When nothing runs, no request holds anything, and no node is locked. Nothing waits for ever.

Programs are drawn before they run, so that no draw depends on the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given

from fixtures.lifecycles import schedules, setups
from fixtures.lifecycles.program_run import Program
from fixtures.lifecycles.setups import Setup
from fixtures.lifecycles.strategies import draw_programs, draw_programs_of_any_server
from harness.guards import hypothesis_adapter
from harness.guards.run_item import OBSERVED

SHRINKING_SECONDS = 10

pytestmark = [
    pytest.mark.before_forks(ready=setups.import_scheduler),
    pytest.mark.runs_on("virtual"),
]


@pytest.fixture(autouse=True)
def _a_review_sees_what_is_scheduled(
    record_property: Callable[[str, object], None],
) -> Iterator[None]:
    yield
    record_property(OBSERVED, schedules.take_schedules())


@pytest.fixture(autouse=True)
def _shrinking_ends_soon() -> Iterator[None]:
    """Each failed program costs a new server."""
    with hypothesis_adapter.limit_shrinking(SHRINKING_SECONDS):
        yield


@pytest.mark.guards(
    "retraction-frees-shared-pages",
    "finished-request-keeps-its-lock",
    "extended-request-keeps-two-locks",
    "request-reads-freed-duplicates",
    "insert-frees-the-shared-prefix",
    "request-keeps-its-row",
    "split-forgets-locks",
    "flush-keeps-the-tree",
    "finished-request-frees-the-shared-prefix",
)
@given(program=draw_programs(Setup()))
def test_a_tree_of_tokens(program: Program) -> None:
    program.run()


@pytest.mark.guards("pause-handles-a-result-twice", "aborted-chunk-keeps-its-slots")
@given(program=draw_programs(Setup(page=4, overlap=True)))
def test_a_tree_of_pages_with_overlap(program: Program) -> None:
    program.run()


@given(program=draw_programs(Setup(mixed=True, overlap=True, priorities=True)))
def test_mixed_batches_with_priorities(program: Program) -> None:
    program.run()


@given(program=draw_programs(Setup(page=4, overlap=True, radix=False)))
def test_no_tree(program: Program) -> None:
    program.run()


@pytest.mark.guards(
    "29350",
    "29352",
    "window-slots-not-freed",
    "window-slots-freed-twice",
    "split-forgets-window-locks",
    "retraction-keeps-the-window-cursor",
)
@given(program=draw_programs(Setup(model="gpt_oss", overlap=True)))
def test_windows_of_tokens(program: Program) -> None:
    program.run()


@given(program=draw_programs(Setup(model="gpt_oss", page=16, chunk=32, tokens=192)))
def test_windows_smaller_than_a_page(program: Program) -> None:
    program.run()


@pytest.mark.guards("29349-stale-copy", "finished-state-freed-in-the-tree")
@given(program=draw_programs(Setup(model="qwen3_next", tokens=72), longest=48))
def test_recurrent_states(program: Program) -> None:
    program.run()


@given(program=draw_programs(Setup(model="deepseek_v2", page=4, overlap=True)))
def test_latent_attention(program: Program) -> None:
    program.run()


@pytest.mark.guards("write-keeps-its-lock")
@given(program=draw_programs(Setup(page=4, host="write_through")))
def test_copies_on_the_host(program: Program) -> None:
    setups.skip_without_known_host()
    program.run()


@pytest.mark.guards("33758", "relayed-drafts-are-shifted")
@given(program=draw_programs(Setup(chunk=128, tokens=160, page=4, overlap=True, drafts=1)))
def test_chains_of_drafts(program: Program) -> None:
    setups.skip_without_drafts_and_sessions()
    program.run()


@pytest.mark.guards(
    "accepted-drafts-keep-their-hidden-states", "filtered-drafts-keep-their-hidden-states"
)
@given(program=draw_programs(Setup(chunk=128, tokens=160, drafts=4)))
def test_trees_of_drafts(program: Program) -> None:
    setups.skip_without_drafts_and_sessions()
    program.run()


@pytest.mark.guards("31765", "closed-session-keeps-its-lock")
@given(program=draw_programs(Setup(page=4, overlap=True, sessions="streaming")))
def test_streaming_sessions(program: Program) -> None:
    setups.skip_without_drafts_and_sessions()
    program.run()


@given(program=draw_programs(Setup(sessions="trees")))
def test_trees_of_turns(program: Program) -> None:
    setups.skip_without_drafts_and_sessions()
    program.run()


@given(program=draw_programs_of_any_server())
def test_any_setup(program: Program) -> None:
    program.run()
