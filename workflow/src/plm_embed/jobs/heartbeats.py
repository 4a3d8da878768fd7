"""Heartbeats: a small file per worker that says every few seconds what it is doing, for `plm-embed
watch`.

Nothing depends on them: a heartbeat that cannot be written is left out, and one that its worker
could not remove (a kill) is told by its age.
"""

import json
import logging
import os
import platform
import resource
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from plm_embed.sites.scheduler import job_id
from plm_embed.typed_json import IF_KNOWN, from_json, to_plain
from plm_embed.wording import now

if TYPE_CHECKING:
    import torch


log = logging.getLogger(__name__)
SECONDS_BETWEEN_BEATS = 10.0
FOLDER = "workers"
"""Beside the folder of the completion records."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a GPU does at the moment, as far as it is known."""

    utilization: int | None = field(default=None, metadata=IF_KNOWN)
    """In per cent of the time."""
    watts: float | None = field(default=None, metadata=IF_KNOWN)


@dataclass(frozen=True, kw_only=True)
class Beat(Load):
    """What a heartbeat's file says. Times are ISO 8601, with their zone."""

    schema_version: Literal[1] = 1
    host: str
    pid: int
    job: str | None
    """The scheduler's id."""
    device: str
    """Name of the GPU or of the CPU."""
    gpu: int | None
    """The driver's number of the GPU."""
    bucket: str
    tokens: int
    """Done so far."""
    tokens_total: int | None
    """To compute; None while the model is loaded."""
    tokens_per_second: float | None
    eta_seconds: float | None
    sequences: int
    """Done so far."""
    progressed: str | None
    """When the last batch was done."""
    started: str
    updated: str
    memory_bytes: int
    """Peak of the process on its device."""

    @property
    def fraction(self) -> float:
        """Of the bucket's tokens, 0 to 1."""
        return self.tokens / self.tokens_total if self.tokens_total else 0.0


def write_beat(path: Path, beat: Beat) -> None:
    """Replace the file at once. Not synced to disk: it is worthless after a crash."""
    temporary = path.with_name(f".tmp-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(json.dumps(to_plain(beat)) + "\n", encoding="utf-8")
    temporary.replace(path)


def read_beat(path: Path) -> Beat | None:
    """What a worker says; None when the file is gone or is not a heartbeat."""
    try:
        return from_json(Beat, path.read_bytes())
    except (OSError, ValueError):
        return None


class Heartbeat:
    """What one worker says about one bucket, from entering the `with` block to leaving it. Its file
    is removed then.
    """

    def __init__(self, records: Path, bucket: str, device: "torch.device") -> None:
        """`records` is the folder of the completion records."""
        from plm_embed.kernels import devices

        host = socket.gethostname()
        self.path = records.parent / FOLDER / f"{host}-{os.getpid()}.json"
        self.done = 0
        self._device = device
        self._gpu = _Gpu(device) if device.type == "cuda" else None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._began = time.monotonic()
        self._beat = Beat(
            host=host,
            pid=os.getpid(),
            job=job_id() or None,
            device=devices.device_name(device),
            gpu=self._gpu.index if self._gpu else None,
            bucket=bucket,
            tokens=0,
            tokens_total=None,
            tokens_per_second=None,
            eta_seconds=None,
            sequences=0,
            progressed=None,
            started=now(),
            updated=now(),
            memory_bytes=0,
        )

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def begin(self, tokens: int) -> None:
        """The model is loaded and `tokens` are to be computed."""
        self._began = time.monotonic()
        self._beat = replace(self._beat, tokens_total=tokens, progressed=now())

    def advance(self, tokens: int, sequences: int) -> None:
        """A batch is done: `tokens` more, `sequences` in all."""
        self.done += tokens
        elapsed = time.monotonic() - self._began
        rate = self.done / elapsed if elapsed else None
        left = (self._beat.tokens_total or 0) - self.done
        self._beat = replace(
            self._beat,
            tokens=self.done,
            tokens_per_second=rate,
            eta_seconds=left / rate if rate else None,
            sequences=sequences,
            progressed=now(),
        )

    def _go_on(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_BEATS):
            self._write()

    def _write(self) -> None:
        load = self._gpu.load() if self._gpu else Load()
        beat = replace(self._beat, updated=now(), memory_bytes=self._memory(), **vars(load))
        try:
            write_beat(self.path, beat)
        except OSError as error:
            log.debug("no heartbeat: %s", error)

    def _memory(self) -> int:
        """Peak memory of the process on its device, in bytes."""
        if self._device.type == "cuda":
            import torch

            return int(torch.cuda.max_memory_reserved(self._device))
        unit = 1 if platform.system() == "Darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class _Gpu:
    """One GPU as the driver sees it. All None where nvidia-ml-py or a permission is missing, or on
    slices (MIG).
    """

    def __init__(self, device: "torch.device") -> None:
        self.index: int | None = None
        self._handle: Any = None
        with suppress(Exception):  # whatever NVML says, an embedding does not fail for it
            import pynvml
            import torch

            pynvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self.index = pynvml.nvmlDeviceGetIndex(self._handle)

    def load(self) -> Load:
        """What the GPU does now."""
        load = Load()
        if self._handle is not None:
            with suppress(Exception):
                import pynvml

                rates = pynvml.nvmlDeviceGetUtilizationRates(self._handle)
                load = replace(load, utilization=rates.gpu)
                milliwatts = pynvml.nvmlDeviceGetPowerUsage(self._handle)
                load = replace(load, watts=milliwatts / 1000)
        return load
