"""The package without its clone: the wheel, in an environment that has what the wheel asks for and
nothing else.
"""

import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest
import yaml
from packaging.requirements import Requirement

import plm_embed
from support.campaigns import Campaign, gathered_campaign
from support.manual import INSTALL_WHEELS, PIPX_INJECT, PIPX_INSTALL, UVX

pytestmark = pytest.mark.workflow
ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip")
READING = ("numpy", "h5py", "pyarrow", "msgspec")
SCRIPT = """
import sys
from pathlib import Path

import plm_embed

assert not {"numpy", "h5py", "pyarrow"} & set(sys.modules), "importing is to be cheap"
with plm_embed.open(sys.argv[1]) as embeddings:
    assert "plm_embed/reading" in sys.modules["plm_embed.reading.open"].__file__
    assert len(embeddings.rows([0, 1])) == 2
    ids = list(embeddings.ids)[:3]
    assert embeddings.get(ids).shape == (3, embeddings.dim)
    assert embeddings.to_numpy().shape == (len(embeddings), embeddings.dim)
    try:
        embeddings.get(["nobody"])
    except KeyError as error:
        assert isinstance(error, plm_embed.errors.UnknownIdError) and error.path == embeddings.path
        print(error)
    for method in (embeddings.to_torch, embeddings.to_pandas):
        try:
            method()
        except plm_embed.PlmEmbedError as error:
            print(error)
try:
    plm_embed.open("absent.h5")
except plm_embed.errors.StoreError as error:
    print(error.path)

from plm_embed.reading.exports import export

export(Path(sys.argv[1]), "npy", Path("vectors.npy"))
"""


def requirements(found: Distribution) -> list[str]:
    """Names that a distribution needs here, without its extras."""
    parsed = map(Requirement, found.requires or ())
    return [one.name for one in parsed if not one.marker or one.marker.evaluate({"extra": ""})]


def closure(names: Iterable[str]) -> Iterator[Distribution]:
    """Yield these distributions of the present interpreter, and all that they need."""
    waiting = list(names)
    for name in waiting:
        held = distribution(name)
        waiting += [other for other in requirements(held) if other not in waiting]
        yield held


def link(held: Distribution, folder: Path) -> None:
    """Let `folder` have the files of a distribution of the present interpreter."""
    folder.mkdir(parents=True, exist_ok=True)
    for top in {file.parts[0] for file in held.files or ()} - {"..", "__pycache__"}:
        if not (folder / top).exists():
            (folder / top).symlink_to(str(held.locate_file(top)))


def alone() -> dict[str, str]:
    """The environment, without what leads to the clone."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command somewhere else."""
    return subprocess.run(
        map(str, command), cwd=folder, env=alone(), capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the package in `dist`, beside those of the executors."""
    folder = tmp_path_factory.mktemp("build")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy(ROOT / name, folder)
    for tree in ("workflow/src", "executors"):
        copytree(ROOT / tree, folder / tree, ignore=ignore_patterns("__pycache__", "*.egg-info"))
    options = "--quiet --no-deps --no-build-isolation --no-index --wheel-dir dist"
    places = (".", "./executors/pbs", "./executors/slurm")
    subprocess.run([*PIP, "wheel", *options.split(), *places], cwd=folder, check=True)
    (made,) = (folder / "dist").glob("plm_embed-*.whl")
    return made


def environment(folder: Path) -> Path:
    """Make an environment without any package; return its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    return packages


def installed(wheel: Path, folder: Path) -> Path:
    """An environment that holds the wheel alone; its site-packages."""
    packages = environment(folder)
    command = [*PIP, "--python", str(folder), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, str(wheel)], env=alone(), check=True)
    return packages


