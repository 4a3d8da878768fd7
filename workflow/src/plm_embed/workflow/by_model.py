"""What a campaign of several models asks of each of them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from plm_embed.errors import ConfigError
from plm_embed.models.model import Model
from plm_embed.models.registry import find_model
from plm_embed.workflow.config import Config, layers_of, source_of


def by_model(config: Config) -> dict[str, Config]:
    """The settings of each model of a checked configuration, by its name, in the order of `model`.

    In them `model` and `weights` are one text each, `embedding.layers` counts from the
    input, `store` names a folder, and `reuse` has what holds vectors of this model. ConfigError for
    an entry of `reuse` that is of none of several models.
    """
    models = [find_model(name) for name in config["model"]]
    reuse = _shared_out(config["reuse"], [model.name for model in models])
    return {model.name: _settings(config, model, reuse[model.name]) for model in models}


def _settings(config: Config, model: Model, reuse: Sequence[str]) -> Config:
    embedding = config["embedding"]
    return config | {
        "model": model.name,
        "weights": source_of(config["weights"], model) or str(model.shipped or ""),
        "store": config["store"] or f"{config['results']}/{model.name}/store",
        "reuse": list(reuse),
        "embedding": embedding | {"layers": layers_of(embedding["layers"], model)},
    }


def _shared_out(reuse: Sequence[str], models: Sequence[str]) -> dict[str, Sequence[str]]:
    """The entries of `reuse` by the models whose vectors they hold; with one model, all of them."""
    if not reuse or len(models) == 1:
        return dict.fromkeys(models, reuse)
    held = {path: set(_models_in(Path(path))) for path in reuse}
    for path, found in held.items():
        if not found.intersection(models):
            raise ConfigError(
                f"reuse: {path}: holds vectors of {', '.join(sorted(found))}, none of "
                f"{', '.join(models)}\n  take it out of `reuse`",
                key="reuse",
                path=Path(path),
            )
    return {model: [path for path in reuse if model in held[path]] for model in models}


def _models_in(path: Path) -> Iterator[str]:
    from plm_embed.store.reuse import fingerprints

    yield from (fingerprint.model for fingerprint in fingerprints(path))


def weights_folder(config: Config) -> str:
    """Where the converted weights of a model lie, from its settings."""
    return f"{config['weights_folder']}/{config['model']}"
