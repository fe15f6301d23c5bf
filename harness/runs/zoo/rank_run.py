"""One architecture over several ranks: forks of this process, each with its share of the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from harness import checking
from harness.runs.zoo.adapters import Adapter
from harness.runs.zoo.architecture import Architecture
from harness.runs.zoo.prompts import Prompt, draw_prompts
from harness.runs.zoo.rank_layout import RankLayout
from harness.runs.zoo.reference_model import measure_error
from harness.runs.zoo.served_model import serve_model
from harness.sanitizer.ranks.host import BUSY_SECONDS, RankHost
from harness.sanitizer.ranks.messages import IN_ORDER
from harness.store.zoo.values import ZooClaim

LOADED = "loaded"
LOADING_SECONDS = 60.0  # of a processor: towers of images have their published sizes
CHUNK = 4  # tokens of each prompt in the first chunk of a rank that is idle at times
TURN = 3  # steps that a data-parallel rank begins behind the one before it


@dataclass(frozen=True)
class RankRun:
    """An architecture and how it is spread; `folder` has the saved model."""

    architecture: Architecture
    layout: RankLayout
    folder: Path
    adapters: list[Adapter]
    launch_checks: tuple[str, ...] = ()
    sum_order: str = IN_ORDER  # of the ranks' parts

    def run(self) -> RankOutcome:
        """Have each rank compute its batches; return when all have ended."""
        ranks = range(self.layout.count)
        host = RankHost(
            self.layout.count,
            self.place,
            self._compute_in_rank,
            lambda rank: BUSY_SECONDS if self._is_loaded(rank) else LOADING_SECONDS,
            self.sum_order,
        )
        problems = host.run()
        logits: dict[ZooClaim, dict[int, list[torch.Tensor]]] = {}
        for claim in self.layout.claims:
            files = {rank: self._find_file(rank, claim) for rank in ranks}
            if all(files[rank].exists() for rank in ranks if self.layout.is_last_stage(rank)):
                logits[claim] = {
                    rank: torch.load(file) for rank, file in files.items() if file.exists()
                }
        logs = [host.read_log(rank) for rank in ranks]
        return RankOutcome(self.layout, problems, logs, all(map(self._is_loaded, ranks)), logits)

    @property
    def place(self) -> Path:
        return self.folder / f"ranks {self.layout}"

    def _is_loaded(self, rank: int) -> bool:
        return (self.place / f"rank-{rank}" / LOADED).exists()

    def _find_file(self, rank: int, claim: ZooClaim) -> Path:
        return self.place / f"rank-{rank}" / f"{claim}.pt"

    def _compute_in_rank(self, rank: int) -> None:
        one = self.architecture
        words = [*one.server, *self.layout.list_server_words()]
        with checking.checked("virtual", exact=True, launch_checks=self.launch_checks) as check:
            with check.ignore_races():
                model = serve_model(self.folder, one.dtype, words, False, self.adapters, rank)
            (self.place / f"rank-{rank}" / LOADED).touch()
            prompts = draw_prompts(model.vocabulary, len(self.adapters))
            prompts = select_batch(prompts, self.layout, rank)
            for claim in self.layout.claims:
                if claim is ZooClaim.IDLE:
                    before = TURN * self.layout.find_batch(rank)
                    after = TURN * (self.layout.dp - 1) - before
                    logits = model.compute_logits_in_turn(prompts, CHUNK, before, after)
                else:
                    logits = model.compute_logits(prompts)
                for caught in check.launches.errors:
                    raise caught
                if self.layout.is_last_stage(rank):
                    torch.save(logits, self._find_file(rank, claim))


@dataclass(frozen=True)
class RankOutcome:
    """What the ranks gave."""

    layout: RankLayout
    problems: list[str]  # the cause first
    logs: list[str]
    are_loaded: bool
    logits: dict[ZooClaim, dict[int, list[torch.Tensor]]]  # of each rank that has some

    def measure_error(self, batch: list[torch.Tensor], claim: ZooClaim = ZooClaim.RANKS) -> float:
        """Compare the ranks with one rank's logits of all prompts."""
        pairs = [
            (expected, actual)
            for rank, tensors in self.logits[claim].items()
            for expected, actual in zip(
                batch[self.layout.find_batch(rank) :: self.layout.dp], tensors, strict=True
            )
        ]
        return measure_error([one for one, _ in pairs], [other for _, other in pairs])


def select_batch(prompts: list[Prompt], layout: RankLayout, rank: int) -> list[Prompt]:
    """Return a rank's prompts: of data-parallel ranks each has its own, and not as many."""
    return prompts[layout.find_batch(rank) :: layout.dp]
