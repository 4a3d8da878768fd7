"""The models by their published names and aliases, from models.yaml."""

from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from plm_embed.errors import ConfigError
from plm_embed.models.families import FAMILIES
from plm_embed.models.family import Family, Rotary
from plm_embed.wording import did_you_mean

HUB = "https://huggingface.co"
Positive = Annotated[int, msgspec.Meta(ge=1)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
TABLE = Path(__file__).with_name("models.yaml")
ARCHITECTURES = {family.architecture: family for family in reversed(FAMILIES.values())}
"""The family that computes models of an architecture: of those that share it, the first."""


@dataclass(frozen=True)
class Model:
    """One model. models.yaml explains the fields."""

    name: str
    family: Family = field(repr=False)
    layers: Positive
    dim: Positive
    heads: Positive
    attention_dim: int = 0
    ffn_dim: int = 0
    aliases: tuple[str, ...] = ()
    url: str = ""
    bytes: int = 0
    hub: str = ""
    revision: str = "main"
    files: tuple[str, ...] = ()
    sharded: bool = False
    sha256: tuple[Sha256, ...] = ()
    tokens_sha256: Sha256 = ""
    license: str = ""
    papers: tuple[str, ...] = field(default=(), repr=False)
    trained: bool = True

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.attention_dim or self.dim

    @property
    def hidden(self) -> int:
        """Width inside the feed-forward."""
        return self.ffn_dim or 4 * self.dim

    @property
    def parameters(self) -> int:
        """Count the numbers in the layers' matrices, each of which takes 2 FLOP per token."""
        matrices = 3 if self.family.encoder.gated else 2
        return self.layers * self.dim * (4 * self.inner + matrices * self.hidden)

    @property
    def shipped(self) -> Path | None:
        """Its file in this package, a link in a clone; None unless it is the model to try things
        out with.
        """
        path = Path(__file__).parents[1] / "clone" / "config" / "demo" / f"{self.name}.pt"
        return None if self.trained or not path.is_file() else path.resolve()

    @property
    def address(self) -> str:
        """The address of its published weights; empty if there is none."""
        return self.url or (self.hub and f"{HUB}/{self.hub}/resolve/{self.revision}")

    @property
    def heads_problem(self) -> str:
        """Say why its heads cannot share its width; empty if they can."""
        rotary = isinstance(self.family.encoder.positions, Rotary)
        if self.inner % (2 * self.heads if rotary else self.heads):
            even = ", an even number with rotary positions" if rotary else ""
            return f"{self.heads} heads for a width of {self.inner}: each needs an equal part{even}"
        return ""

    @property
    def shape(self) -> str:
        """Its shape in words."""
        kind, inner = self.family.architecture, f" of {self.inner} together"
        width = f"width {self.dim}, {self.heads} heads{inner if self.inner != self.dim else ''}"
        return f"{kind}, {self.layers} layers, {width}"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A loader that refuses a key that is there twice, of which YAML would drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        values: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(values) < len(node.value):
            keys = [key.value for key, _ in node.value]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise yaml.MarkedYAMLError(
                problem=f"{twice} is there twice", problem_mark=node.start_mark
            )
        return values


def read_models(path: Path) -> dict[str, Model]:
    """Return the models of a table such as models.yaml by their names and aliases, in lower case.
    ConfigError that says which entry and field is wrong, and what to do.
    """

    def mistake(*words: str) -> ConfigError:
        return ConfigError(": ".join((path.name, *words)), path=path)

    try:
        table = msgspec.convert(yaml.load(path.read_bytes(), _Loader), dict[str, Any])
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}" if error.problem_mark else "its syntax"
        raise mistake(line, f"{error.problem}; correct it") from None
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise mistake(f"{str(error).splitlines()[0]}; correct it") from None
    by_name: dict[str, Model] = {}
    for family, group in table.items():
        if family not in FAMILIES:
            hint = did_you_mean(family, FAMILIES)
            raise mistake(family, f"is no family that models/families/__init__.py lists{hint}")
        if not isinstance(group, dict) or not isinstance(group.get("models"), dict):
            raise mistake(family, "models: is missing; list the models of the family there")
        shared = {key: value for key, value in group.items() if key != "models"}
        for name, values in group["models"].items():
            try:
                entry = msgspec.convert({name: values or {}}, dict[str, dict[str, Any]])
                model = _entry(name, FAMILIES[family], shared | entry[name])
            except ValueError as error:
                raise mistake(family, str(name), str(error)) from None
            words = {word.lower(): model for word in (name, *model.aliases)}
            for word in words.keys() & by_name.keys():
                both = f"is a name of both {by_name[word].name} and {name}"
                raise mistake(word, f"{both}; remove it from the one that you added or changed")
            by_name |= words
    return by_name


def _entry(name: str, family: Family, values: dict[str, Any]) -> Model:
    """Return a model by its entry in the table. ValueError for a field that is wrong or missing."""
    parts = {part.name: part for part in fields(Model) if part.name not in ("name", "family")}
    for key, value in values.items():
        if key not in parts:
            raise ValueError(f"{key}: is no field{did_you_mean(key, parts) or '; remove it'}")
        try:
            values[key] = msgspec.convert(value, parts[key].type)
        except msgspec.ValidationError as error:
            digits = "regex" in str(error)  # only SHA-256 have one
            problem = "must have 64 hexadecimal digits, in lower case" if digits else error
            raise ValueError(f"{key}: {problem}; correct it") from None
    for key, part in parts.items():
        if key not in values and (part.default is MISSING or key == "license"):
            raise ValueError(f"{key}: is missing; add it")
    model = Model(name, family, **values)
    if model.heads_problem:
        raise ValueError(f"{model.heads_problem}; correct it")
    if model.trained and not (model.url or model.hub):
        raise ValueError(
            "url: is missing, and so is hub; add one of them, or for an unpublished model make no "
            "entry: a name and weights are enough"
        )
    return model


_BY_NAME = read_models(TABLE)
MODELS = {model.name: model for model in _BY_NAME.values()}


def find_model(name: str) -> Model:
    """Return the model of a published name, `facebook/...` or a short alias such as `esm2_650m`, in
    any case.

    Raises ConfigError with the nearest names when there is none.
    """
    word = str(name).strip().lower()
    if word not in _BY_NAME:
        names: dict[str, str] = {}  # of several short names the first is shown
        for model in MODELS.values():
            names |= {name.lower(): name for name in (model.name, *model.aliases)}
            short = [alias.lower() for alias in model.aliases if "/" not in alias]
            names |= dict.fromkeys(short, "".join(short[:1]))
        hint = did_you_mean(word, names, 3, names.__getitem__)
        raise ConfigError(
            f"model: {name!r} is not known{hint}\ndocs/models.md lists all models; "
            "a model of your own needs its `weights`",
            key="model",
        )
    return _BY_NAME[word]
