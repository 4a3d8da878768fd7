"""The steps of the check that need torch, each in a process of its own: its arguments as JSON, and
as the last line that it prints its result.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLACE = 100
"""Tokens of the sequence that fills a batch: no multiple of what a kernel takes at a time."""


def device(device: str) -> dict[str, Any]:
    """Facts about the device; an error of the package where it does not compute."""
    import torch

    from plm_embed.kernels import devices

    chosen = devices.choose_device(device)  # type: ignore[arg-type]
    devices.check(chosen)
    facts: dict[str, Any] = {"name": devices.device_name(chosen), "torch": torch.__version__}
    if chosen.type == "cuda":
        properties = torch.cuda.get_device_properties(chosen)
        facts["capability"] = f"{properties.major}.{properties.minor}"
        facts["gigabytes"] = round(properties.total_memory / 1e9)
        facts["built for"] = str(torch.version.cuda or torch.version.hip)
    return facts


def weights(model: str, folder: str, device: str) -> dict[str, Any]:
    """A weights folder of random numbers, which are drawn on the device."""
    import torch

    sys.path.append(str(Path(__file__).parents[1]))
    from peers import RandomTensors

    from plm_embed.inference.golden_vectors import seal
    from plm_embed.io.files import sha256_file
    from plm_embed.models import weights
    from plm_embed.models.registry import find_model
    from plm_embed.models.weights import TENSORS, Manifest, Source, Stored

    known, path = find_model(model), Path(folder) / TENSORS
    tensors = RandomTensors(known, torch.device(device), torch.float16)
    path.parent.mkdir(parents=True)
    weights.write(path, {name: Stored.of(tensors[name].cpu()) for name in tensors})
    manifest = Manifest.of(
        known,
        Source("fair-esm" if known.url else "tensors", ""),
        token_dropout=bool(known.url),
        weights_sha256=sha256_file(path),
        bytes=path.stat().st_size,
    )
    seal(path.parent, manifest)
    return {"bytes": manifest.bytes}


def places(folder: str, device: str, dtype: str) -> dict[str, Any]:
    """In how many places of two slices of rows a sequence has other bits than alone."""
    import torch

    from plm_embed.kernels import devices
    from plm_embed.models import weights
    from plm_embed.models.engine import Engine, pack

    chosen = torch.device(device)
    devices.set_up(chosen, torch.get_num_threads(), dtype)  # type: ignore[arg-type]
    manifest, tensors, _ = weights.load(Path(folder))
    engine = Engine(manifest.as_model, tensors, chosen, dtype)  # type: ignore[arg-type]
    letters = engine.model.family.alphabet.letters
    tokens = engine.tokenize((letters * PLACE)[: PLACE - 2])

    def states(count: int) -> tuple[torch.Tensor, ...]:
        batch = pack([tokens] * count, engine.model.family, engine.rows)
        return batch.split(engine.forward(batch, [manifest.layers])[manifest.layers])

    alone = states(1)[0]
    everywhere = states(2 * engine.rows // len(tokens))
    different = sum(not torch.equal(place, alone) for place in everywhere)
    return {"all": len(everywhere), "different": different}


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "device": device,
    "weights": weights,
    "places": places,
}

if __name__ == "__main__":
    print(json.dumps(STEPS[sys.argv[1]](**json.loads(sys.argv[2]))))
