"""Site data: what a cluster gives and wants, by the name of the site or from a file."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from os import environ
from pathlib import Path
from typing import Any

import yaml

from plm_embed.errors import ConfigError
from plm_embed.sites.slurm import slurm_site
from plm_embed.wording import did_you_mean

_HERE = Path(__file__).parent


def read_site(name: str) -> dict[str, Any]:
    """Site data: of a site by name, of a YAML file by path, or `slurm`: what sinfo says here.
    ConfigError otherwise.
    """
    if name == "slurm":
        return slurm_site()
    found = _site_files()
    path = Path(name) if "/" in name or name.endswith((".yaml", ".yml")) else found.get(name)
    if path is None or not path.is_file():
        known = sorted([*found, "slurm"])
        hint = did_you_mean(name, known)
        raise ConfigError(
            f"site: {name}: not known{hint}; known are {', '.join(known)}, or the path of a YAML "
            "file",
            key="site",
        )
    try:
        site = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"site: {path}: not YAML ({error})", key="site", path=path) from None
    if not isinstance(site, dict):
        raise ConfigError(
            f"site: {path}: no site data; executors/pbs/README.md shows what they look like",
            key="site",
            path=path,
        )
    base = site.pop("base", None)
    site = laid_over(read_site(str(base)), site) if base else site
    if site.get("scheduler") != "slurm":
        _check(site, path)
    return site


def _check(site: dict[str, Any], path: Path) -> None:
    """Raise ConfigError with the first key that is not as the executor's schema wants it."""
    from jsonschema import Draft202012Validator

    schema = json.loads((_pbs_sites() / "schema.json").read_text(encoding="utf-8"))
    for problem in Draft202012Validator(schema).iter_errors(site):
        where = ".".join(map(str, problem.absolute_path)) or "the file"
        raise ConfigError(f"site: {path}: {where}: {problem.message}", key="site", path=path)


def slurm_sites() -> list[str]:
    """Names of the shipped sites under SLURM."""
    return sorted(path.stem for path in _HERE.glob("*.yaml"))


def _site_files() -> dict[str, Path]:
    """Shipped site data by name, and those of profiles in this folder that have a site.yaml."""
    shipped = {
        path.stem: path for folder in (_pbs_sites(), _HERE) for path in folder.glob("*.yaml")
    }
    return {path.parent.name: path for path in Path("profiles").glob("*/site.yaml")} | shipped


def _pbs_sites() -> Path:
    """The sites of the PBS executor, which is a package of its own; nothing lies there where it is
    not installed.
    """
    found = find_spec("snakemake_executor_plugin_pbs")
    return Path(found.origin).parent / "sites" if found and found.origin else _HERE / "absent"


def account_of(site: Mapping[str, Any], named: str = "") -> str:
    """The account to charge: the one that was named, else of the site's file or of the variable
    that it names.
    """
    account = site.get("account", {})
    return named or account.get("name") or environ.get(account.get("variable", ""), "")


def account_words(site: Mapping[str, Any]) -> str:
    """What to write to name a PBS account."""
    variable = site.get("account", {}).get("variable")
    words = "--pbs-account NAME, or `pbs-account: NAME` to the profile"
    return f"{words}, or export {variable}=NAME" if variable else words


def laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """One mapping over another, key by key."""
    both = [
        key for key in above if isinstance(above[key], dict) and isinstance(below.get(key), dict)
    ]
    return below | above | {key: laid_over(below[key], above[key]) for key in both}
