"""Files of tensors by name: safetensors, and pickles read as data."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors

from plm_embed.errors import WeightsError
from plm_embed.models.sources.pickles import unpickle


def tensors_in(
    path: Path, wanted: Callable[[str], object] = lambda _: True
) -> Iterator[tuple[str, Any]]:
    """Name and tensor of each, of a file of either kind; of safetensors those that are `wanted`.

    Raises WeightsError that names the file when it is damaged, or unsafe to read.
    """
    if path.suffix != ".safetensors":
        data = unpickle(path)
        if not isinstance(data, Mapping):
            raise WeightsError(f"weights: {path} holds no tensors by name.", path=path)
        yield from ((str(key), tensor) for key, tensor in data.items())
        return
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            for key in sorted(file.keys()):
                if wanted(key):
                    yield key, file.get_tensor(key)
    except (safetensors.SafetensorError, OSError) as error:
        raise WeightsError(
            f"weights: {path} was not loaded: cut short or damaged ({error}). Get it again.",
            path=path,
        ) from None
