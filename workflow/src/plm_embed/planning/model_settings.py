"""The settings of each model of a campaign, of which a plan is made."""

from pathlib import Path

from plm_embed.inference.weights import weights_cache
from plm_embed.models.manifest import read_record
from plm_embed.models.registry import find_model
from plm_embed.workflow.config import Config, models_of, source_of


def by_model(config: Config) -> dict[str, Config]:
    """Return the settings of each model of a complete configuration, by its name.

    In them `model` and `weights` are one text each, `embedding.layers` counts from the input, and
    `store` names a folder.
    """
    return {name: _settings(config, name) for name in models_of(config)}


def _settings(config: Config, name: str) -> Config:
    model, embedding = find_model(name), config["embedding"]
    layers = [layer % (model.layers + 1) for layer in embedding["layers"]]
    return config | {
        "model": name,
        "weights": source_of(config, model) or str(model.shipped or ""),
        "store": config["store"] or f"{config['results']}/{name}/store",
        "embedding": embedding | {"layers": layers},
    }


def weights_folder(config: Config) -> str:
    """Return where the prepared weights of a model lie: as the campaign's record says, or where a
    download would.
    """
    record = read_record(Path(config["results"], config["model"]))
    if record and record.folder:
        return record.folder
    return str(Path(config["weights_folder"] or weights_cache(), config["model"]))
