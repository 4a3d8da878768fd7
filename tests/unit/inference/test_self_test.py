"""The test of a device at the start of each job: its bound comes from the weights in use."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from plm_embed import accuracy
from plm_embed.accuracy import Rounding
from plm_embed.cli.main import group
from plm_embed.errors import ConfigError, DeviceError
from plm_embed.fingerprint import ComputeDtype
from plm_embed.inference import loading
from plm_embed.inference.loading import self_test
from plm_embed.inference.weights import prepare
from plm_embed.io.json_files import write_sealed
from plm_embed.kernels.devices import choose_dtype
from plm_embed.models import weights
from plm_embed.models.engine import Batch, BatchContext, Engine
from plm_embed.models.families.esm import ESM2
from plm_embed.models.registry import Model
from plm_embed.models.weights import MANIFEST, read_manifest
from support.checkpoints import random_state, write_fair_esm
from support.families import TINY, add_model, source

CPU = torch.device("cpu")
MODEL = Model("esm2_t3_sharp", ESM2, 3, 64, 4)
DTYPES: tuple[ComputeDtype, ...] = ("float32", "bfloat16", "float16", "int8")
QUERIES_AND_KEYS = "q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias"


def checkpoint(folder: Path, sharpness: float) -> Path:
    """Write a checkpoint whose attention has scores `sharpness` times as large, and large biases,
    as trained models have them.
    """
    state = random_state(MODEL, 1)
    for name in state:
        if name.endswith("bias") and "norm" not in name:
            state[name] *= 3
        if name.endswith(QUERIES_AND_KEYS):
            state[name] *= sharpness**0.5
    return write_fair_esm(folder / "esm2_sharp.pt", MODEL, state)


@pytest.fixture(scope="module", params=[1, 4, 12])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights with scores as large as random ones', 4 and 12 times as large."""
    path = tmp_path_factory.mktemp("sharp")
    prepare(MODEL, checkpoint(path, request.param), path / "weights")
    return path / "weights"


def engine_of(folder: Path, dtype: ComputeDtype) -> Engine:
    manifest, tensors, _ = weights.load(folder)
    return Engine(manifest.as_model, tensors, CPU, dtype)


def swap_heads(engine: Engine) -> None:
    attend = engine.attention.attend

    def swapped(qkv: torch.Tensor, packed: Any) -> torch.Tensor:
        query = qkv.clone()
        query[:, 0, 0], query[:, 0, 1] = qkv[:, 0, 1], qkv[:, 0, 0]
        return attend(query, packed)

    engine.attention = replace(engine.attention, attend=swapped)


def leave_out_bias(engine: Engine) -> None:
    for layer in engine._layers:
        layer.fc1.bias = None


def miss_the_edge(engine: Engine) -> None:
    """Leave out the first rows of the second slice."""
    context = engine._context

    def missing(batch: Batch, exact: bool) -> BatchContext:
        made = context(batch, exact)
        rows = [slice(one.start + 4 * (one.start > 0), one.stop) for one in made.rows]
        return replace(made, rows=rows)

    engine._context = missing  # type: ignore[method-assign]


@pytest.mark.parametrize("dtype", DTYPES)
def test_sharp_weights_pass_and_broken_kernels_fail(folder: Path, dtype: ComputeDtype) -> None:
    engine = engine_of(folder, dtype)
    result = self_test(engine, read_manifest(folder))
    assert result.batch_invariant
    assert result.relative_error <= accuracy.bound(dtype, read_manifest(folder).roundings)
    for break_kernel in (swap_heads, leave_out_bias, miss_the_edge):
        broken = engine_of(folder, dtype)
        break_kernel(broken)
        with pytest.raises(DeviceError, match=r"self-test failed") as error:
            self_test(broken, read_manifest(folder))
        assert f"in {dtype} differ from the reference" in str(error.value)
        assert "exclude this node" in str(error.value)
        assert str(error.value).endswith(f"if the code of this model was changed, delete {folder}")


def test_a_kernel_that_depends_on_the_place_of_a_row_is_noticed(folder: Path) -> None:
    """The last bits change in the second slice only, in a part that one job's first rows never
    reach.
    """
    engine = engine_of(folder, "float32")
    forward = engine.forward

    def uneven(batch: Any, layers: Any, exact: bool = False) -> dict[int, torch.Tensor]:
        states = forward(batch, layers, exact)
        return {n: torch.cat((x[:-40], x[-40:] * (1 + 1e-6))) for n, x in states.items()}

    engine.forward = uneven  # type: ignore[method-assign]
    assert not self_test(engine, read_manifest(folder)).batch_invariant


