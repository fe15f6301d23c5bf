"""The length of a request's row in req_to_token, against the slots that a draft reserves in it.

THE INVARIANTS IN PLAIN WORDS

Each request has one row with the slot of every token. Before each decode SGLang reserves slots for
two drafts beyond the committed tokens. With topk and page size above 1 every branch of a draft
takes whole pages of its own, beginning with its copy of the prefix's last page.

1. A row is as long as the context and the two largest drafts that can follow it, whole pages of all
   ranks that share a decode; and, as in every release, four slots and a draft longer than the
   context. UNO reserves one slot more for each of its two drafts, whatever the page size.
2. Reserving never writes outside of the request's own row, at any position in the context.
3. Afterwards a row holds distinct slots for all committed tokens and a whole draft more, its
   earlier entries are unchanged, and every request counts one decode more.
4. A request's reservation does not depend on the other requests of the batch.
5. If a row were too short, SGLang's own check refuses the batch before a row is written.
6. Lengths for the host are on the host, and those for the device on the device.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fixtures import pool_sizing as adapter
from fixtures.pool_sizing import DecodeHistory, DraftShape, ServerMemory
from harness import checking
from harness.guards import skip_not_applicable

CHECK = "req-to-token-row-check"


@pytest.fixture
def rows_are_sized_for_drafts() -> None:
    if not adapter.HAS_RESERVATION:
        skip_not_applicable("rows are sized elsewhere, for one draft")


@pytest.fixture
def uno_is_here() -> None:
    if not adapter.has_algorithm("UNO"):
        skip_not_applicable("no UNO")


@pytest.mark.guards("26972", without=(CHECK,))
@given(draft=adapter.drafts())
def test_a_row_has_room_for_two_drafts_beyond_the_context(draft: DraftShape) -> None:
    assert adapter.get_extra_columns(draft) >= 2 * draft.max_slots


@pytest.mark.usefixtures("rows_are_sized_for_drafts")
@given(draft=adapter.drafts(pages=(1, 2, 3, 16), least_topk=1), drafting=st.booleans())
@example(draft=DraftShape(topk=1, steps=1, verified_tokens=2, page=2, context=16), drafting=True)
@example(draft=DraftShape(topk=1, steps=3, verified_tokens=4, page=1, context=16), drafting=True)
def test_a_row_has_four_slots_and_a_draft_to_spare(draft: DraftShape, drafting: bool) -> None:
    spare = adapter.get_extra_columns(draft, "EAGLE" if drafting else None)
    assert spare >= 4 + draft.verified_tokens


@pytest.mark.usefixtures("uno_is_here")
@given(draft=adapter.drafts(pages=(1, 2, 16), least_topk=1))
@example(draft=DraftShape(topk=1, steps=1, verified_tokens=4, page=1, context=16))
def test_a_row_has_room_for_two_drafts_of_uno(draft: DraftShape) -> None:
    spare = adapter.get_extra_columns(draft, "UNO")
    assert spare >= 2 * (draft.verified_tokens + 1)


@pytest.mark.guards("26972", without=(CHECK,))
@given(drafted=adapter.drafts_with_histories())
def test_reserving_stays_in_the_request_s_own_row(
    drafted: tuple[DraftShape, DecodeHistory],
) -> None:
    draft, history = drafted
    with checking.checked() as check:
        memory = adapter.prepare_memory(check, draft, history)
        for added in history.decodes:
            memory.decode(added)
            before = memory.list_request_slots()
            memory.prepare()
            adapter.assert_reservations(memory)
            assert memory.has_same_slots(before)
        assert adapter.WRITER_KERNEL in {launch.kernel for launch in check.launches}


@pytest.mark.xfail(
    strict=True,
    reason="upstream: two drafts at page size 1 outgrow a row near the context's end",
)
@pytest.mark.parametrize("draft", [DraftShape(1, 5, 6, 1, 64), DraftShape(4, 5, 16, 1, 64)])
def test_reserving_slot_by_slot_stays_in_the_request_s_own_row(draft: DraftShape) -> None:
    if not adapter.HAS_RESERVATION:
        skip_not_applicable("rows are sized elsewhere, for one draft")
    history = DecodeHistory((draft.context - 1, draft.context - 3), ())
    with checking.checked() as check:
        adapter.prepare_memory(check, draft, history)


@given(drafted=adapter.drafts_with_histories())
def test_a_request_reserves_the_same_in_any_company(
    drafted: tuple[DraftShape, DecodeHistory],
) -> None:
    if not adapter.HAS_RESERVATION:
        skip_not_applicable("drafts with topk and page size above 1 reserve nothing ahead")
    draft, history = drafted
    together = adapter.compute_reservations(draft, history)
    alone = [
        adapter.compute_reservations(draft, DecodeHistory((prompt,), history.decodes))[0]
        for prompt in history.prompts
    ]
    assert together == alone


@pytest.mark.guards(CHECK)
@given(drafted=adapter.drafts_with_histories())
def test_a_row_that_is_too_short_is_refused_before_it_is_written(
    drafted: tuple[DraftShape, DecodeHistory],
) -> None:
    draft, history = drafted
    with checking.checked() as check:
        longest = max(history.prompts)
        memory = ServerMemory(draft, history, check.device, longest + 2 * draft.max_slots - 1)
        adapter.add_access_rule(check)
        before = memory.table.tolist()
        assert memory.is_refused()
        assert memory.table.tolist() == before
