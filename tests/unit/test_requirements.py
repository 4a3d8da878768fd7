"""The pins: complete, exact, and the same for pip and conda users."""

import re
import tomllib
from pathlib import Path

import yaml

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
    """What the package and its extras ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return {name(requirement) for requirements in lists for requirement in requirements} - {
        "plm-embed"
    }


def test_what_the_package_needs_is_pinned_for_every_device() -> None:
    for file in ("cpu.txt", "cuda.txt", "test.txt"):
        assert needed() <= set(pins(file))


def test_conda_users_get_the_same_versions() -> None:
    environment = yaml.safe_load((ROOT / "envs" / "plm-embed.yaml").read_text(encoding="utf-8"))
    (by_pip,) = [part["pip"] for part in environment["dependencies"] if isinstance(part, dict)]
    conda = {name(line): line.split("==")[1] for line in by_pip}
    assert needed() <= set(conda)
    assert conda.items() <= pins("cuda.txt").items()
