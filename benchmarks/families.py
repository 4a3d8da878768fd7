"""Families at their real width against the public implementation: the same vectors, and how fast.

Each model has random weights, is made by transformers' class, written in the layout that is
published, and prepared as a user's weights are. Interleaved runs of one thread on this machine's
CPU, by processor time; the peer runs in length-sorted padded batches of the token budget that is
its best here. With transformers in an environment of its own:

    PYTHONPATH=workflow/src python benchmarks/families.py --layers 2 --runs 5

DNABERT is no part of transformers: its authors' bert_layers.py, bert_padding.py and
configuration_bert.py, without their Triton file, lie in the folder that --dnabert names.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import click
import numpy as np
import peers
import torch
from engine import ROOT, chosen, matrix_rate, version
from tokenizers import Tokenizer
from tokenizers.trainers import BpeTrainer
from torch import nn

from plm_embed.inference.prepare_weights import prepare
from plm_embed.kernels.devices import device_name
from plm_embed.models import weights
from plm_embed.models.registry import Model, find_model

CPU = torch.device("cpu")
BUDGETS = (512, 1024, 2048, 4096)
TOKENIZER = ROOT / "tests" / "data" / "golden_families" / "dnabert2" / "tokenizer.json"


@dataclass(frozen=True)
class Peer:
    """The public implementation of a model."""

    model: str
    make: Callable[[Model], nn.Module]
    pad: int


def _made(kind: type[Any], config: Any) -> nn.Module:
    """A model with scaled-dot-product attention, where its class has that."""
    config.architectures = [kind.__name__]
    try:
        config._attn_implementation = "sdpa"
        made: nn.Module = kind(config)
    except ValueError:
        config._attn_implementation = "eager"
        made = kind(config)
    return made


def _esmc(model: Model) -> nn.Module:
    from transformers import EsmcConfig, EsmcModel

    return _made(
        EsmcModel,
        EsmcConfig(
            hidden_size=model.dim,
            num_hidden_layers=model.layers,
            num_attention_heads=model.heads,
            num_key_value_heads=model.heads,
            head_dim=model.dim // model.heads,
            intermediate_size=model.hidden,
        ),
    )


def _t5(model: Model) -> nn.Module:
    from transformers import T5Config, T5EncoderModel

    encoder = model.family.encoder
    return _made(
        T5EncoderModel,
        T5Config(
            vocab_size=encoder.rows,
            d_model=model.dim,
            num_layers=model.layers,
            num_heads=model.heads,
            d_kv=model.inner // model.heads,
            d_ff=model.hidden,
            relative_attention_num_buckets=encoder.positions.count,  # type: ignore[union-attr]
            feed_forward_proj="gated-gelu" if encoder.gated else "relu",
            is_encoder_decoder=False,
            use_cache=False,
        ),
    )


def _bert(model: Model) -> nn.Module:
    from transformers import BertConfig, BertModel

    return _made(
        BertModel,
        BertConfig(
            vocab_size=model.family.encoder.rows,
            hidden_size=model.dim,
            num_hidden_layers=model.layers,
            num_attention_heads=model.heads,
            intermediate_size=model.hidden,
            max_position_embeddings=40_000,
        ),
    )


def _mosaic(model: Model) -> nn.Module:
    from bert_layers import BertModel
    from configuration_bert import BertConfig

    config = BertConfig(
        vocab_size=model.family.encoder.rows,
        hidden_size=model.dim,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        intermediate_size=model.hidden,
        layer_norm_eps=1e-12,
    )
    return _made(BertModel, config)


PEERS = (
    Peer("esmc_300m", _esmc, 1),
    Peer("esmc_600m", _esmc, 1),
    Peer("prot_t5_xl_half_uniref50-enc", _t5, 0),
    Peer("prot_bert", _bert, 0),
    Peer("ankh-base", _t5, 0),
    Peer("ankh-large", _t5, 0),
    Peer("DNABERT-S", _mosaic, 3),
)


def randomize(module: nn.Module) -> None:
    """Weights under which attention is far from flat and every layer changes what it is given."""
    for name, values in module.state_dict().items():
        random = torch.Generator().manual_seed(crc32(name.encode()))
        drawn = torch.randn(values.shape, generator=random)
        if values.ndim == 1:
            drawn = 1 + 0.2 * drawn if name.endswith("weight") else 0.1 * drawn
        elif "embed" in name or "shared" in name or "relative" in name:
            drawn *= 0.5
        else:
            drawn *= (0.7 / values.shape[1]) ** 0.5
        values.copy_(drawn)


def write(module: nn.Module, folder: Path) -> Path:
    """The checkpoint as it is published."""
    folder.mkdir()
    module.config.save_pretrained(folder)  # type: ignore[operator, union-attr]
    state = {name: values.clone() for name, values in module.state_dict().items()}
    torch.save(state, folder / "pytorch_model.bin")
    return folder


def write_tokenizer(rows: int, path: Path) -> None:
    """The structure of DNABERT's tokenizer, with `rows` tokens of random DNA."""
    random = np.random.default_rng(7)
    corpus = ("".join(random.choice(list("ACGT"), 1000)) for _ in range(400))
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    made = Tokenizer.from_file(str(TOKENIZER))
    made.train_from_iterator(
        corpus, BpeTrainer(vocab_size=rows, special_tokens=special, show_progress=False)
    )
    made.save(str(path))


def sample(model: Model, count: int) -> list[str]:
    """Real proteins, or random DNA that has about as many tokens."""
    proteins = chosen("real", count)
    if not model.family.alphabet.complements:
        return proteins
    random = np.random.default_rng(7)
    return ["".join(random.choice(list("ACGT"), 4 * len(protein))) for protein in proteins]


