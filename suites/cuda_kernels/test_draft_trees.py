"""Trees of drafts in SGLang's CUDA kernels: how they are built, verified and read from a mask.

THE INVARIANTS IN PLAIN WORDS
- A draft attends to its context, to itself and to its ancestors, and stands one position behind
  its parent.
- First children and next siblings, followed from the root, reach each draft of a tree once.
- A draft whose parent was not chosen is linked to no other; nothing is read for it behind the
  request's own drafts.
- Verification accepts the longest path from the root whose tokens the target predicts, if no two
  children of a draft have the same token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from harness import checking

FULL, DRAFTS_ALONE, PACKED = 0, 1, 2  # what a mask covers


@dataclass(frozen=True)
class Drafts:
    """What the draft model chose for a request."""

    parents: list[int]  # the candidates that each step went on with
    chosen: list[int]  # candidates
    tree: list[int | None]  # the parent of each: a draft's number, from 1; 0 is the root


pytestmark = pytest.mark.prepared(by=cuda_kernels.build_modules, names=("speculative.tree",))

batches = st.integers(1, 6).flatmap(
    lambda size: st.lists(
        st.tuples(*(st.integers(0, node) for node in range(size))), min_size=1, max_size=3
    )
)


requests = st.integers(1, 3)


@given(
    topk=st.integers(1, 3),
    depth=st.integers(1, 3),
    requests=requests,
    mode=st.sampled_from([FULL, DRAFTS_ALONE, PACKED]),
    data=st.data(),
)
def test_a_tree_is_built_from_the_chosen_drafts(
    topk: int, depth: int, requests: int, mode: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, topk + (depth - 1) * topk * topk))
    drafts = [draw_drafts(data, topk, depth, count) for _ in range(requests)]
    check_built_trees(drafts, draw_lengths(data, requests), topk, depth, mode)


@pytest.mark.parametrize("mode", [FULL, DRAFTS_ALONE, PACKED], ids=["full", "alone", "packed"])
def test_the_drafts_of_two_branches_have_their_own_ancestors(mode: int) -> None:
    """In a larger tree, a search for the wrong parent may go round and never end."""
    drafts = make_drafts([-1, 0, 1], {0: -1, 1: -1, 2: 0, 3: 0, 4: 1, 5: 1}, [0, 1, 2, 4])
    check_built_trees([drafts], [3], 2, 2, mode)


@pytest.mark.guards("36201-eagle")
@given(
    topk=st.integers(1, 3),
    requests=requests,
    mode=st.sampled_from([FULL, DRAFTS_ALONE]),
    data=st.data(),
)
def test_a_draft_whose_parent_was_not_chosen_has_no_parent(
    topk: int, requests: int, mode: int, data: st.DataObject
) -> None:
    check_trees_with_orphans(data, topk, requests, mode)


@pytest.mark.guards("36201-eagle-packed")
@given(topk=st.integers(1, 3), requests=requests, data=st.data())
def test_a_draft_in_a_packed_tree_has_no_parent_that_was_not_chosen(
    topk: int, requests: int, data: st.DataObject
) -> None:
    check_trees_with_orphans(data, topk, requests, PACKED)


def check_trees_with_orphans(data: st.DataObject, topk: int, requests: int, mode: int) -> None:
    depth = 3
    count = data.draw(st.integers(1, topk + topk * topk))
    drafts = [draw_orphans(data, topk, depth, count) for _ in range(requests)]
    check_built_trees(drafts, draw_lengths(data, requests), topk, depth, mode)


def draw_lengths(data: st.DataObject, requests: int) -> list[int]:
    """Draw the lengths of contexts."""
    return [data.draw(st.integers(0, 5)) for _ in range(requests)]


def check_built_trees(
    drafts: list[Drafts], lengths: list[int], topk: int, depth: int, mode: int
) -> None:
    build = cuda_kernels.require_kernel("speculative.tree", "build_tree_kernel_efficient")
    requests, size = len(drafts), len(drafts[0].chosen) + 1
    with checking.checked_cuda() as check:
        device = check.device
        if mode == FULL:
            mask_size = sum(length * size for length in lengths) + requests * size * size
        else:
            mask_size = requests * size * (size if mode == DRAFTS_ALONE else width_of(size))
        mask = torch.full(
            (mask_size,), mode == FULL, dtype=torch.uint8 if mode == PACKED else torch.bool
        ).to(device)
        positions = torch.empty(requests * size, dtype=torch.int64, device=device)
        links = [torch.full((requests, size), -1, device=device) for _ in range(3)]
        build(
            torch.tensor([draft.parents for draft in drafts], device=device),
            torch.tensor([draft.chosen for draft in drafts], device=device),
            torch.tensor(lengths, device=device),
            mask,
            positions,
            *links,
            topk,
            depth,
            size,
            mode,
        )
        check.assert_written(positions)
        masks = split_masks(mask.tolist(), lengths, size, mode)
        index, children, siblings = (link.tolist() for link in links)
    for request, draft in enumerate(drafts):
        above = list_ancestors(draft.tree)
        assert masks[request] == [
            [other in above[one] for other in range(size)] for one in range(size)
        ]
        own = positions.tolist()[request * size : (request + 1) * size]
        assert own == [lengths[request] + len(above[one]) - 1 for one in range(size)]
        assert index[request] == [request * size + one for one in range(size)]
        assert follow_links(children[request], siblings[request]) == draft.tree


@given(trees=batches, data=st.data())
def test_the_longest_predicted_path_is_accepted(
    trees: list[tuple[int, ...]], data: st.DataObject
) -> None:
    verify = cuda_kernels.require_kernel("speculative.tree", "verify_tree_greedy")
    size = len(trees[0]) + 1
    tokens = [number_siblings(list(parents), data.draw(st.integers(0, 2))) for parents in trees]
    targets = [data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)) for _ in trees]
    depth = data.draw(st.integers(1, size))
    with checking.checked_cuda() as check:
        device = check.device
        links = [link_tree(list(parents)) for parents in trees]
        predicted = torch.full((len(trees) * size,), -7, dtype=torch.int32, device=device)
        accepted = torch.full((len(trees), depth), -1, dtype=torch.int32, device=device)
        counts = torch.empty(len(trees), dtype=torch.int32, device=device)
        verify(
            predicted,
            accepted,
            counts,
            torch.tensor(tokens, device=device),
            torch.arange(len(trees) * size, device=device).view(len(trees), size),
            torch.tensor([children for children, _ in links], device=device),
            torch.tensor([siblings for _, siblings in links], device=device),
            torch.tensor(targets, device=device),
        )
        check.assert_written(counts)
        for request in range(len(trees)):
            path = find_longest_path(list(trees[request]), tokens[request], targets[request], depth)
            first = request * size
            assert int(counts[request]) == len(path) - 1
            wanted = [first + node for node in path] + [-1] * (depth - len(path))
            assert accepted[request].tolist() == wanted
            assert [int(predicted[first + node]) for node in path] == [
                targets[request][node] for node in path
            ]


@given(trees=batches, data=st.data())
def test_a_tree_is_read_from_its_mask(trees: list[tuple[int, ...]], data: st.DataObject) -> None:
    read = cuda_kernels.require_kernel("speculative.tree", "reconstruct_indices_from_tree_mask")
    size = len(trees[0]) + 1
    lengths = [data.draw(st.integers(0, 9)) for _ in trees]
    with checking.checked_cuda() as check:
        device = check.device
        above = [list_ancestors(list(parents)) for parents in trees]
        mask = [[[o in own[one] for o in range(size)] for one in range(size)] for own in above]
        positions = torch.empty(len(trees) * size, dtype=torch.int64, device=device)
        links = [torch.empty(len(trees), size, dtype=torch.int64, device=device) for _ in range(3)]
        read(
            torch.tensor(mask, device=device).flatten(),
            torch.tensor(lengths, device=device),
            positions,
            *links,
            len(trees),
            size,
        )
        for written in (positions, *links):
            check.assert_written(written)
        index, children, siblings = (link.tolist() for link in links)
    for request, parents in enumerate(trees):
        assert index[request] == [request * size + one for one in range(size)]
        assert follow_links(children[request], siblings[request]) == list(parents)
        own = positions.tolist()[request * size : (request + 1) * size]
        assert own == [lengths[request] + len(above[request][one]) - 1 for one in range(size)]


def draw_drafts(data: st.DataObject, topk: int, depth: int, count: int) -> Drafts:
    """Draw what the draft model chose: a draft is chosen after its parent."""
    parents, above = draw_candidates(data, topk, depth)
    chosen: list[int] = []
    while len(chosen) < count:
        ready = [one for one in above if one not in chosen and above[one] in (-1, *chosen)]
        chosen.append(data.draw(st.sampled_from(ready)))
    return make_drafts(parents, above, chosen)


def draw_orphans(data: st.DataObject, topk: int, depth: int, count: int) -> Drafts:
    """Draw any drafts, as scores that are NaN choose them."""
    parents, above = draw_candidates(data, topk, depth)
    return make_drafts(parents, above, data.draw(st.permutations(list(above)))[:count])


def make_drafts(parents: list[int], above: dict[int, int], chosen: list[int]) -> Drafts:
    chosen = sorted(chosen)
    place_of: dict[int, int | None] = {-1: 0}
    place_of |= {one: place + 1 for place, one in enumerate(chosen)}
    return Drafts(parents, chosen, [place_of.get(above[one]) for one in chosen])


def draw_candidates(data: st.DataObject, topk: int, depth: int) -> tuple[list[int], dict[int, int]]:
    """Draw the candidates of each step: the list of parents, and each candidate's own.

    The candidates of the first step are 0 to topk - 1; those of a later step are topk times topk,
    topk for each of the candidates that the step went on with.
    """
    expanded = list(range(topk))  # the candidates that the next step goes on with
    parents = [-1]
    first = topk
    above = dict.fromkeys(expanded, -1)
    for _ in range(depth - 1):
        parents += expanded
        new = range(first, first + topk * topk)
        above |= {one: expanded[(one - first) // topk] for one in new}
        expanded = sorted(data.draw(st.permutations(new))[:topk])
        first += topk * topk
    return parents, above


def list_ancestors(parents: Sequence[int | None]) -> list[set[int]]:
    """Return each draft's ancestors, itself and the root among them.

    Parents are those of drafts 1, 2, …; None is that of a draft that is linked to no other.
    """
    above = [{0}]
    for place, parent in enumerate(parents):
        above.append({place + 1} | above[parent or 0])
    return above


def link_tree(parents: list[int]) -> tuple[list[int], list[int]]:
    """Return each draft's first child and next sibling, the one with the lower number first."""
    size = len(parents) + 1
    children, siblings = [-1] * size, [-1] * size
    for node in range(size - 1, 0, -1):
        parent = parents[node - 1]
        siblings[node], children[parent] = children[parent], node
    return children, siblings


