"""Keys that a configuration file has twice: YAML and Snakemake take the last one without a word."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from plm_embed.errors import ConfigError


def check_repeated_keys(files: Iterable[str | Path]) -> None:
    """ConfigError that names the file, the key and its lines. What cannot be read, or is no YAML,
    is left to who reads it for its settings.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in map(Path, files):
        try:
            tree = yaml.compose(path.read_text(encoding="utf-8"), loader)
        except (OSError, ValueError, yaml.YAMLError):
            continue
        for key, first, line in _repeated(tree, ""):
            raise ConfigError(
                f"{path}, line {line}: {key}: stands in line {first} too",
                key=key,
                path=path,
                remedy="name it once",
            )


def _repeated(node: object, place: str) -> Iterator[tuple[str, int, int]]:
    """Each repeated key with its first line and this one, from 1."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated(item, place)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            name, line = f"{place}{key.value}", key.start_mark.line + 1
            if name in lines:
                yield name, lines[name], line
            lines[name] = line
            yield from _repeated(value, f"{name}.")
