"""The tree of EAGLE's drafts, for dry runs: built of the parents that SGLang chose, and accepted.

A request's tree has a root, the last token that was accepted, and drafts in the order of SGLang's
`selected` numbers. Number n was proposed by the node of the list of parents at n // topk, and by
the root if that is 0. Example, with topk 2: numbers 0, 1 and 4 are two drafts of the root, and the
first proposal of the node that `parents[2]` names.

The outputs are those that `build_tree_efficient` and `VerifyTreeGreedy` write. A target agrees
with a longest path of each tree, so that the lengths that follow are the longest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.sanitizer.device import memory

_FULL_MASK, _DRAFTS_ALONE, _PACKED = range(3)  # SGLang's modes of a mask


def build_tree(
    parents: torch.Tensor,
    selected: torch.Tensor,
    lengths: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    index: torch.Tensor,
    next_token: torch.Tensor,
    next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    tokens: int,
    mode: int = _FULL_MASK,
) -> None:
    """Write a tree's mask, positions and links."""
    above = find_parents(memory.to_host(parents), memory.to_host(selected), topk)
    visible = _list_visible(above)
    on_host = memory.to_host(lengths)
    memory.to_host(index).copy_(torch.arange(index.numel()).view_as(index))
    _link_drafts(above, memory.to_host(next_token), memory.to_host(next_sibling))
    depths = visible.sum(2) - 1
    memory.to_host(positions).copy_((on_host.unsqueeze(1) + depths).view_as(positions))
    _write_mask(memory.to_host(mask), visible, on_host.tolist(), int(mode))


def find_parents(parents: torch.Tensor, selected: torch.Tensor, topk: int) -> torch.Tensor:
    """Find the place of each draft's parent in the tree, 0 for the root; -1 if it has none."""
    block = selected // topk
    if not parents.shape[1]:
        return torch.zeros_like(selected)
    number = parents.gather(1, block.clamp(max=parents.shape[1] - 1))
    is_parent = selected.unsqueeze(1) == number.unsqueeze(2)
    place = torch.where(is_parent.any(2), is_parent.int().argmax(2) + 1, -1)
    return torch.where(block == 0, 0, place)


def _list_visible(above: torch.Tensor) -> torch.Tensor:
    """List for each node the nodes that it attends to: those above it, itself and the root."""
    requests, drafts = above.shape
    visible = torch.eye(drafts + 1, dtype=torch.bool).repeat(requests, 1, 1)
    visible[:, :, 0] = True
    rows = torch.arange(requests)
    for draft in range(drafts):
        visible[:, draft + 1] |= visible[rows, above[:, draft].clamp(min=0)]
    return visible


def _link_drafts(above: torch.Tensor, next_token: torch.Tensor, next_sibling: torch.Tensor) -> None:
    """Link each node to its first draft, and each draft to the next one of the same parent."""
    rows = torch.arange(len(above))
    for draft in reversed(range(above.shape[1])):
        has_parent = above[:, draft] >= 0
        row, parent = rows[has_parent], above[has_parent, draft]
        next_sibling[row, draft + 1] = next_token[row, parent]
        next_token[row, parent] = draft + 1


def _write_mask(mask: torch.Tensor, visible: torch.Tensor, lengths: list[int], mode: int) -> None:
    requests, tokens, _ = visible.shape
    if mode == _PACKED:
        size = mask.itemsize * mask.numel() // (requests * tokens)
        bits = torch.zeros(requests, tokens, 8 * size, dtype=torch.uint8)
        bits[:, :, :tokens] = visible
        packed = (bits.view(requests, tokens, size, 8) << torch.arange(8, dtype=torch.uint8)).sum(3)
        mask.view(torch.uint8).copy_(packed.to(torch.uint8).view(-1))
        return
    if mode == _DRAFTS_ALONE:
        mask.view(-1)[: visible.numel()] = visible.view(-1)
        return
    start = 0
    for length, rows in zip(lengths, visible, strict=True):
        end = start + tokens * (length + tokens)
        mask[start:end].view(tokens, length + tokens)[:, length:] = rows
        start = end


def accept_longest_path(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,  # as SGLang spells it
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    *args: Any,
    **options: Any,
) -> None:
    """Accept a longest path of each request's tree."""
    following, sibling = memory.to_host(retrive_next_token), memory.to_host(retrive_next_sibling)
    numbers, accepted = memory.to_host(retrive_index), memory.to_host(accept_index)
    rows = torch.arange(len(following))
    above, depths = _read_links(following, sibling)
    node = depths.argmax(1)
    lengths = depths[rows, node]
    for step in range(int(lengths.max()), -1, -1):
        on_path = lengths >= step
        accepted[on_path, step] = numbers[rows, node][on_path].to(accepted.dtype)
        node = torch.where(on_path, above[rows, node], node)
    memory.to_host(accept_token_num).copy_(lengths)


def _read_links(
    following: torch.Tensor, sibling: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Read each node's parent, and its depth: a parent stands before its drafts.

    Raises ValueError for links that lead to more drafts than a tree has, as a circle does.
    """
    requests, tokens = following.shape
    rows = torch.arange(requests)
    above, depths = torch.zeros(2, requests, tokens, dtype=torch.int64)
    for parent in range(tokens):
        draft = following[:, parent]
        for _ in range(tokens):
            exists = draft >= 0
            if not exists.any():
                break
            row, child = rows[exists], draft[exists]
            if bool((child >= tokens).any()):
                raise ValueError(f"a tree of {tokens} tokens has a link to {int(child.max())}")
            above[row, child] = parent
            depths[row, child] = depths[row, parent] + 1
            draft = torch.where(exists, sibling[rows, draft.clamp(min=0)], -1)
        if bool((draft >= 0).any()):
            raise ValueError(
                f"the links of siblings of node {parent} lead to more than a tree's {tokens} tokens"
            )
    return above, depths


SHAPES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(
        (
            "jit:speculative_tree.build_tree_kernel_efficient",
            "sgl_kernel.build_tree_kernel_efficient",
        ),
        build_tree,
    ),
    **dict.fromkeys(
        ("jit:speculative_tree.verify_tree_greedy", "sgl_kernel.verify_tree_greedy"),
        accept_longest_path,
    ),
}
