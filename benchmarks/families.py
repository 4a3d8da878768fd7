"""Families at their real width against the public implementation: the same vectors, and how fast.

Each model has random weights, is made by transformers' class, written in the layout that is
published, and prepared as a user's weights are. Interleaved runs of one thread on this machine's
CPU, by processor time; the peer runs in length-sorted padded batches of the token budget that is
its best here. With transformers in an environment of its own:

    PYTHONPATH=workflow/src python benchmarks/families.py --layers 2 --runs 5

DNABERT is no part of transformers: its authors' bert_layers.py, bert_padding.py and
configuration_bert.py, without their Triton file, lie in a folder `dnabert` in the one that
--authors names. Nor is version 2 of the Nucleotide Transformer: its peer is transformers' EsmModel
with the gated feed-forward of its authors' layers.py.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from zlib import crc32

import click
import numpy as np
import peers
import torch
from engine import ROOT, chosen, matrix_rate, version
from public_models import PEERS, Peer
from tokenizers import Tokenizer
from tokenizers.trainers import BpeTrainer
from torch import nn

from plm_embed.inference.weights import prepare
from plm_embed.kernels.devices import device_name
from plm_embed.models import weights
from plm_embed.models.engine import Engine
from plm_embed.models.families import nt
from plm_embed.models.registry import Model, find_model

CPU = torch.device("cpu")
BUDGETS = (512, 1024, 2048, 4096)
TOKENIZER = ROOT / "tests" / "data" / "golden_families" / "dnabert2" / "tokenizer.json"


def randomize(module: nn.Module) -> None:
    """Weights under which attention is far from flat and every layer changes what it is given."""
    for name, values in module.state_dict().items():
        if name.endswith("inv_freq"):  # no weight, though it lies among them
            continue
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


def write_tokenizer(model: Model, folder: Path) -> None:
    """The words of the Nucleotide Transformer, or the structure of DNABERT's tokenizer with as
    many tokens of random DNA.
    """
    path, rows = folder / model.family.tokenizer.file, model.family.encoder.rows
    if path.suffix == ".txt":
        words = [*map("".join, product(nt.BASES, repeat=nt.K)), *nt.SINGLE]
        special = ["<unk>", "<pad>", "<mask>", "<cls>", "<eos>", "<bos>"][: rows - len(words)]
        path.write_text("\n".join([*special, *words]))
        return
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
    random, each = np.random.default_rng(7), model.family.letters_per_token
    return ["".join(random.choice(list("ACGT"), each * len(protein))) for protein in proteins]


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
            write_tokenizer(model, published)
        prepare(model, published, Path(folder, "prepared"))
        manifest, tensors, _ = weights.load(Path(folder, "prepared"))
        made = {
            dtype: Engine(manifest.as_model, tensors, CPU, dtype)  # type: ignore[arg-type]
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
@click.option("--authors", type=click.Path(path_type=Path), help="Folder of authors' own code.")
@click.option("--output", type=click.Path(path_type=Path))
def main(
    *,
    names: tuple[str, ...],
    layers: int,
    count: int,
    runs: int,
    authors: Path | None,
    output: Path | None,
) -> None:
    torch.set_num_threads(1)
    if authors:
        sys.path.append(str(authors))
    rows = []
    for peer in PEERS:
        if (names and peer.model not in names) or (peer.own_code and not authors):
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
