"""The energy that this job's GPUs have taken, from the counters of their driver; the CUDA runtime stays untouched."""

from contextlib import suppress
from typing import Any

from plm_embed.gpus import visible_gpus


class Meter:
    """Joules since it was made, over the first `count` GPUs that this process may use.

    Known where nvidia-ml-py is installed and every one of them counts its energy (Volta and later, no slices).
    """

    def __init__(self, count: int) -> None:
        self._handles: list[Any] = []
        with suppress(Exception):  # whatever NVML says, an embedding does not fail for it
            import pynvml

            pynvml.nvmlInit()
            names = visible_gpus()[:count]
            self._handles = [
                pynvml.nvmlDeviceGetHandleByIndex(int(name))
                if name.isdecimal()
                else pynvml.nvmlDeviceGetHandleByUUID(name)
                for name in names
            ]
        self._before = self._read()

    def joules(self) -> float | None:
        """None when it is not known. The counters may be shared: all that ran on these GPUs meanwhile counts."""
        after = self._read()
        return None if self._before is None or after is None else after - self._before

    def _read(self) -> float | None:
        if not self._handles:
            return None
        with suppress(Exception):
            import pynvml

            millijoules = [pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles]
            return float(sum(millijoules)) / 1000
        return None
