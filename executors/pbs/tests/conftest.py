"""A stand-in for PBS on PATH, and on it a folder with Snakemake."""

import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from helpers import Site
from lean import lean_python
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
    return lean_python(tmp_path_factory.mktemp("python"), "numpy")


@pytest.fixture
def lever(
    tmp_path: Path, python: str, pbs: StandIn, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    """A folder on the stand-in, whose server a test may stop and break."""
    made = Site(tmp_path, [], python)
    monkeypatch.setenv("PATH", made.log_submissions(str(pbs.bin / "qsub")), prepend=":")
    yield made
    made.stop()


@pytest.fixture
def site(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    """A folder on the real PBS, if that is asked for."""
    if REAL is None:
        yield request.getfixturevalue("lever")
        return
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("PBS_TEST_DIR", tmp_path)))
    made = Site(folder, shlex.split(os.environ.get("PBS_TEST_ARGS", "")))
    monkeypatch.setenv("PATH", made.log_submissions(REAL), prepend=":")
    yield made
    made.stop()
