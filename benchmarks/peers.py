"""Models with random weights and ways to run sequences through them: ours, fair-esm's,
transformers', FAESM's, esm-cpp's.

All are given the same tensors. Each way returns the mean vectors and how many tokens it computed,
padding included.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Literal
from zlib import crc32

import numpy as np
import torch

from plm_embed.fingerprint import ComputeDtype, Fingerprint, LongSequences
from plm_embed.inference.loading import Room
from plm_embed.inference.vector_stream import VectorStream
from plm_embed.models.checkpoints import tensor_shapes
from plm_embed.models.engine import TOKENS, Engine
from plm_embed.models.layers import DTYPES
from plm_embed.models.registry import Model
from plm_embed.planning.costs import flops_per_token

Run = Callable[[list[str]], tuple[np.ndarray, int]]
RESIDUES = "LAGVSERTIDPKQNFYMHWC"


class RandomTensors(Mapping[str, torch.Tensor]):
    """Weights of a model's shape, made on the device when they are asked for; the same at every
    call.

    Attention is far from flat and every layer changes what it is given, so that errors show as in a
    trained model.
    """

    def __init__(
        self, model: Model, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self._shapes = tensor_shapes(model)
        self._device, self._dtype = device, dtype
        scaled = model.family.encoder.scaled_scores
        self._query = 1.0 if scaled else (model.inner // model.heads) ** -0.5

    def __getitem__(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        random = torch.Generator(self._device).manual_seed(crc32(name.encode()))
        values = torch.randn(shape, generator=random, device=self._device)
        if "layer_norm" in name:
            values = 1 + 0.2 * values if name.endswith("weight") else 0.1 * values
        elif name.endswith("bias"):
            values = 0.1 * values
        elif name.startswith("embed_"):
            values = 0.5 * values
        else:
            values *= ((1.5 if "q_proj" in name or "k_proj" in name else 0.5) / shape[1]) ** 0.5
            if "q_proj" in name:  # where the model does not scale the scores, its weights do
                values *= self._query
        return values.to(self._dtype)

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def engine(
    model: Model, tensors: Mapping[str, torch.Tensor], device: torch.device, dtype: ComputeDtype
) -> Engine:
    encoder = replace(model.family.encoder, token_dropout=bool(model.url))
    model = replace(model, family=replace(model.family, encoder=encoder))
    return Engine(model, tensors, device, dtype)


def ours(made: Engine, budget: int = 0) -> Run:
    """Packed, longest first: as the embed job does it."""
    layer = made.model.layers
    fingerprint = Fingerprint(
        "", "", (layer,), ("mean",), LongSequences(), made.precision, "float32", ""
    )

    def run(sequences: list[str]) -> tuple[np.ndarray, int]:
        room = Room(made, budget or TOKENS[made.device.type])
        means = np.empty((len(sequences), made.model.dim), dtype=np.float32)
        computed = 0
        for step in VectorStream(room, fingerprint, sequences).run():
            computed += -(-step.tokens // made.rows) * made.rows
            for i, vectors in step.finished:
                means[i] = vectors[f"mean_l{layer}"]
        return means, computed

    return run


def fair_esm(
    model: Model, tensors: Mapping[str, torch.Tensor], device: torch.device, dtype: str, budget: int
) -> Run:
    """The loop of fair-esm's scripts/extract.py: length-sorted token budget, padded, language-model
    head included.
    """
    import esm

    with device:  # where it is filled with what is then replaced
        whole = esm.ESM2(model.layers, model.dim, model.heads)
    whole.load_state_dict({name: tensors[name] for name in tensors}, strict=False)
    whole = whole.eval().to(device, DTYPES[dtype])  # type: ignore[index]

    def run(sequences: list[str]) -> tuple[np.ndarray, int]:
        data = esm.FastaBatchedDataset([str(i) for i in range(len(sequences))], sequences)
        found = np.empty((len(sequences), model.dim), dtype=np.float32)
        convert, computed = whole.alphabet.get_batch_converter(), 0
        with torch.no_grad():
            for at in data.get_batch_indices(budget, extra_toks_per_seq=1):
                labels, strings, tokens = convert([data[i] for i in at])
                computed += tokens.numel()
                states = whole(tokens.to(device), repr_layers=[model.layers])["representations"][
                    model.layers
                ]
                for label, string, hidden in zip(
                    labels, strings, states.float().cpu(), strict=True
                ):
                    found[int(label)] = hidden[1 : len(string) + 1].mean(0).numpy()
        return found, computed

    return run


def esm_config(model: Model, **more: Any) -> Any:
    """Return the configuration of an ESM-2 model, as it is published."""
    from transformers import EsmConfig

    return EsmConfig(
        vocab_size=33,
        hidden_size=model.dim,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        intermediate_size=4 * model.dim,
        position_embedding_type="rotary",
        token_dropout=True,
        pad_token_id=1,
        mask_token_id=32,
        max_position_embeddings=1026,
        emb_layer_norm_before=False,
        layer_norm_eps=1e-5,
        **more,
    )


def hugging_face(  # noqa: PLR0917
    model: Model,
    tensors: Mapping[str, torch.Tensor],
    device: torch.device,
    dtype: str,
    budget: int | None,
    package: Literal["transformers", "faesm"] = "transformers",
) -> Run:
    """transformers' EsmModel with scaled-dot-product attention, or FAESM's form of it with what
    that finds installed.

    Length-sorted batches of `budget` tokens, padded; without one 8 sequences at a time as they
    come, which is what the examples do.
    """
    if package == "transformers":
        from transformers import EsmModel as Whole
    else:
        from faesm.esm import FAEsmModel as Whole
    config = esm_config(
        model,
        attn_implementation="sdpa" if package == "transformers" else "eager",
        use_fa=find_spec("flash_attn") is not None,
    )
    with device:
        whole = Whole(config, add_pooling_layer=False)
    common = {name: model.family.names.engine_names(name) for name in whole.state_dict()}
    state = {name: tensors[ours[0]] for name, ours in common.items() if {*ours} & {*tensors}}
    missing = whole.load_state_dict(state, strict=False).missing_keys
    unused = "inv_freq", "contact_head", "position_embeddings"
    assert all(any(part in name for part in unused) for name in missing), missing
    whole = whole.eval().to(device, DTYPES[dtype])  # type: ignore[index]

    def run(sequences: list[str]) -> tuple[np.ndarray, int]:
        from plm_embed.models.families.esm import VOCABULARY

        tokenize = VOCABULARY.within({}).tokenize
        order = list(range(len(sequences)))
        if budget is not None:
            order.sort(key=lambda i: -len(sequences[i]))
        found = np.empty((len(sequences), model.dim), dtype=np.float32)
        computed = 0
        with torch.inference_mode():
            while order:
                longest = len(sequences[order[0]]) + 2
                count = 8 if budget is None else max(1, budget // longest)
                at, order = order[:count], order[count:]
                longest = max(len(sequences[i]) + 2 for i in at)
                tokens = np.full((len(at), longest), 1, dtype=np.int64)
                for row, i in enumerate(at):
                    tokens[row, : len(sequences[i]) + 2] = tokenize(sequences[i])
                computed += tokens.size
                inputs = torch.from_numpy(tokens).to(device)
                mask = (inputs != 1).long()
                hidden = whole(input_ids=inputs, attention_mask=mask).last_hidden_state
                residues = mask.clone()
                residues[:, 0] = 0
                ends = mask.sum(1) - 1
                residues[torch.arange(len(at), device=device), ends] = 0
                sums = (hidden.float() * residues[:, :, None]).sum(1) / residues.sum(1)[:, None]
                found[at] = sums.cpu().numpy()
        return found, computed

    return run


def esm_cpp(
    model: Model, tensors: Mapping[str, torch.Tensor], dtype: str, calibration: list[str]
) -> Run:
    """esm-cpp, in float32 or with its 8-bit products, whose scales are set by `calibration`: one
    sequence at a time, since its batches return logits alone.
    """
    from esm_cpp import ActivationObserver, Tokenizer
    from esm_cpp import Model as Whole
    from safetensors.torch import save_file
    from transformers import EsmForMaskedLM

    config = esm_config(model)
    state = EsmForMaskedLM(config).state_dict()
    for name in state:
        ours = model.family.names.engine_names(name.removeprefix("esm."))
        if {*ours} & {*tensors}:
            state[name] = tensors[ours[0]]
    width = model.dim // model.heads
    for layer in range(model.layers):  # as the published files have them
        name = f"esm.encoder.layer.{layer}.attention.self.rotary_embeddings.inv_freq"
        state[name] = 1.0 / 10000 ** (torch.arange(0, width, 2).float() / width)
    os.environ["ESM_NUM_THREADS"] = str(torch.get_num_threads())  # read when the first is loaded
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        path = f"{folder}/model.safetensors"
        save_file({name: values.contiguous().clone() for name, values in state.items()}, path)
        whole, tokenizer = Whole.load_from_safetensors(path), Tokenizer()

    def encode(sequence: str) -> np.ndarray:
        return np.array(tokenizer.encode(sequence, truncate=False), dtype=np.int32)

    if dtype == "int8":
        observer = ActivationObserver()
        for sequence in calibration:
            whole.forward_with_observer(encode(sequence), None, observer)
        whole.apply_smoothquant(observer.percentile(99.9), 0.5)  # its own program's defaults
        whole.quantize_weights()

    def run(sequences: list[str]) -> tuple[np.ndarray, int]:
        means = np.empty((len(sequences), model.dim), dtype=np.float32)
        for i, sequence in enumerate(sequences):
            _, states = whole.forward_with_hidden_states(encode(sequence))
            means[i] = states[-1].reshape(-1, model.dim)[1:-1].mean(0)
        return means, sum(len(sequence) + 2 for sequence in sequences)

    return run


def flops(model: Model, lengths: list[int]) -> float:
    """Floating-point operations of sequences of these residues: what is useful, no padding."""
    return sum(n * flops_per_token(model, n) for n in (length + 2 for length in lengths))


def agreement(found: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Worst and median cosine of vectors to exact ones, worst absolute difference."""
    found, exact = found.astype(np.float64), exact.astype(np.float64)
    cosine = (found * exact).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(exact, axis=1)
    return {
        "worst_cosine": float(cosine.min()),
        "median_cosine": float(np.median(cosine)),
        "worst_difference": float(np.abs(found - exact).max()),
    }
