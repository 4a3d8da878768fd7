"""The pins: complete, exact, and the same for pip and conda users; what packages ask for."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Template

from plm_embed._version import __version__

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"([\w.-]+)==([\w.]+)(; \w+ == .*)?")


def name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def pins(file: str) -> dict[str, str]:
    """Pinned versions of a requirements file and of the files that it includes; every line must be
    a pin.
    """
    found: dict[str, str] = {}
    for line in (ROOT / "requirements" / file).read_text(encoding="utf-8").splitlines():
        if line.startswith("-r "):
            found |= pins(line.removeprefix("-r "))
        elif line and not line.startswith("#"):
            pin = PIN.fullmatch(line)
            assert pin, f"{file}: {line}"
            found[name(line)] = pin[2]
    return found


def needed() -> set[str]:
    """Requirements of the package and its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return {name(requirement) for requirements in lists for requirement in requirements} - {
        "plm-embed"
    }


def test_what_the_package_needs_is_pinned_for_every_device() -> None:
    for file in ("cpu.txt", "cuda.txt", "test.txt"):
        assert needed() <= set(pins(file))


def test_the_manual_names_the_same_torch_for_older_drivers() -> None:
    named = re.findall(
        r"torch==([\w.]+)", (ROOT / "docs" / "laptop.md").read_text(encoding="utf-8")
    )
    assert named == [pins("cuda.txt")["torch"]]


def test_conda_users_get_the_same_versions() -> None:
    environment = yaml.safe_load((ROOT / "envs" / "plm-embed.yaml").read_text(encoding="utf-8"))
    (by_pip,) = [part["pip"] for part in environment["dependencies"] if isinstance(part, dict)]
    conda = {name(line): line.split("==")[1] for line in by_pip}
    assert needed() <= set(conda)
    assert conda.items() <= pins("cuda.txt").items()


def test_conda_users_get_every_package_of_the_clone() -> None:
    environment = yaml.safe_load((ROOT / "environment.yaml").read_text(encoding="utf-8"))
    (by_pip,) = [part["pip"] for part in environment["dependencies"] if isinstance(part, dict)]
    option, paths = zip(*(line.split() for line in by_pip), strict=True)
    assert option == ("--requirement", *["--editable"] * 3)
    assert paths[0] == "requirements/cuda.txt"
    projects = {path.parent for path in ROOT.glob("executors/*/pyproject.toml")} | {ROOT}
    assert {(ROOT / path).resolve() for path in paths[1:]} == projects


def asked(requirements: list[str]) -> set[str]:
    """Requirements in one form, under the names that they have in pip."""
    names = {"pytorch": "torch", "snakemake-minimal": "snakemake"}
    found = (re.fullmatch(r"([\w.-]+) ?(.*)", line) for line in requirements)
    return {names.get(one[1].lower(), one[1].lower()) + one[2] for one in found if one}


@pytest.mark.parametrize("folder", [".", "executors/pbs", "executors/slurm"])
def test_a_conda_recipe_asks_for_what_the_package_asks_for(folder: str) -> None:
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["project"]
    text = (ROOT / "packaging" / "conda" / project["name"] / "meta.yaml").read_text("utf-8")
    words: dict[str, Any] = {"PYTHON": "python", "pin_subpackage": lambda *_, **__: "pinned"}
    recipe = yaml.safe_load(Template(text).render(**words))
    assert recipe["package"]["name"] == project["name"]
    assert recipe["package"]["version"] == project.get("version", __version__)
    extras = project.get("optional-dependencies", {})
    wanted = [
        *(f"python{project['requires-python']}", *project["dependencies"]),
        *(line for name in ("embed", "reference", "report", "pandas", "workflow")
          for line in extras.get(name, []) if not line.startswith("plm-embed")),
    ]  # fmt: skip
    assert asked(recipe["requirements"]["run"]) == asked(wanted)
    commands = [f"{name} = {place}" for name, place in project.get("scripts", {}).items()]
    assert recipe["build"].get("entry_points", []) == commands


def test_the_version_is_the_same_wherever_it_stands() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == __version__
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {__version__} " in changes or f"## [{__version__}]" in changes
