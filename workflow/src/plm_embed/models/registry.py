"""The table of models: the ESM-2 ladder, ESM-1b and the five ESM-1v, by their published names and
aliases.
"""

from dataclasses import dataclass, field

from plm_embed.errors import ConfigError, WeightsError
from plm_embed.models.esm.family import ESM1B, ESM1V, ESM2
from plm_embed.models.family import Family
from plm_embed.words import did_you_mean

FAMILIES = (ESM2, ESM1B, ESM1V)


@dataclass(frozen=True)
class Model:
    """One model."""

    name: str
    family: Family = field(repr=False)
    layers: int
    dim: int
    heads: int
    urls: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    license: str = "MIT"
    trained: bool = True

    @property
    def architecture(self) -> str:
        return self.family.architecture

    @property
    def max_residues(self) -> int | None:
        """A hard limit: None for rotary ESM-2, which has none."""
        return self.family.max_residues

    @property
    def shape(self) -> str:
        return f"{self.architecture}, {self.layers} layers, width {self.dim}, {self.heads} heads"


def _published(name: str, family: Family, layers: int, dim: int, heads: int, *short: str) -> Model:
    return Model(
        name=name,
        family=family,
        layers=layers,
        dim=dim,
        heads=heads,
        urls=(f"https://dl.fbaipublicfiles.com/fair-esm/models/{name}.pt",),
        aliases=(f"facebook/{name}", *short),
    )


def _esm2(layers: int, size: str, dim: int, heads: int) -> Model:
    short = (f"esm2_{size}", f"esm2-{size}", f"esm2_t{layers}", f"esm2_t{layers}_{size}", size)
    return _published(f"esm2_t{layers}_{size}_UR50D", ESM2, layers, dim, heads, *short)


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        # name or size, layers, dim, heads
        Model(
            "esm2_t3_untrained", ESM2, 3, 32, 2, trained=False
        ),  # config/demo: for trying things out
        _esm2(6, "8M", 320, 20),
        _esm2(12, "35M", 480, 20),
        _esm2(30, "150M", 640, 20),
        _esm2(33, "650M", 1280, 20),
        _esm2(36, "3B", 2560, 40),
        _esm2(48, "15B", 5120, 40),
        _published("esm1b_t33_650M_UR50S", ESM1B, 33, 1280, 20, "esm1b", "esm-1b"),
        *(
            _published(
                f"esm1v_t33_650M_UR90S_{k}",
                ESM1V,
                33,
                1280,
                20,
                f"esm1v_{k}",
                f"esm1v-{k}",
                f"esm-1v-{k}",
            )
            for k in range(1, 6)
        ),
    )
}

_BY_NAME = {
    name.lower(): model for model in MODELS.values() for name in (model.name, *model.aliases)
}


def find_model(name: str) -> Model:
    """The model of a published name, `facebook/...` or a short alias such as `esm2_650m`, in any
    case.

    Raises ConfigError with the nearest names when there is none.
    """
    model = _BY_NAME.get(name.strip().lower())
    if model is None:
        hint = (
            did_you_mean(name.strip().lower(), _BY_NAME, 3, lambda word: _BY_NAME[word].name) or "."
        )
        raise ConfigError(
            f"model: {name!r} is not known{hint}\nKnown models: {', '.join(MODELS)}", key="model"
        )
    return model


def extra_tokens(name: str) -> int:
    """Tokens of a sequence besides those of its residues, for estimates: 0 for an unknown model,
    whose results may be of another version.
    """
    model = MODELS.get(name)
    return model.family.extra_tokens if model else 0


def family_of(architecture: str) -> Family:
    """The family that computes models of an architecture; of those that share it, the first."""
    for family in FAMILIES:
        if family.architecture == architecture:
            return family
    raise WeightsError(f"architecture {architecture!r} is not known to this version of plm-embed")
