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

LOADED, LOGITS = "loaded", "logits.pt"
LOADING_SECONDS = 60.0  # of a processor: towers of images have their published sizes


@dataclass(frozen=True)
class RankRun:
    """An architecture and how it is spread; `folder` has the saved model."""

    architecture: Architecture
    layout: RankLayout
    folder: Path
    adapters: list[Adapter]
    launch_checks: tuple[str, ...]

    def run(self) -> RankOutcome:
        """Have each rank compute its batch; return when all have ended."""
        host = RankHost(
            self.layout.count,
            self.folder / "ranks",
            self._compute_in_rank,
            lambda rank: BUSY_SECONDS if self._is_loaded(rank) else LOADING_SECONDS,
        )
        problems = host.run()
        places = [self.folder / "ranks" / f"rank-{rank}" for rank in range(self.layout.count)]
        return RankOutcome(
            self.layout,
            problems,
            [host.read_log(rank) for rank in range(self.layout.count)],
            all(map(self._is_loaded, range(self.layout.count))),
            {
                rank: torch.load(place / LOGITS)
                for rank, place in enumerate(places)
                if (place / LOGITS).exists()
            },
        )

    def _is_loaded(self, rank: int) -> bool:
        return (self.folder / "ranks" / f"rank-{rank}" / LOADED).exists()

    def _compute_in_rank(self, rank: int) -> None:
        place = self.folder / "ranks" / f"rank-{rank}"
        one = self.architecture
        words = [*one.server, *self.layout.list_server_words()]
        with checking.checked("virtual", exact=True, launch_checks=self.launch_checks) as check:
            with check.ignore_races():
                model = serve_model(self.folder, one.dtype, words, False, self.adapters, rank)
            (place / LOADED).touch()
            prompts = draw_prompts(model.vocabulary, len(self.adapters))
            logits = model.compute_logits(select_batch(prompts, self.layout, rank))
            for caught in check.launches.errors:
                raise caught
        if self.layout.is_last_stage(rank):
            torch.save(logits, place / LOGITS)


@dataclass(frozen=True)
class RankOutcome:
    """What the ranks gave."""

    layout: RankLayout
    problems: list[str]  # the cause first
    logs: list[str]
    are_loaded: bool
    logits: dict[int, list[torch.Tensor]]  # of each rank that has some

    def measure_error(self, batch: list[torch.Tensor]) -> float:
        """Compare the ranks with one rank's logits of all prompts."""
        pairs = [
            (expected, actual)
            for rank, tensors in self.logits.items()
            for expected, actual in zip(
                batch[self.layout.find_batch(rank) :: self.layout.dp], tensors, strict=True
            )
        ]
        return measure_error([one for one, _ in pairs], [other for _, other in pairs])


def select_batch(prompts: list[Prompt], layout: RankLayout, rank: int) -> list[Prompt]:
    """Return a rank's prompts: of data-parallel ranks each has its own, and not as many."""
    return prompts[layout.find_batch(rank) :: layout.dp]
