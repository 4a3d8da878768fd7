"""The configuration of a campaign: its schema, its defaults, the options that it becomes, and the
copy of a run's, kept beside its results: in the results folder by `plm-embed run`, in the folder of
a model by the workflow.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import yaml

from plm_embed.errors import ConfigError, StoreError, delete
from plm_embed.inference.settings import Settings
from plm_embed.io.files import atomic_path, read_shipped
from plm_embed.io.json_files import to_plain
from plm_embed.io.terminal import printable
from plm_embed.models.checkpoints import model_of
from plm_embed.models.registry import Model
from plm_embed.sequences.residues import ResiduePolicy
from plm_embed.sequences.settings import Table

Config = dict[str, Any]
LINKER = 25 * "G"
"""The linker of pairs of chains unless the configuration names another one."""
SCHEMA = Path(__file__).with_name("config.schema.yaml")
_RELATIVE = "# Paths are relative to "


def schema() -> Config:
    """Return the JSON Schema of the configuration, which holds every default."""
    rules: Config = read_shipped(SCHEMA)
    return rules


def with_defaults(config: Mapping[str, Any], rules: Config | None = None) -> Config:
    """Return the configuration with the schema's defaults, as Snakemake's `validate` fills them
    in.
    """
    complete = dict(config)
    for key, rule in (rules or schema())["properties"].items():
        if "default" in rule:
            complete.setdefault(key, rule["default"])
        if "properties" in rule and isinstance(complete.get(key), Mapping):
            complete[key] = with_defaults(complete[key], rule)
    return complete


def read_yaml(path: Path) -> Config:
    """Return the keys of a configuration file. ConfigError for what is none."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason}", path=path) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}".replace("\n", " "), path=path) from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: not a configuration: it has no keys", path=path)
    return content


def key_and_value(option: str, setting: str) -> tuple[str, Any]:
    """Return the parts of `KEY=VALUE`, whose value is YAML. ConfigError otherwise."""
    key, equals, value = setting.partition("=")
    words = "write KEY=VALUE, such as buckets=64"
    if equals:
        with suppress(yaml.YAMLError):
            return key, yaml.safe_load(value)
        words = "the value is not YAML; is a bracket or a quote left open?"
    raise ConfigError(f"{option} {setting}: {words}", key=key)


def merged(below: Config, above: Mapping[str, Any]) -> Config:
    """Return one mapping over another, as Snakemake merges configurations: blocks key by key."""
    both = {
        key: merged(below[key], value)
        for key, value in above.items()
        if isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
    }
    return below | dict(above) | both


def listed(value: Any) -> list[Any]:
    """Return a list as it is, and any other value as a list of one."""
    return value if isinstance(value, list) else [value]


def models_of(config: Config) -> dict[str, Model]:
    """Return the models of a campaign by their published names, or those of the user's own."""
    weights = config["weights"]
    models = [
        model_of(name, weights if isinstance(weights, str) else weights.get(name))
        for name in listed(config["model"])
    ]
    return {model.name: model for model in models}


def source_of(config: Config, model: Model) -> str:
    """Return what `weights` names for a model, or '' for a download."""
    weights = config["weights"]
    if isinstance(weights, str):
        return weights
    sources = (path for name, path in weights.items() if model_of(name, path).name == model.name)
    return next(sources, "")


def _entries(config: Config) -> list[Config]:
    inputs = listed(config["inputs"])
    return [entry if isinstance(entry, dict) else {"path": entry} for entry in inputs]


def input_paths(config: Config) -> list[str]:
    """Return the paths of the sequence files."""
    return [entry["path"] for entry in _entries(config)]


def input_tables(config: Config) -> list[Table]:
    """Return the columns of each input."""
    return msgspec.convert(_entries(config), list[Table])


def settings_of(config: Config) -> Settings:
    """Return what a campaign computes."""
    keys = {**config["embedding"], "strand": config["residues"]["strand"]}
    paired = any(table.partner for table in input_tables(config))
    keys["linker"] = keys["linker"] or (LINKER if paired else "")
    return msgspec.convert(keys, Settings, strict=False)


def residues_of(config: Config) -> ResiduePolicy:
    """Return what a campaign does with residues; the alphabet is its models', or that of pairs."""
    alphabet = next(iter(models_of(config).values())).family.alphabet.name
    alphabet = "protein_pair" if settings_of(config).linker else alphabet
    return ResiduePolicy(alphabet=alphabet, **config["residues"])


def reading_options(config: Config) -> list[str]:
    """Return the options of `plm-embed deduplicate` that decide what it writes."""
    columns = [{key: entry[key] for key in entry if key != "path"} for entry in _entries(config)]
    residues, tables = json.dumps(vars(residues_of(config))), json.dumps(columns)
    return [f"--buckets={config['buckets']}", f"--residues={residues}", f"--tables={tables}"]


def vector_settings(config: Config) -> str:
    """Return the settings that decide a vector, as JSON for `plm-embed weights` and `embed`."""
    return json.dumps(to_plain(settings_of(config).recipe))


def write_kept(path: Path, config: Mapping[str, Any], title: str) -> None:
    """Write a configuration below a line of comment, with the folder that its paths start from."""
    plain = json.loads(json.dumps(dict(config)))  # YAML would write anchors for shared values
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
    head = f"# {printable(title)}\n{_RELATIVE}{json.dumps(str(Path.cwd()))}\n"
    with atomic_path(path) as temporary:
        temporary.write_text(head + text, encoding="utf-8")


def read_kept(path: Path) -> tuple[dict[str, Any], Path]:
    """Return a kept configuration, and the folder that its paths start from.

    Both are empty where there is no file. StoreError when it is damaged.
    """
    if not path.is_file():
        return {}, Path()
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.startswith(_RELATIVE)]
    try:
        config = yaml.safe_load(text)
        folder = Path(json.loads(lines[0].removeprefix(_RELATIVE))) if lines else Path()
        return dict(config or {}), folder
    except (yaml.YAMLError, ValueError, TypeError):
        message = f"{path}: damaged or edited: not the configuration of a run"
        raise StoreError(message, remedy=delete(path), path=path) from None
