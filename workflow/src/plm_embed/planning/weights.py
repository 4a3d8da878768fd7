"""Which weights a campaign will use, and the bytes that they bring."""

from pathlib import Path

from plm_embed.io.files import size as size_of
from plm_embed.models.manifest import MANIFEST, caveat, read_manifest
from plm_embed.models.registry import Model
from plm_embed.planning.model_settings import weights_folder
from plm_embed.wording import readable
from plm_embed.workflow.config import Config


def weights_in_words(config: Config, model: Model) -> tuple[str, bool]:
    """In words, which weights will be used, and whether nothing speaks against their being the
    published ones.
    """
    folder = Path(weights_folder(config))
    if (folder / MANIFEST).is_file():
        found = caveat(model.name, read_manifest(folder))
        return (
            (found, False)
            if found
            else (f"in {folder}; the published ones, by their SHA-256", True)
        )
    if config["weights"]:
        found = "" if model.trained else caveat(model.name, None)
        return (
            found or f"{config['weights']}, compared with the published ones when they are adopted",
            model.trained,
        )
    known = model.sha256
    size = _published_bytes(model)
    check = (
        "compared with the published SHA-256" if known else "of which no published SHA-256 is known"
    )
    about = "" if model.bytes else "about "
    return f"downloaded from {model.address}, {about}{readable(size)}, {check}", bool(known)


def _published_bytes(model: Model) -> int:
    """Of the file to download; where nobody wrote its size down, that of the layers in float32."""
    return model.bytes or 4 * model.parameters


def weights_bytes(config: Config, model: Model) -> dict[str, int]:
    """That the weights will take in their folder; nothing when they are there."""
    if (Path(weights_folder(config)) / MANIFEST).is_file():
        return {}
    source = Path(config["weights"]) if config["weights"] else None
    return {"weights": size_of(source) if source else _published_bytes(model)}
