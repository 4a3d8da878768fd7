"""Attempts: every start is noted with its end, and energy is what the GPUs' counters say."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.jobs.attempts import noted, read_attempts, store_of
from plm_embed.jobs.gpus import Meter


def test_each_start_is_noted_with_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PBS_JOBID", "17.server")
    with noted(tmp_path / "embedded", "0000", ["0000", "0001"], tmp_path / "store", 4):
        (running,) = read_attempts(tmp_path)
        assert (running.outcome, running.ended, running.seconds) == ("no end", "", 0.0)
    (whole,) = read_attempts(tmp_path)
    assert (whole.outcome, whole.buckets, whole.job, whole.workers) == (
        "complete",
        ("0000", "0001"),
        "17.server",
        4,
    )
    assert whole.ended >= whole.started and whole.joules is None
    with (
        pytest.raises(PlmEmbedError),
        noted(tmp_path / "embedded", "0000", ["0000"], tmp_path / "store", 1),
    ):
        raise PlmEmbedError("no GPU")
    assert ["failed", "no GPU"] in [[one.outcome, one.reason] for one in read_attempts(tmp_path)]


def test_the_store_is_known_wherever_the_configuration_has_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = Path("results/model")
    assert store_of(model) == model / "store"
    for store in (model / "store", tmp_path / "shared", Path("beside")):
        with noted(model / "embedded", "0000", ["0000"], store, 1):
            assert store_of(model).absolute() == store.absolute()
    with noted(model / "embedded", "0000", ["0000"], model / "store", 1):
        pass
    moved = model.rename("moved")
    assert store_of(moved) == moved / "store"


def test_a_job_goes_on_where_nothing_can_be_noted(tmp_path: Path) -> None:
    (tmp_path / "attempts").write_text("a file where the folder should be")
    with noted(tmp_path / "embedded", "0000", ["0000"], tmp_path / "store", 1):
        pass
    assert read_attempts(tmp_path) == []


def test_what_is_no_note_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "attempts").mkdir()
    for name, content in (
        ("torn", "{"),
        ("other", "[]"),
        ("old", json.dumps({"submission": "0000"})),
    ):
        (tmp_path / "attempts" / f"{name}.json").write_text(content)
    assert read_attempts(tmp_path) == []


class Driver(ModuleType):
    """Stands for nvidia-ml-py: GPU 0 and GPU-b count in millijoules, GPU 1 does not count."""

    now = 5_000_000

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802
        return name

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int | str) -> int:  # noqa: N802
        if handle == 1:
            raise OSError("not supported")
        return self.now


@pytest.mark.parametrize(
    ("visible", "count", "joules"), [("0", 1, 2.5), ("0,GPU-b", 2, 5.0), ("0,1", 2, None)]
)
def test_energy_is_what_the_counters_went_on(
    visible: str, count: int, joules: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    meter = Meter(count)
    driver.now += 2500
    assert meter.joules() == joules


def test_without_a_gpu_energy_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert Meter(1).joules() is None