def public(peer: Peer, module: nn.Module, tokens: Mapping[str, np.ndarray], model: Model,
           budget: int) -> peers.Run:  # fmt: skip
    """Padded batches of at most `budget` tokens, longest first; means over the residues."""

    def run(sequences: list[str]) -> tuple[np.ndarray, int]:
        order = sorted(range(len(sequences)), key=lambda i: -len(tokens[sequences[i]]))
        found = np.empty((len(sequences), model.dim), dtype=np.float32)
        computed = 0
        with torch.inference_mode():
            while order:
                longest = len(tokens[sequences[order[0]]])
                count = max(1, budget // longest)
                at, order = order[:count], order[count:]
                ids = torch.full((len(at), longest), peer.pad)
                mask, pooled = torch.zeros_like(ids), torch.zeros_like(ids)
                for row, i in enumerate(at):
                    mine = tokens[sequences[i]]
                    ids[row, : len(mine)] = torch.from_numpy(mine.astype(np.int64))
                    mask[row, : len(mine)] = 1
                    pooled[row, slice(*model.family.residues(len(mine)))] = 1
                hidden = module(input_ids=ids, attention_mask=mask)[0]
                sums = (hidden * pooled[:, :, None]).sum(1) / pooled.sum(1)[:, None]
                found[at] = sums.numpy()
                computed += ids.numel()
        return found, computed

    return run


def timed(run: peers.Run, sequences: list[str]) -> float:
    began = time.process_time()
    run(sequences)
    return time.process_time() - began


def compare(peer: Peer, layers: int, count: int, runs: int) -> dict[str, Any]:
    """One family's row."""
    model = replace(find_model(peer.model), layers=layers, hub="", files=())
    torch.manual_seed(0)
    module = peer.make(model).eval()
    randomize(module)
    sequences = sample(model, count)
    with tempfile.TemporaryDirectory() as folder:
        published = write(module, Path(folder, "published"))
        if model.family.alphabet.complements:
            write_tokenizer(model.family.encoder.rows, published / "tokenizer.json")
        prepare(model, published, Path(folder, "prepared"))
        manifest, tensors = weights.load(Path(folder, "prepared"))
        made = {
            dtype: model.family.engine(manifest, tensors, CPU, dtype)  # type: ignore[arg-type]
            for dtype in ("float32", "bfloat16")
        }
    tokens = {sequence: made["float32"].tokenize(sequence) for sequence in sequences}
    total = sum(len(ids) for ids in tokens.values())
    ways = {f"plm-embed {dtype}": peers.ours(engine) for dtype, engine in made.items()}
    alone = {budget: public(peer, module, tokens, model, budget) for budget in BUDGETS}
    exact, _ = public(peer, module, tokens, model, 1)(sequences)
    best = min(alone, key=lambda budget: min(timed(alone[budget], sequences) for _ in range(2)))
    ways["peer float32"] = alone[best]
    found = {name: run(sequences)[0] for name, run in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    rate = 0.0
    for _ in range(runs):
        rate = max(rate, matrix_rate(model, torch.float32))
        for name, run in ways.items():
            times[name].append(timed(run, sequences))
    median = {name: statistics.median(each) for name, each in times.items()}
    useful = 2.0 * model.parameters * total
    useful += sum(4 * len(ids) ** 2 * model.inner * layers for ids in tokens.values())
    errors = np.linalg.norm(found["plm-embed float32"] - exact, axis=1)
    return {
        "model": peer.model,
        "attention": module.config._attn_implementation,  # type: ignore[union-attr]
        "peer_budget": best,
        "tokens": total,
        "tokens_per_second": {name: round(total / each) for name, each in median.items()},
        "ratio_float32": round(median["peer float32"] / median["plm-embed float32"], 2),
        "ratio_bfloat16": round(median["peer float32"] / median["plm-embed bfloat16"], 2),
        "share_of_matrix_rate": round(useful / median["plm-embed float32"] / rate, 3),
        "worst_relative_l2": float((errors / np.linalg.norm(exact, axis=1)).max()),
        "bfloat16": peers.agreement(found["plm-embed bfloat16"], exact),
    }


@click.command()
@click.option("--model", "names", multiple=True, help="Only these; all without.")
@click.option("--layers", default=2)
@click.option("--sequences", "count", default=16)
@click.option("--runs", default=5)
@click.option("--dnabert", type=click.Path(path_type=Path), help="Folder of its authors' code.")
@click.option("--output", type=click.Path(path_type=Path))
def main(
    *,
    names: tuple[str, ...],
    layers: int,
    count: int,
    runs: int,
    dnabert: Path | None,
    output: Path | None,
) -> None:
    torch.set_num_threads(1)
    if dnabert:
        sys.path.append(str(dnabert))
    rows = []
    for peer in PEERS:
        if (names and peer.model not in names) or (peer.make is _mosaic and not dnabert):
            continue
        rows.append(compare(peer, layers, count, runs))
        print(json.dumps(rows[-1]), flush=True)
    report = {
        "device": device_name(CPU),
        "layers": layers,
        "runs": runs,
        "load": os.getloadavg(),
        "versions": {package: version(package) for package in ("torch", "transformers")},
        "families": rows,
    }
    if output:
        output.write_text(json.dumps(report, indent=2) + "\n")
    if any(row["worst_relative_l2"] > 1e-5 for row in rows):
        sys.exit("vectors differ by more than 1e-5")


if __name__ == "__main__":
    main()
