"""How `unfix zoo --tp 2 --ep 2` spreads a model over ranks."""

from __future__ import annotations

import msgspec

from harness.core.errors import UnfixError
from harness.store.zoo.values import ZooClaim

MOST_RANKS = 8
REQUESTS = 4  # that a rank has at a time


class RankLayout(msgspec.Struct, frozen=True):
    """The sizes of each kind of parallelism: 1 where a model is not spread by it."""

    tp: int = 1  # tensors, over the ranks of a stage
    pp: int = 1  # stages of the layers
    ep: int = 1  # experts, among the ranks of a stage
    dp: int = 1  # batches of their own, where attention is data-parallel
    enable_dp_attention: bool = False

    def __post_init__(self) -> None:
        sizes = {"--tp": self.tp, "--pp": self.pp, "--ep": self.ep, "--dp": self.dp}
        for option, size in sizes.items():
            if size < 1:
                raise UnfixError(f"{option} is a number of ranks, not {size}")
        for option, size in (("--ep", self.ep), ("--dp", self.dp)):
            if self.tp % size:
                raise UnfixError(f"{option} {size} does not divide --tp {self.tp}")
        if self.enable_dp_attention != (self.dp > 1):
            raise UnfixError("--dp and --enable-dp-attention go together")
        if self.count > MOST_RANKS:
            raise UnfixError(f"{self.count} ranks are more than {MOST_RANKS}")

    @property
    def claims(self) -> tuple[ZooClaim, ...]:
        """The claims about ranks: one batch each."""
        return (ZooClaim.RANKS, ZooClaim.IDLE) if self.dp > 1 else (ZooClaim.RANKS,)

    @property
    def count(self) -> int:
        return self.tp * self.pp

    def find_batch(self, rank: int) -> int:
        """Return which of the `dp` batches a rank has."""
        return rank % self.tp // (self.tp // self.dp)

    def is_last_stage(self, rank: int) -> bool:
        return rank // self.tp == self.pp - 1

    def list_server_words(self) -> list[str]:
        sizes = {"--tp-size": self.tp, "--pp-size": self.pp, "--ep-size": self.ep}
        words = [word for name, size in sizes.items() if size > 1 for word in (name, str(size))]
        if self.enable_dp_attention:
            words += ["--dp-size", str(self.dp), "--enable-dp-attention"]
            words += ["--max-running-requests", str(REQUESTS * self.dp)]  # of all ranks together
        return words

    def __str__(self) -> str:
        sizes = {"tp": self.tp, "pp": self.pp, "ep": self.ep, "dp attention": self.dp}
        return ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)


ONE_RANK = RankLayout()
