"""Memory of a CPU process: what a step frees stays for the next one, and nothing cuts it up.

Freed blocks are kept for training and for translating alike: both allocate the same large ones
thousands of times.
"""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h of glibc
NEVER = 2**31 - 1
KERNELS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def keep_memory_for_training() -> None:
    """Keep freed memory, and few of the kernels that oneDNN makes for each shape of a product.

    Hardly two batches of an epoch have the same shapes, so that of the 1,024 kernels it would keep
    few are used again, and they lie all over the heap: finding room between them took a tenth of
    the time of a step after some thousand. A hundred are those of the latest few steps. It must
    be said before the first product, and whoever has set oneDNN's own variable is not overruled.
    """
    keep_freed_memory()
    os.environ.setdefault(KERNELS, "100")


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