def follow_links(children: list[int], siblings: list[int]) -> list[int | None]:
    """Return the parent of each draft but the root, each of which is reached at most once."""
    parents: dict[int, int] = {}
    for parent, child in enumerate(children):
        while child != -1:
            assert child not in parents
            parents[child] = parent
            child = siblings[child]
    return [parents.get(node) for node in range(1, len(children))]


def number_siblings(parents: list[int], first: int) -> list[int]:
    """Return a token for each draft: siblings have `first`, `first + 1`, and so on."""
    tokens = [0]
    for node, parent in enumerate(parents):
        tokens.append(first + parents[:node].count(parent))
    return tokens


def find_longest_path(
    parents: list[int], tokens: list[int], targets: list[int], depth: int
) -> list[int]:
    """Return the longest path of at most `depth` drafts whose tokens are all predicted."""
    paths = [sorted(above) for above in list_ancestors(parents)]
    predicted = [
        path
        for path in paths
        if len(path) <= depth
        and all(tokens[node] == targets[parents[node - 1]] for node in path if node)
    ]
    return max(predicted, key=len)


def width_of(size: int) -> int:
    """Return the bytes of a draft's row of bits."""
    return 4 if size > 16 else 2 if size > 8 else 1


def split_masks(
    mask: list[Any], lengths: list[int], size: int, mode: int
) -> list[list[list[bool]]]:
    """Return the part of each request's mask that is about drafts; contexts are all visible."""
    masks, first = [], 0
    for length in lengths:
        rows = []
        for _ in range(size):
            if mode == PACKED:
                row = mask[first : first + width_of(size)]
                first += width_of(size)
                rows.append([bool(row[bit // 8] >> bit % 8 & 1) for bit in range(size)])
            else:
                width = size + (length if mode == FULL else 0)
                row = mask[first : first + width]
                first += width
                assert all(row[: width - size])
                rows.append(row[width - size :])
        masks.append(rows)
    return masks
