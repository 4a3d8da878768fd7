"""Pickled checkpoints, read as data: nothing in them can run."""

import argparse
import logging
import pickle
import re
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import torch

from plm_embed.errors import WeightsError

log = logging.getLogger(__name__)


def unpickle(path: Path) -> Any:
    """Read a pickle as data. The one class allowed is `argparse.Namespace`, which fair-esm's own
    files hold.
    """
    with path.open("rb") as file:
        start = file.read(4)
    mapped = start == b"PK\x03\x04"
    if start.startswith(pickle.PROTO):
        # the format before torch 1.6, which was no zip file, cannot be memory-mapped
        log.info(
            "%s is in torch's old format, which has no checksums: all %.2f GB go into memory",
            path,
            path.stat().st_size / 1e9,
        )
    if mapped and (member := _damaged_member(path)):
        raise WeightsError(
            _damaged(path, f"{member} in it is not what its checksum says"), path=path
        )
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=mapped)
    except MemoryError:
        raise
    except (
        Exception
    ) as error:  # torch's reader raises whatever it stumbles over: struct.error, KeyError, ...
        unsafe = re.search(r"(?:GLOBAL|global:?|class) ([\w.]+\.\w+)", str(error))
        if unsafe and isinstance(error, pickle.UnpicklingError):
            raise WeightsError(
                f"weights: {path} was not loaded: it asks for {unsafe[1]}, which could run code. "
                "Only tensors and argparse.Namespace are allowed.\nUse the file that the model's "
                "authors publish.",
                path=path,
            ) from None
        raise WeightsError(_damaged(path, str(error) or type(error).__name__), path=path) from None


def _damaged_member(path: Path) -> str | None:
    """What differs from its CRC-32 in a file that torch wrote (a zip archive since torch 1.6); None
    if nothing does.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip()
    except MemoryError:
        raise
    # zipfile raises whatever it stumbles over: BadZipFile, NotImplementedError, struct.error, ...
    except Exception:
        return "an entry"


def _damaged(path: Path, reason: str) -> str:
    reason = textwrap.shorten(next((line for line in reason.splitlines() if line.strip()), ""), 120)
    return (
        f"weights: {path} was not loaded: not a torch checkpoint, cut short "
        f"or damaged ({reason}).\nGet it again."
    )
