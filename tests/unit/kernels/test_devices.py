import errno
import os
from pathlib import Path

import pytest
import torch

from plm_embed.errors import ConfigError, DeviceError, PlmEmbedError, device_lost, out_of_memory
from plm_embed.kernels import devices, linear

CPU = torch.device("cpu")


class Mark:
    """An event that the device comes to at the `last` look at it."""

    def __init__(self, last: float) -> None:
        self.looks, self.last = 0, last

    def query(self) -> bool:
        self.looks += 1
        return self.looks >= self.last


def test_a_device_that_hangs_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "SECONDS_TO_COMPUTE", 0.01)
    done, never = Mark(20), Mark(float("inf"))
    devices.wait(done)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match=r"hangs: a batch was not done"):
        devices.wait(never)  # type: ignore[arg-type]
    assert (done.looks, never.looks) == (20, 20)


def test_auto_precision_by_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.choose_dtype("auto", CPU) == "float32"
    assert devices.choose_dtype("bfloat16", CPU) == "bfloat16"
    for capability, expected in (((7, 5), "float32"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, now=capability: now)
        assert devices.choose_dtype("auto", torch.device("cuda", 0)) == expected


def test_int8_is_for_cpus_whose_products_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    with pytest.raises(PlmEmbedError, match="NVIDIA H100: it is for CPUs\nset device: cpu, or"):
        devices.choose_dtype("int8", torch.device("cuda", 0))
    monkeypatch.setattr(linear, "int8_problem", lambda: "")
    assert devices.choose_dtype("int8", CPU) == "int8"
    monkeypatch.setattr(linear, "int8_problem", lambda: "its sums are not exact")
    with pytest.raises(PlmEmbedError, match="its sums are not exact\nset float32, or auto"):
        devices.choose_dtype("int8", CPU)


def test_tf32_is_off_unless_chosen_and_only_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla V100")
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    with pytest.raises(PlmEmbedError, match="not Tesla V100\nset float32, or auto"):
        devices.choose_dtype("tfloat32", cuda)
    with pytest.raises(PlmEmbedError, match="not Tesla V100\nset float32 or float16, or auto"):
        devices.choose_dtype("bfloat16", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert devices.choose_dtype("tfloat32", cuda) == "tfloat32"
    assert devices.choose_dtype("bfloat16", cuda) == "bfloat16"
    for wanted, on in (("tfloat32", True), ("float32", False), ("auto", False)):
        devices.set_up(cuda, 1, wanted)  # type: ignore[arg-type]
        assert torch.backends.cuda.matmul.allow_tf32 is on


def test_tf32_set_by_the_newer_name_is_put_back() -> None:
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("torch before 2.9")
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        with devices.as_set_up(torch.device("cuda", 0), None, "float32"):
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


@pytest.mark.parametrize("given", [None, "", "-1", "NoDevFiles", "0", "GPU-1,GPU-2"])
def test_a_gpu_that_is_given_and_cannot_be_used_is_no_reason_for_the_cpu(
    given: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "DEV", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert devices.choose_device("cpu") == CPU
    if given in (None, *devices.NO_GPU):
        assert devices.choose_device("auto") == CPU
    else:
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        with pytest.raises(
            DeviceError, match=rf"CUDA_VISIBLE_DEVICES: {given}\)\nrequest a GPU"
        ) as told:
            devices.choose_device("auto")
        assert "if the driver is too old for CUDA 12.8" in str(told.value)
        monkeypatch.setattr(torch.version, "cuda", None)  # another attempt has the same torch
        with pytest.raises(ConfigError, match="CPU only"):
            devices.choose_device("auto")


@pytest.mark.parametrize(
    ("cuda", "text"),
    [
        (None, "not made for the NVIDIA GPU.*\n.*requirements/cuda.txt"),
        ("13.0", "driver on your system is too old.*\n.*older drivers"),
    ],
)
def test_a_gpu_that_the_node_shows_and_torch_cannot_use_is_an_error(
    cuda: str | None, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(devices, "DEV", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))

    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found 11040). Please ...")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    # only of a driver may the next node have another one
    with pytest.raises(DeviceError if cuda else ConfigError, match=text) as told:
        devices.choose_device("auto")
    _, remedy = str(told.value).splitlines()
    assert "set device: cpu" in remedy
    assert devices.choose_device("cpu") == CPU
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # nobody means it
    assert devices.choose_device("auto") == CPU


def test_a_gpu_of_another_job_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(devices, "DEV", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices.gpu_shown()

    def refuse(*_: object) -> int:  # as a scheduler's cgroup does
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(devices.os, "open", refuse)
    assert not devices.gpu_shown()


def test_a_device_that_does_not_compute_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    devices.check(CPU)
    with pytest.raises(DeviceError, match=r"meta on .* does not compute"):
        devices.check(torch.device("meta"))  # allocates, and holds no numbers
    miscounted = "device >= 0 && device < num_gpus INTERNAL ASSERT"  # of a GPU cut into slices
    no_code = "CUDA error: no kernel image is available for execution on the device"
    for error, words in (
        (torch.cuda.DeferredCudaCallError(miscounted), "does not compute"),
        (RuntimeError(no_code), r"no kernel image .*\ninstall the torch for older dri"),
    ):

        def ones(*_: object, error: Exception = error, **__: object) -> torch.Tensor:
            raise error

        monkeypatch.setattr(torch, "ones", ones)
        with pytest.raises(DeviceError, match=words):
            devices.check(CPU)


def test_errors_of_memory_and_of_a_lost_device_are_told_apart() -> None:
    cuda = torch.device("cuda", 0)
    memory = [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: out of memory"),  # of pinned memory
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory: you "
            "tried to ..."
        ),
    ]
    assert all(out_of_memory(error) and not device_lost(error) for error in memory)
    for text in (
        "Triton Error [CUDA]: an illegal memory access was encountered",
        "CUDA driver error: device-side assert triggered",
        "CUDNN_STATUS_EXECUTION_FAILED",
        "HIP error: an illegal memory access was encountered",
    ):
        assert device_lost(RuntimeError(text)) and not out_of_memory(RuntimeError(text))
    lost = RuntimeError(
        "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be reported "
        "later"
    )
    assert device_lost(lost) and not out_of_memory(lost)
    with pytest.raises(DeviceError) as raised:
        devices.raise_others(lost, cuda)
    said = str(raised.value)
    assert "uncorrectable ECC error" in said
    assert len(said.splitlines()) == 2
    for error, device in ((lost, CPU), (RuntimeError("a bug"), cuda)):
        with pytest.raises(RuntimeError) as raised_again:
            devices.raise_others(error, device)
        assert raised_again.value is error
    devices.raise_others(memory[0], cuda)


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/job\n", {"job/cpu.max": "150000 100000"}, 2),
        ("0::/job/step\n", {"job/step/cpu.max": "max 100000", "job/cpu.max": "100000 100000"}, 1),
        ("0::/not/here\n", {"cpu.max": "50000 100000"}, 1),
        ("4:memory:/x\n0::/job\n", {"job/cpu.max": "200000 100000"}, 2),
        (
            "1:cpu,cpuacct:/a/b\n4:memory:/a\n0::/\n",
            {
                **{"cpu/a/b/cpu.cfs_quota_us": "-1", "cpu/a/b/cpu.cfs_period_us": "100000"},
                **{"cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"},
            },
            3,
        ),
        ("", {}, None),
    ],
)
def test_time_that_a_cgroup_limits_counts_as_cores(
    groups: str, files: dict[str, str], limit: int | None,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, text in {"cgroup": groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(devices, "PROC", tmp_path)
    monkeypatch.setattr(devices, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert devices.cores() == (limit or 8)
