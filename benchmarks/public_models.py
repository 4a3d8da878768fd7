"""The public implementations of the families, with random weights: transformers' classes, and their
authors' own files where transformers has none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from plm_embed.models.families.nt import MAX_TOKENS
from plm_embed.models.family import Learned
from plm_embed.models.registry import Model


@dataclass(frozen=True)
class Peer:
    """The public implementation of a model."""

    model: str
    make: Callable[[Model], nn.Module]
    pad: int
    own_code: bool = False
    """True for its authors' file, False for transformers'."""


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
    from dnabert.bert_layers import BertModel
    from dnabert.configuration_bert import BertConfig

    config = BertConfig(
        vocab_size=model.family.encoder.rows,
        hidden_size=model.dim,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        intermediate_size=model.hidden,
        layer_norm_eps=1e-12,
    )
    return _made(BertModel, config)


class _Gated(nn.Module):
    """The first half of a feed-forward whose one matrix has two, the activated one first."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dense = nn.Linear(model.dim, 2 * model.hidden, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = self.dense(hidden).chunk(2, -1)
        return functional.silu(gate) * up


def _nt(model: Model) -> nn.Module:
    from transformers import EsmConfig, EsmModel

    encoder = model.family.encoder
    learned = isinstance(encoder.positions, Learned)
    made = _made(
        EsmModel,
        EsmConfig(
            vocab_size=encoder.rows,
            hidden_size=model.dim,
            num_hidden_layers=model.layers,
            num_attention_heads=model.heads,
            intermediate_size=model.hidden,
            max_position_embeddings=MAX_TOKENS + 2,
            position_embedding_type="absolute" if learned else "rotary",
            layer_norm_eps=1e-12,
            emb_layer_norm_before=False,
            token_dropout=False,
            pad_token_id=1,
            mask_token_id=2,
        ),
    )
    for layer in made.encoder.layer if encoder.gated else ():  # type: ignore[union-attr]
        layer.intermediate = _Gated(model)
        layer.output.dense = nn.Linear(model.hidden, model.dim, bias=False)
    return made


PEERS = (
    Peer("esmc_300m", _esmc, 1),
    Peer("esmc_600m", _esmc, 1),
    Peer("prot_t5_xl_half_uniref50-enc", _t5, 0),
    Peer("prot_bert", _bert, 0),
    Peer("ankh-base", _t5, 0),
    Peer("ankh-large", _t5, 0),
    Peer("DNABERT-S", _mosaic, 3, own_code=True),
    Peer("DNABERT-2-117M", _mosaic, 3, own_code=True),
    Peer("nucleotide-transformer-500m-human-ref", _nt, 1),
    Peer("nucleotide-transformer-v2-500m-multi-species", _nt, 1),
)
