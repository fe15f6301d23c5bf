"""Whether a request's row in req_to_token is long enough for what a draft reserves in it.

THE INVARIANTS IN PLAIN WORDS

Each request has one row, which names the slot of every token it holds. Before each decode SGLang
reserves slots for two drafts beyond what is committed. With topk and page size above 1 every branch
of a draft takes whole pages of its own, beginning with its copy of the prefix's last page.

1. A row is as long as the context and two of the largest drafts that can follow it.
2. Reserving never writes outside of the request's own row, wherever in the context the request is.
3. After it a row names distinct slots for all that is committed and a whole draft more, and what it
   named before is as it was.
4. How much a request reserves does not depend on who else is in the batch.
5. Were a row ever too short, SGLang's own check refuses the batch before a row is written.
"""

from __future__ import annotations

import pytest
from hypothesis import given

from fixtures import pool_sizing as adapter
from fixtures.pool_sizing import Draft, History, Memory
from harness import checking
from harness.guards import not_here

CHECK = "req-to-token-row-check"


@pytest.mark.guards("26972", without=(CHECK,))
@given(draft=adapter.drafts())
def test_a_row_has_room_for_two_drafts_beyond_the_context(draft: Draft) -> None:
    assert adapter.extra_columns(draft) >= 2 * draft.footprint


@pytest.mark.guards("26972", without=(CHECK,))
@given(drafted=adapter.drafts_with_histories())
def test_reserving_stays_in_the_request_s_own_row(drafted: tuple[Draft, History]) -> None:
    draft, history = drafted
    with checking.checked() as check:
        columns = draft.context + adapter.extra_columns(draft)
        memory = Memory(draft, history, check.device, columns)
        adapter.fence(check, memory)
        memory.prepare()
        adapter.holds(memory)
        for added in history.decodes:
            memory.decode(added)
            before = memory.named()
            memory.prepare()
            adapter.holds(memory)
            assert memory.still_names(before)
        assert adapter.WRITER in {launch.kernel for launch in check.launches}


@given(drafted=adapter.drafts_with_histories())
def test_a_request_reserves_the_same_in_any_company(drafted: tuple[Draft, History]) -> None:
    if not adapter.HERE:
        not_here("drafts with topk and page size above 1 reserve nothing ahead")
    draft, history = drafted
    together = adapter.reserved(draft, history)
    alone = [
        adapter.reserved(draft, History((prompt,), history.decodes))[0]
        for prompt in history.prompts
    ]
    assert together == alone


@pytest.mark.guards(CHECK)
@given(drafted=adapter.drafts_with_histories())
def test_a_row_that_is_too_short_is_refused_before_it_is_written(
    drafted: tuple[Draft, History],
) -> None:
    draft, history = drafted
    with checking.checked() as check:
        longest = max(history.prompts)
        memory = Memory(draft, history, check.device, longest + 2 * draft.footprint - 1)
        adapter.fence(check, memory)
        before = memory.table.tolist()
        assert memory.refuses()
        assert memory.table.tolist() == before
