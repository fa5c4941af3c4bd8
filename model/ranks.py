"""The place of a process among those that a launcher such as torchrun has started together."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from tfm.data.errors import BackendError

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Which of `size` processes this one is; a process that nobody launched is the only one.

    Args:
        rank: counted from 0 over all machines.
        size: how many processes there are.
        local: the rank among those on this machine, which chooses the GPU.
    """

    rank: int = 0
    size: int = 1
    local: int = 0

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the place from RANK, WORLD_SIZE and LOCAL_RANK, as torchrun sets them.

        Raises:
            BackendError: if they are no place.
        """
        if "WORLD_SIZE" not in environment:
            return cls()
        # Where a cluster starts one process on each machine, LOCAL_RANK may be missing.
        texts = {"LOCAL_RANK": "0", "RANK": "", **environment}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            if not texts[name].isdecimal():
                raise BackendError(
                    f"{name}={texts[name]}: no whole number, but WORLD_SIZE is set; start several "
                    f"processes with torchrun, or unset WORLD_SIZE for one"
                )
        rank, size, local = (int(texts[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        if rank >= size:
            raise BackendError(f"RANK={rank}: must be below WORLD_SIZE={size}")
        return cls(rank, size, local)

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return every size-th of the items, from the rank-th on: all ranks together have all."""
        return items[self.rank :: self.size]
