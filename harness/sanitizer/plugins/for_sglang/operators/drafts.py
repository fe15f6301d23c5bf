"""The tree of EAGLE's drafts: built of the chosen ones, and verified by the target's tokens."""

from __future__ import annotations

import torch

from harness.sanitizer.device import memory
from harness.sanitizer.device.stand_ins import stand_in
from harness.sanitizer.plugins.for_sglang import draft_tree_shapes

SOURCE = "sglang/kernels/jit/csrc/speculative/tree.cuh"

stand_in("jit:speculative_tree.build_tree_kernel_efficient", source=SOURCE)(
    draft_tree_shapes.build_tree
)


@stand_in("jit:speculative_tree.verify_tree_greedy", source=SOURCE)
def verify_tree_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Follow each tree from its root, as long as a draft is the target's own token."""
    predicted, accepted, counts = map(memory.to_host, (predicts, accept_index, accept_token_num))
    inputs = (candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling)
    targets = memory.to_host(target_predict).flatten().tolist()
    trees = zip(*(memory.to_host(one).tolist() for one in inputs), strict=True)
    for row, (tokens, places, first_child, next_sibling) in enumerate(trees):
        node, length = 0, 0
        while True:
            place = places[node]
            accepted[row, length] = place
            predicted[place] = targets[place]
            if length + 1 == accepted.shape[1]:
                break
            node = first_child[node]
            while node != -1 and tokens[node] != targets[place]:
                node = next_sibling[node]
            if node == -1:
                break
            length += 1
        counts[row] = length
