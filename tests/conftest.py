"""Fixtures of all suites."""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytest.register_assert_rewrite("support")  # its checks, too, show what differs

# processes that tests start must find the package too
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT / "workflow" / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# the cluster that this machine may belong to: suites that use one name it themselves
os.environ["SLURM_CONF"] = os.devnull
if not os.environ.get("PBS_TEST_REAL"):
    os.environ["PBS_CONF_FILE"] = "/nonexistent/pbs.conf"
    for name in ("PBS_DEFAULT", "PBS_SERVER"):
        os.environ.pop(name, None)

# prepared weights are shared by the processes of a run of the tests, and by nobody else
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["PLM_EMBED_WEIGHTS"] = tempfile.mkdtemp(prefix="plm-embed-weights-")
    atexit.register(shutil.rmtree, os.environ["PLM_EMBED_WEIGHTS"], ignore_errors=True)

# torch's threads wait for work in sleep: tests run beside each other, and would count the other's
# time away
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Triton looks at it when it is first imported, and torch imports it now and then
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# the suites' own torch computes on the CPU, also on a machine with a GPU, which would be an error
if Path("/dev/nvidiactl").exists() and version("torch").endswith("+cpu"):
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

# what starts the tests in the background may ignore these, and so would all that the tests start
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

with suppress(ImportError):  # the tests of a GPU do without it
    from hypothesis import HealthCheck, settings

    # how long an example takes, or takes to draw, depends on what else the machine does; and what
    # fails fails again
    settings.register_profile(
        "here", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("here")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze all that is imported and collected: it stays to the end."""
    gc.disable()
    atexit.register(gc.unfreeze)
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights folder of the model that the demo ships."""
    from plm_embed.inference.weights import prepare
    from plm_embed.models.registry import MODELS
    from support import checkpoints

    folder = tmp_path_factory.mktemp("weights")
    prepare(MODELS["esm2_t3_untrained"], checkpoints.DEMO, folder)
    return folder


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A temporary folder whose path is short enough for scratch; pytest's own are too long."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)
