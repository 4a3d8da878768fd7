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
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from plm_embed.sites.scheduler import job_id

if TYPE_CHECKING:
    import torch


log = logging.getLogger(__name__)
SECONDS_BETWEEN_BEATS = 10.0
FOLDER = "workers"
"""Beside the folder of the completion records."""


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
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._began = time.monotonic()
        self._note: dict[str, Any] = {
            "schema_version": 1,
            "host": host,
            "pid": os.getpid(),
            "job": job_id() or None,
            "device": devices.device_name(device),
            "gpu": self._gpu.index if self._gpu else None,
            "bucket": bucket,
            "tokens": 0,
            "tokens_total": None,
            "tokens_per_second": None,
            "eta_seconds": None,
            "sequences": 0,
            "progressed": None,
            "started": _now(),
        }

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
        self._note |= {"tokens_total": tokens, "progressed": _now()}

    def advance(self, tokens: int, sequences: int) -> None:
        """A batch is done: `tokens` more, `sequences` in all."""
        self.done += tokens
        elapsed = time.monotonic() - self._began
        rate = self.done / elapsed if elapsed else None
        left = (self._note["tokens_total"] or 0) - self.done
        self._note |= {
            "tokens": self.done,
            "tokens_per_second": rate,
            "eta_seconds": left / rate if rate else None,
            "sequences": sequences,
            "progressed": _now(),
        }

    def _beat(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_BEATS):
            self._write()

    def _write(self) -> None:
        """Replace the file at once. Not synced to disk: it is worthless after a crash."""
        note = self._note | {"updated": _now(), "memory_bytes": self._memory()}
        if self._gpu:
            note |= self._gpu.load()
        temporary = self.path.with_name(f".tmp-{self.path.name}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(note) + "\n", encoding="utf-8")
            temporary.replace(self.path)
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

    def load(self) -> dict[str, Any]:
        """GPU utilization in per cent and power in watts, as far as they are known."""
        found: dict[str, Any] = {}
        if self._handle is not None:
            with suppress(Exception):
                import pynvml

                found["utilization"] = pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
                found["watts"] = pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1000
        return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
