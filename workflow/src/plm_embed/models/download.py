"""Downloads of published weights, by the libraries of those who publish them."""

import textwrap
from functools import partial
from pathlib import Path
from typing import Any

from plm_embed.errors import WeightsError
from plm_embed.models import registry
from plm_embed.models.checkpoints import INDEX, TENSOR_FILES, shard_names
from plm_embed.models.registry import Model


def download(model: Model, folder: Path) -> Path:
    """Download the model's file, or its files, into `folder`; return the source to read.

    Raises WeightsError with what to copy where.
    """
    if not model.address:
        raise WeightsError(
            f"weights: {model.name} cannot be downloaded; name its file or folder as `weights`"
        )
    folder.mkdir(parents=True, exist_ok=True)
    file = model.url.rpartition("/")[2]
    try:
        if not model.url:
            _hub_files(model, folder)
            return folder
        from torch import hub

        sha256 = model.sha256[0] if model.sha256 else None
        hub.download_url_to_file(model.url, str(folder / file), sha256)
        return folder / file
    except (OSError, RuntimeError, ValueError) as error:  # both libraries raise these
        place = file or model.hub.rpartition("/")[2]
        command = (
            f"curl -LO {model.url}"
            if file
            else f"hf download {model.hub} --revision {model.revision} --local-dir {place}"
        )
        reason = textwrap.shorten(str(error) or type(error).__name__, 200)
        raise WeightsError(
            f"weights: {model.address} cannot be downloaded: {reason}\n"
            f"Run again; or run `{command}` where there is a network, copy {place} here, and name "
            "it as `weights`"
        ) from None


def _hub_files(model: Model, folder: Path) -> None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    place: dict[str, Any] = {"revision": model.revision, "local_dir": folder}
    fetch = partial(hf_hub_download, model.hub, endpoint=registry.HUB, **place)
    for name in model.files:
        fetch(name)
    if model.sharded:
        first, second = (f"{name}{INDEX}" for name in TENSOR_FILES)
        try:
            index = fetch(first)
        except EntryNotFoundError:  # the other kind is older, and there more often
            index = fetch(second)
        for shard in shard_names(Path(index)):
            fetch(shard)