@pytest.mark.parametrize("name", TINY)
def test_rounding_is_measured_by_the_formulas_of_each_family(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wider numbers are nearer, and what was measured is about what the engine shows."""
    monkeypatch.setattr(loading, "PAIR_TOKENS", 60)
    manifest = prepare(TINY[name], source(name), tmp_path)
    roundings = manifest.roundings
    assert roundings
    order = "float32", "tfloat32", "bfloat16"
    distances = [roundings[dtype].mean for dtype in order]
    assert distances == sorted(distances)
    assert distances[0] < 1e-6 and 1e-3 < distances[2] < 0.03
    for dtype in DTYPES:
        error = self_test(engine_of(tmp_path, dtype), read_manifest(tmp_path)).relative_error
        assert error < 3 * roundings[dtype].mean + 1e-6


def coarse(cosine: float, dtype: ComputeDtype = "bfloat16") -> Mapping[str, Rounding]:
    near = Rounding(1e-3, 1e-3, 0.999999)
    return dict.fromkeys(accuracy.FLOOR, near) | {dtype: Rounding(0.1, 0.2, cosine)}


def test_a_dtype_that_moves_vectors_notably_is_said(folder: Path) -> None:
    assert accuracy.remark("bfloat16", coarse(0.9991)) == ""
    assert accuracy.remark("bfloat16", None) == ""
    line = accuracy.remark("bfloat16", coarse(0.9978))
    assert "cosine of 0.9978" in line and line.endswith("float16, tfloat32 or float32 is nearer")
    manifest = replace(read_manifest(folder), roundings=dict(coarse(0.9978)))
    assert self_test(engine_of(folder, "bfloat16"), manifest).rounding == line


def test_a_dtype_that_is_too_coarse_is_refused_and_auto_takes_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    near, far = coarse(0.9901), coarse(0.9899)
    assert choose_dtype("bfloat16", CPU, near) == "bfloat16"
    with pytest.raises(ConfigError, match=r"0\.9899 .*\nset float16, tfloat32 or float32"):
        choose_dtype("bfloat16", CPU, far)
    assert choose_dtype("auto", CPU, far) == "float32"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    cuda = torch.device("cuda", 0)
    assert choose_dtype("auto", cuda, near) == "bfloat16"
    assert choose_dtype("auto", cuda, far) == "tfloat32"
    assert choose_dtype("int8", CPU, coarse(0.9901, "int8")) == "int8"
    line = accuracy.remark("int8", coarse(0.9901, "int8"))
    assert line.endswith("0.9901 with exact arithmetic; bfloat16 or float32 is nearer")
    with pytest.raises(ConfigError, match=r"0\.9899 .*\nset bfloat16 or float32$"):
        choose_dtype("int8", CPU, coarse(0.9899, "int8"))


def test_weights_are_refused_for_a_dtype_when_they_are_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any job starts: bfloat16 is too coarse for these, float16 is not."""
    model = Model("esm2_t6_sharp", ESM2, 6, 128, 8)
    add_model(monkeypatch, model)
    state = random_state(model, 1)
    for name in state:
        factor = 12**0.5 if name.endswith(QUERIES_AND_KEYS) else 2.0 * ("out_proj" in name) or 1.0
        state[name] *= 0.0 if name.endswith("bias") else factor
    path = write_fair_esm(tmp_path / "esm2_large.pt", model, state)
    command = ["weights", "--model", model.name, "--source", str(path)]

    def call(dtype: str) -> Result:
        options = ["--output", str(tmp_path / "out"), "--settings"]
        return CliRunner().invoke(group, [*command, *options, f'{{"compute_dtype": "{dtype}"}}'])

    assert call("float16").exit_code == 0
    refused = call("bfloat16").exception
    assert isinstance(refused, ConfigError)
    assert "embedding.compute_dtype: bfloat16 is too coarse for these weights" in str(refused)
    assert str(refused).splitlines()[-1] == "set float32"


@pytest.mark.parametrize(("factor", "held"), [(2.0**17, True), (2.0**24, False)])
def test_what_float16_cannot_hold_is_tested_as_it_is_computed_in_float32(
    tmp_path: Path, factor: float, held: bool
) -> None:
    """Unless it cannot hold the weights themselves: then it is refused."""
    state = random_state(MODEL, 1)
    state["layers.1.fc1.weight"] *= factor
    folder = tmp_path / "out"
    made = prepare(MODEL, write_fair_esm(tmp_path / "esm2_large.pt", MODEL, state), folder)
    assert made.roundings
    cosine = accuracy.rounding_of("float16", made.roundings).cosine
    assert (cosine >= accuracy.REFUSED) == held
    if held:
        assert self_test(engine_of(folder, "float16"), read_manifest(folder)).batch_invariant


def test_weights_of_an_earlier_version_are_completed(tmp_path: Path) -> None:
    source = checkpoint(tmp_path, 4)
    made = prepare(MODEL, source, tmp_path / "out")
    assert made.roundings
    without_int8 = {name: made.roundings[name] for name in made.roundings if name != "int8"}
    for roundings in (None, without_int8):
        write_sealed(tmp_path / "out" / MANIFEST, replace(made, roundings=roundings))
        assert accuracy.bound("float32", None) == pytest.approx(1e-4)
        assert prepare(MODEL, source, tmp_path / "out").roundings == made.roundings
