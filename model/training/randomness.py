"""Random numbers of training as a pure function of (seed, step): no generator's state is saved.

What is drawn elsewhere, in validation or by another program, cannot change a step.
"""

import torch

WORD = 2**64


def seed_step(seed: int, step: int, *, rank: int = 0) -> None:
    """Seed the generators of all devices for `step`, counted from 1.

    Processes that share a step need different dropout masks, each by its rank, counted from 0.
    """
    torch.manual_seed(mix(seed, step, rank) if rank else mix(seed, step))


def mix(*numbers: int) -> int:
    """Return 64 bits, every one of which depends on all bits of all `numbers` and their order.

    PyTorch's CPU generator takes the lower 32 bits of a seed only, and its streams for seeds that
    are close to each other are not known to be independent: hence no plain sum.
    """
    state = 0
    for number in numbers:
        state = _scramble((state + number) % WORD)
    return state


def _scramble(state: int) -> int:
    """Return one output of SplitMix64 (Steele et al. 2014), a bijection of 64 bits."""
    state = (state + 0x9E3779B97F4A7C15) % WORD
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % WORD
    state = (state ^ state >> 27) * 0x94D049BB133111EB % WORD
    return state ^ state >> 31