@pytest.fixture(scope="module")
def index(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of installers that find all that the package needs in a folder of wheels,
    and nothing elsewhere. In these wheels a path to the modules stands for the modules.
    """
    folder = tmp_path_factory.mktemp("index")
    (about,) = [path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info")]
    needed = {Requirement(line).name for line in PathDistribution(about).requires or ()}
    for held in closure(needed - {"plm-embed"}):
        name = re.sub(r"[-.]+", "_", held.name)
        link(held, folder / name)
        about_it = f"{name}-{held.version}.dist-info"
        files = {
            f"{name}.pth": f"{folder / name}\n",
            f"{about_it}/METADATA": held.read_text("METADATA") or "",
            f"{about_it}/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
        }
        files[f"{about_it}/RECORD"] = "".join(f"{file},,\n" for file in files)
        with zipfile.ZipFile(folder / f"{name}-{held.version}-py3-none-any.whl", "w") as made:
            for file, text in files.items():
                made.writestr(file, text)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_NO_COMPILE": "1"}
    uv = {"UV_OFFLINE": "1", "UV_FIND_LINKS": str(folder)}
    return alone() | pip | uv | {"PATH": path}


@pytest.fixture(scope="module")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`plm-embed` of an environment as `pip install .` makes it, without extras."""
    folder = tmp_path_factory.mktemp("base")
    packages = installed(wheel, folder)
    (about,) = packages.glob("plm_embed-*.dist-info")
    for held in closure(requirements(Distribution.at(about))):
        link(held, packages)
    return folder / "bin" / "plm-embed"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return gathered_campaign(tmp_path_factory.mktemp("campaign"))


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "workflow" / "src" / "plm_embed"
    files = [
        path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    with zipfile.ZipFile(wheel) as held:
        names = set(held.namelist())
    assert {str(path.relative_to(package.parent)) for path in files} <= names
    kinds = {path.suffix for path in files}
    assert kinds == {".py", ".typed", ".yaml", ".j2", ".css", ".js", ".npz", ".c", ""}
    assert "plm_embed/clone/workflow/Snakefile" in names
    assert "plm_embed/clone/config/demo/esm2_t3_untrained.pt" in names
    clone = {"workflow/rules": "smk", "workflow/report": "rst", "profiles": "yaml", "envs": "yaml"}
    for folder, suffix in clone.items():
        for path in (ROOT / folder).rglob(f"*.{suffix}"):
            assert f"plm_embed/clone/{path.relative_to(ROOT)}" in names


def test_a_campaign_without_a_clone(wheel: Path, index: dict[str, str], tmp_path: Path) -> None:
    """The manual's lines run the wheels by uvx, and install them where the campaign goes on."""
    (tmp_path / "dist").symlink_to(wheel.parent)
    (tmp_path / "demo").mkdir()
    copy(ROOT / "config" / "demo" / "proteins.csv", tmp_path / "demo")
    arguments = "demo/proteins.csv --model esm2_t3_untrained --cores 2 --set buckets=1 "
    arguments += "--id-column protein_id --keep protein_name"
    line, home = UVX.replace("proteins.fasta --model esm2_8m", arguments), tmp_path / "uv"
    command, variables = ["bash", "-c", line], index | {"UV_CACHE_DIR": str(home)}
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "steps (100%) done" in done.stderr
    assert "validation  passed" in done.stdout and "mean nothing" in done.stdout
    assert "report      results/esm2_t3_untrained/report.html" in done.stdout
    with plm_embed.open(tmp_path / "results") as embeddings:
        assert len(embeddings) > 30 and "protein_name" in embeddings.to_pandas().columns

    venv = tmp_path / "venv"
    packages, variables = environment(venv), index | {"PIP_PYTHON": str(venv)}
    subprocess.run(["bash", "-c", INSTALL_WHEELS], cwd=tmp_path, env=variables, check=True)
    for executor in ("pbs", "slurm_steady"):
        assert (packages / f"snakemake_executor_plugin_{executor}").is_dir()
    (master,) = (tmp_path / "results").glob("*/master*.h5")
    before = master.stat().st_mtime_ns
    again = run(tmp_path, venv / "bin" / "plm-embed", "run", *arguments.split())
    assert again.returncode == 0 and "Nothing to be done" in again.stderr
    assert master.stat().st_mtime_ns == before

    first, _ = (tmp_path / "results/config.yaml").read_text().split("\n", 1)
    repeat = shlex.split(first.partition("Snakemake: ")[2])
    repeated = run(tmp_path, venv / "bin" / "python", "-m", *repeat)
    assert repeated.returncode == 0 and "Nothing to be done" in repeated.stderr


def test_pipx_makes_the_environment(wheel: Path, index: dict[str, str], tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "PIPX_HOME": str(tmp_path / "pipx")}
    home |= {"PIPX_DISABLE_SHARED_LIBS_AUTO_UPGRADE": "1"}
    for line in (PIPX_INSTALL, PIPX_INJECT):
        command = ["bash", "-c", line]
        subprocess.run(command, cwd=wheel.parents[1], env=index | home, check=True)
    done = run(tmp_path, tmp_path / ".local" / "bin" / "plm-embed", "--version")
    assert done.returncode == 0 and plm_embed.__version__ in done.stdout, done.stderr
    (packages,) = (tmp_path / "pipx" / "venvs" / "plm-embed").glob("lib/python*/site-packages")
    for executor in ("pbs", "slurm_steady"):
        assert (packages / f"snakemake_executor_plugin_{executor}").is_dir()


def test_reading_needs_four_packages(wheel: Path, campaign: Campaign, tmp_path: Path) -> None:
    packages = installed(wheel, tmp_path / "venv")
    for held in closure(READING):
        link(held, packages)
    done = run(tmp_path, tmp_path / "venv" / "bin" / "python", "-c", SCRIPT, campaign.master)
    assert done.returncode == 0, done.stderr
    *unknown, torch, pandas, absent = done.stdout.splitlines()
    assert len(unknown) == 1 and "no vector for nobody" in unknown[0]
    assert torch == "torch is not installed: pip install 'plm-embed[embed]'"
    assert pandas == "pandas is not installed: pip install 'plm-embed[pandas]'"
    assert absent == "absent.h5"
    assert (tmp_path / "vectors.npy").is_file()


def test_export_and_summary(commands: Path, campaign: Campaign, tmp_path: Path) -> None:
    for to in ("npy", "uniprot-h5"):
        done = run(tmp_path, commands, "export", campaign.master, f"vectors.{to}", "--to", to)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"vectors.{to}").is_file()
    done = run(tmp_path, commands, "summary", campaign.results)
    assert done.returncode == 0, done.stderr


def test_deduplicate_and_plan(commands: Path, tmp_path: Path) -> None:
    (tmp_path / "some.fasta").write_text(">a\nMKT AYIAK\n>b\nMKTAYIAKQR\n", encoding="utf-8")
    config = {"inputs": ["some.fasta"], "model": "esm2_t33_650M_UR50D", "weights_folder": "weights"}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    done = run(tmp_path, commands, "deduplicate", "some.fasta", "--output", "sequences")
    assert done.returncode == 0, done.stderr
    for options in (["--device", "A100"], ["--profile", "pbs"]):
        done = run(tmp_path, commands, "plan", "--configfile", "my.yaml", *options)
        assert done.returncode == 0, done.stderr
        assert "A100" in done.stdout


def test_what_an_extra_brings_is_named_where_it_is_missing(
    commands: Path, campaign: Campaign, tmp_path: Path
) -> None:
    for module, extra, *command in (
        ("torch", "embed", "weights", "--model", "esm2_8m", "--output", "weights"),
        ("huggingface_hub", "embed", "weights", "--model", "esmc_300m", "--output", "weights"),
        ("jinja2", "report", "report", campaign.results),
    ):
        done = run(tmp_path, commands, *command)
        assert done.returncode == 1
        line = f"plm-embed: error: {module} is not installed: pip install 'plm-embed[{extra}]'"
        assert done.stderr.splitlines()[-1] == line, done.stderr
        assert "Traceback" not in done.stderr
