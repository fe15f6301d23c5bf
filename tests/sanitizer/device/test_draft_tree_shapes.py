"""The trees of drafts that a dry run builds are those of the parents that SGLang chose."""

from __future__ import annotations

import random

import pytest
import torch

from harness.sanitizer.plugins.for_sglang import draft_tree_shapes

TOPK, DEPTH, TOKENS = 3, 4, 12
FULL_MASK, DRAFTS_ALONE, PACKED = range(3)


def draw_tree(draw: random.Random) -> tuple[list[int], list[int], list[int]]:
    """Draw a tree as EAGLE makes it: its list of parents, the chosen numbers, each one's parent.

    The root proposes numbers 0 to topk - 1; in each step topk nodes propose topk numbers each.
    """
    above = dict.fromkeys(range(TOPK), -1)
    parents = [-1, *range(TOPK)]  # of the blocks of numbers
    newest = list(range(TOPK))
    for step in range(1, DEPTH):
        first = TOPK + TOPK * TOPK * (step - 1)
        growing = newest if step == 1 else sorted(draw.sample(newest, TOPK))
        if step > 1:
            parents += growing
        newest = list(range(first, first + TOPK * TOPK))
        above |= {number: growing[(number - first) // TOPK] for number in newest}
    chosen: list[int] = []
    while len(chosen) < TOKENS - 1:
        free = [one for one in above if one not in chosen and above[one] in (-1, *chosen)]
        chosen.append(draw.choice(free))
    return parents, sorted(chosen), [above[number] for number in sorted(chosen)]


def list_paths(chosen: list[int], above: list[int]) -> list[list[int]]:
    """List each node's path from the root, by their places in the tree."""
    places = {number: place + 1 for place, number in enumerate(chosen)} | {-1: 0}
    paths = [[0]]
    for number, parent in zip(chosen, above, strict=True):
        paths.append([*paths[places[parent]], places[number]])
    return paths


def build_trees(
    trees: list[tuple[list[int], list[int], list[int]]], mode: int
) -> list[torch.Tensor]:
    lengths = torch.tensor([5 + row for row in range(len(trees))])
    requests = len(trees)
    cells = requests * TOKENS * TOKENS
    size = {
        FULL_MASK: cells + TOKENS * int(lengths.sum()),
        DRAFTS_ALONE: cells,
        PACKED: requests * TOKENS,
    }
    mask = torch.zeros(size[mode], dtype=torch.uint16 if mode == PACKED else torch.bool)
    links = torch.full((3, requests, TOKENS), -1)
    positions = torch.empty(requests * TOKENS, dtype=torch.int64)
    draft_tree_shapes.build_tree(
        torch.tensor([tree[0] for tree in trees]),
        torch.tensor([tree[1] for tree in trees]),
        *(lengths, mask, positions, *links, TOPK, DEPTH, TOKENS, mode),
    )
    return [mask, positions, *links]


@pytest.fixture(params=range(3))
def trees(request: pytest.FixtureRequest) -> list[tuple[list[int], list[int], list[int]]]:
    draw = random.Random(request.param)
    return [draw_tree(draw) for _ in range(6)]


def test_masks_and_positions_follow_each_node_to_the_root(
    trees: list[tuple[list[int], list[int], list[int]]],
) -> None:
    mask, positions, index, *_ = build_trees(trees, FULL_MASK)
    packed, *_ = build_trees(trees, PACKED)
    drafts, *_ = build_trees(trees, DRAFTS_ALONE)
    start = 0
    for row, (_, chosen, above) in enumerate(trees):
        for node, path in enumerate(list_paths(chosen, above)):
            length = 5 + row
            cells = mask[start : start + length + TOKENS].tolist()
            expected = [other in path for other in range(TOKENS)]
            assert cells == [False] * length + expected  # SGLang fills what is before
            start += length + TOKENS
            at = row * TOKENS + node
            assert drafts[at * TOKENS : (at + 1) * TOKENS].tolist() == expected
            assert int(packed[at]) == sum(1 << other for other in path)
            assert int(positions[at]) == length + len(path) - 1
    assert index.tolist() == torch.arange(6 * TOKENS).view(6, TOKENS).tolist()


def test_links_lead_to_every_draft_of_a_node_and_a_longest_path_is_accepted(
    trees: list[tuple[list[int], list[int], list[int]]],
) -> None:
    *_, index, following, sibling = build_trees(trees, FULL_MASK)
    accepted = torch.full((6, DEPTH + 1), -1, dtype=torch.int32)
    numbers, candidates = torch.empty(6, dtype=torch.int32), torch.zeros(6, TOKENS)
    draft_tree_shapes.accept_longest_path(  # by the names of sgl_kernel's operator
        predicts=torch.empty(0),
        accept_index=accepted,
        accept_token_num=numbers,
        candidates=candidates,
        retrive_index=index,
        retrive_next_token=following,
        retrive_next_sibling=sibling,
        target_predict=torch.empty(0),
    )
    for row, (_, chosen, above) in enumerate(trees):
        paths = list_paths(chosen, above)
        for node in range(TOKENS):
            found, draft = [], int(following[row, node])
            while draft >= 0:
                found.append(draft)
                draft = int(sibling[row, draft])
            assert found == [path[-1] for path in paths[1:] if path[-2] == node]
        longest = max(map(len, paths))
        path = [one - row * TOKENS for one in accepted[row].tolist() if one >= 0]
        assert path in paths
        assert (len(path), int(numbers[row])) == (longest, longest - 1)


@pytest.mark.parametrize(
    ("following", "siblings"),
    [
        ([1, -1, -1], [-1, 2, 1]),  # a circle of siblings
        ([0, 0, 0], [0, 0, 0]),  # buffers that were not filled with -1
        ([3, -1, -1], [-1, -1, -1]),  # a node that is none of the tree
    ],
)
def test_links_that_are_no_tree_are_an_error(following: list[int], siblings: list[int]) -> None:
    with pytest.raises(ValueError, match=r"a tree('s 3| of 3) tokens"):
        draft_tree_shapes._read_links(torch.tensor([following]), torch.tensor([siblings]))


def test_a_draft_whose_parent_was_not_chosen_has_no_parent() -> None:
    """Number 8 was proposed by number 1, in block 2 of the parents."""
    parents = [-1, 0, 1, 2]
    above = draft_tree_shapes.find_parents(torch.tensor([parents]), torch.tensor([[8]]), TOPK)
    assert above.tolist() == [[-1]]
