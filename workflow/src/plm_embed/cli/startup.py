"""What Arrow and NumPy are told before they are loaded by the steps that move millions of rows."""

import os

KEEP_MEMORY = {"MIMALLOC_PURGE_DELAY": "-1"}
"""Arrow gives no memory back to the system, which would clear it when it is taken again."""
NO_HUGE_PAGES = {"MIMALLOC_ALLOW_THP": "0", "NUMPY_MADVISE_HUGEPAGE": "0"}
"""They are cleared whole, and most buffers of text fill them in part. With the other one a sixth of
the time of deduplicate; where few large buffers are used again and again, as in gather, huge pages
are faster."""


def set_up(*, huge_pages: bool) -> None:
    """Call it before Arrow or NumPy is imported. What the environment says already stays."""
    for name, value in (KEEP_MEMORY if huge_pages else KEEP_MEMORY | NO_HUGE_PAGES).items():
        os.environ.setdefault(name, value)
