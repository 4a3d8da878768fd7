"""A stand-in for PBS on PATH, and on it a folder with Snakemake, submitters and watches."""

import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from drivers import Driver, Looker
from lean import lean_python
from sites import Site, logged
from standin import Config, StandIn

# what starts the tests in the background may ignore these, and so would all that the tests start
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# how long an example takes, or takes to draw, depends on what else the machine does; and what fails
# fails again
settings.register_profile(
    "here", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("here")

REAL = shutil.which("qsub") if os.environ.get("PBS_TEST_REAL") else None
"""Asked for, never merely made: a qsub on PATH may belong to a server that is not there, or to a
site's users.
"""


def pytest_report_header() -> str:
    """Name the PBS of the workflows, so that nobody takes one for the other."""
    if REAL is None and os.environ.get("PBS_TEST_REAL"):
        pytest.exit("PBS_TEST_REAL is set, and there is no qsub on PATH", returncode=1)
    return (
        f"PBS: {f'the real one of {REAL}' if REAL else 'the stand-in, as PBS_TEST_REAL is not set'}"
    )


@pytest.fixture
def pbs(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A running stand-in whose commands are found first."""
    with StandIn(Config(speed=60, kill_delay=0.5, undeliverable=1e6)) as standin:
        monkeypatch.setenv("PATH", str(standin.bin), prepend=":")
        yield standin


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return lean_python(tmp_path_factory.mktemp("python"))


@pytest.fixture
def site(tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site whose qsub keeps a list of its calls, in front of the real one or the stand-in's."""
    words = shlex.split(os.environ.get("PBS_TEST_ARGS", ""))
    if REAL:
        folder = Path(tempfile.mkdtemp(dir=os.environ.get("PBS_TEST_DIR", tmp_path)))
        made = logged(Site(folder, words), REAL, monkeypatch)
        yield made
        made.stop()
        return
    with StandIn() as pbs:
        pbs.config.speed, pbs.config.kill_delay = 60, 1
        monkeypatch.setenv("PATH", str(pbs.bin), prepend=":")
        made = logged(Site(tmp_path, words, python), str(pbs.bin / "qsub"), monkeypatch)
        yield made
        made.stop()


@pytest.fixture
def lever(
    tmp_path: Path,
    python: str,
    pbs: StandIn,  # noqa: ARG001 (the commands on PATH)
) -> Iterator[Site]:
    """A site on the stand-in, whose server a test may stop and break."""
    made = Site(tmp_path, [], python)
    yield made
    made.stop()


@pytest.fixture
def drivers(tmp_path: Path, pbs: StandIn) -> Iterator[Callable[[], Driver]]:
    """Makes drivers of one working directory, as restarts do; each new one ends the one before."""
    made: list[Driver] = []

    def make() -> Driver:
        if made:
            made[-1].submitter.stop()
        made.append(Driver(tmp_path, pbs))
        return made[-1]

    yield make
    made[-1].submitter.stop()


@pytest.fixture
def looker(pbs: StandIn, tmp_path: Path) -> Looker:
    return Looker(tmp_path, pbs)
