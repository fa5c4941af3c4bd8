"""Freed memory of a CPU process: kept for the next step, not given back to the kernel.

That is for training and for translating alike: both allocate the same large blocks thousands of
times.
"""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h of glibc
NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Let glibc keep the large blocks that tensors free; do nothing with another C library.

    By default it gives them back to the kernel at once, and the next tensor of that size faults in
    each of its pages again, which shows as system time of a training step. The process holds more
    memory for it. Whoever has set glibc's own variables is not overruled.
    """
    chosen = [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]
    if chosen or not _glibc():
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)  # large blocks come from the heap
    libc.mallopt(M_TRIM_THRESHOLD, NEVER)  # whose free end stays


def give_back_freed_memory() -> None:
    """Give all that is free back to the kernel, once; do nothing with another C library.

    Batches have many shapes, so what one leaves seldom fits the next, and the heap grows: a
    network of two million weights held seven gigabytes after an hour, nine tenths of them free.
    """
    if _glibc():
        ctypes.CDLL(None).malloc_trim(0)


def _glibc() -> bool:
    return "CS_GNU_LIBC_VERSION" in os.confstr_names
