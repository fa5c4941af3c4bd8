"""What the choice of an attention backend depends on, and what it comes to."""

from typing import NamedTuple

import torch

from tfm.model.attention.multihead import Attend


class Conditions(NamedTuple):
    """What the choice depends on; `dropout` is 0 where the run does not train."""

    device: torch.device
    dtype: torch.dtype
    dropout: float
    training: bool
    head_width: int | None = None

    @property
    def half(self) -> bool:
        """Whether queries, keys and values come in fp16 or bf16."""
        return self.dtype in (torch.float16, torch.bfloat16)


class Choice(NamedTuple):
    """A backend, and in one line: its kernel, and why."""

    attend: Attend
    reason: str
