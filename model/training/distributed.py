"""The processes that train one model together, each on its part of every batch.

PyTorch's launcher starts them and names each by its rank: `torchrun --nproc-per-node 2 -m tfm.cli
train ...`. All of them hold the whole model and take the same steps. A step adds up the gradients
of all, so that it is the step of one process on all their batches; whatever is decided is decided
by numbers that all share, or by the first rank. One process alone needs no launcher, and for it
nothing here does anything.

Gradients are added up after the last of a step's batches rather than during its backward pass, as
DistributedDataParallel would: a rank may so split a batch that does not fit into its memory, and
tokens, not ranks, count alike.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from tfm.data.errors import BackendError, UserError
from tfm.model.ranks import Place
from tfm.model.training.signals import Interrupted

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Result = TypeVar("Result")

# The others wait while the first rank trains a tokenizer or validates. A process that has died is
# noticed at once all the same, by its closed connections and by torchrun.
PATIENCE = timedelta(hours=2)
CPU = torch.device("cpu")


class LostContact(UserError):
    """Another process of the run is gone, so no step can be taken."""


@dataclass(frozen=True)
class Ranks:
    """Which of `size` processes this is, counted from 0, and what they do together."""

    rank: int = 0
    size: int = 1
    store: "Store | None" = field(default=None, repr=False, compare=False)

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files, validates and speaks."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait until all are here."""
        if self.size > 1:
            with self._together():
                dist.all_reduce(torch.zeros(1))  # gloo's; a barrier would be NCCL's on GPUs

    def totals(self, *numbers: float) -> list[float]:
        """Return the sum over all ranks of each number, in fp64."""
        if self.size == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64)
        with self._together():
            dist.all_reduce(sums)
        return sums.tolist()

    def largest(self, number: int) -> int:
        """Return the largest of the numbers of all ranks."""
        if self.size == 1:
            return number
        largest = torch.tensor(number)
        with self._together():
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def take(self) -> int:
        """Return 0, 1, 2, ...: each number to one rank only, whoever asks next."""
        assert self.store is not None, "one process alone has nothing to share out"
        with self._together():
            return int(self.store.add("taken", 1)) - 1

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Put the sum over all ranks into each tensor; all ranks have the same shapes."""
        if self.size == 1:
            return
        with self._together():
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

    def from_first(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns on the first rank, which alone does it.

        Raises:
            Interrupted: on all ranks, if `work` was.
        """
        if self.size == 1:
            return work()
        parcel: list[Any] = [None, None]  # the result, the signal that interrupted
        if self.first:
            try:
                parcel[0] = work()
            except Interrupted as stop:
                parcel[1] = stop.number
        with self._together():
            dist.broadcast_object_list(parcel, src=0, device=CPU)
        if parcel[1] is not None:
            raise Interrupted(parcel[1])
        result: Result = parcel[0]
        return result

    def share(self, items: Sequence[Result]) -> Sequence[Result]:
        """Return this rank's part of the items: all ranks together have all."""
        return Place(self.rank, self.size).share(items)

    def collect(self, work: Callable[[], Sequence[Result]]) -> list[Result]:
        """Return what `work` makes of each rank's `share`, in the order of the items.

        On the first rank only: the others get nothing.

        Raises:
            Interrupted: on all ranks, if `work` was on any.
        """
        if self.size == 1:
            return list(work())
        own: Sequence[Result] = ()
        signal = 0
        try:
            own = work()
        except Interrupted as stop:
            signal = stop.number
        if signal := self.largest(signal):
            raise Interrupted(signal)
        parts: list[Any] | None = [None] * self.size if self.first else None
        with self._together():
            dist.gather_object(own, parts, dst=0)
        if parts is None:
            return []
        items: list[Any] = [None] * sum(map(len, parts))
        for rank, part in enumerate(parts):
            items[rank :: self.size] = part
        return items

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # gloo's and NCCL's name for a closed connection
            raise LostContact(
                f"rank {self.rank}: another process of this run is gone or hangs; torchrun names "
                f"the one that failed first. Repeat the command to go on from what is saved"
            ) from error


ALONE = Ranks()


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Join the processes that torchrun has started, until the context ends; or be alone.

    With GPUs, `cuda` is then the one that has this process's number on its machine.

    The user hears of an error once: a rank that only misses another one that has failed, or that
    fails in the same words, leaves in silence, with exit code 1.

    Args:
        device: what the user asked for; on the CPU there may be more processes than GPUs.

    Raises:
        BackendError: if torchrun has started more processes than there are GPUs.
        LostContact: if the processes do not find each other.
    """
    place = Place.here()
    if place.size == 1:
        yield ALONE
        return
    gpus = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    if gpus:
        if place.local >= gpus:
            raise BackendError(
                f"rank {place.rank}: this machine has {gpus} GPUs; start at most so many processes "
                f"on it: --nproc-per-node {gpus}"
            )
        torch.cuda.set_device(place.local)
    store = _meet(place, "cpu:gloo,cuda:nccl" if gpus else "gloo")
    try:
        yield Ranks(place.rank, place.size, store)
    except UserError as error:
        if not _is_first_to_tell(store, place.rank, error):
            raise SystemExit(1) from error
        raise
    finally:
        dist.destroy_process_group()


def _meet(place: Place, backend: str) -> "Store":
    store: Store | None = None
    try:
        store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
        # After a restart torchrun's store still holds the addresses of the processes before.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(attempt, store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:  # what torch raises; ValueError for the environment
        lost = LostContact(
            f"rank {place.rank} of {place.size}: did not find the other processes; start all of "
            f"them with torchrun, or unset WORLD_SIZE for one ({error})"
        )
        if store is not None and not _is_first_to_tell(store, place.rank, lost):
            raise SystemExit(1) from error  # another one had told why it left before we met
        raise lost from error
    return store


def _is_first_to_tell(store: "Store", rank: int, error: UserError) -> bool:
    """Return whether no other rank has told of `error`, or of what it follows from."""
    own = f"{rank} {error}"
    with suppress(RuntimeError):  # the store is gone with its machine: then each tells
        first = store.compare_set("failure", "", own).decode()
        same = first.partition(" ")[2] == str(error)
        return first == own or not (same or isinstance(error, LostContact))
    return True
