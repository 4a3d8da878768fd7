"""The tiny models of the families' golden sets. Nothing here needs torch."""

from dataclasses import replace

from plm_embed.models import registry
from plm_embed.models.family import Family, Learned
from plm_embed.models.registry import MODELS, Model


def tiny(name: str, like: str, family: Family | None = None, **sizes: int) -> Model:
    """A model of the family of a published one, which is published nowhere."""
    model = replace(MODELS[like], name=name, hub="", files=(), sharded=False, sha256=(), aliases=())
    shape = {"layers": 3, "dim": 32, "heads": 2, "attention_dim": 0, "ffn_dim": 0} | sizes
    return replace(model, family=family or model.family, **shape)  # type: ignore[arg-type]


# ProtBERT's tiny model has a shorter table of positions than the published ones, DNABERT's fewer
# tokens
_BERT, _DNABERT = MODELS["prot_bert"].family, MODELS["DNABERT-S"].family
_SHORT = replace(_BERT, encoder=replace(_BERT.encoder, positions=Learned(2200)))
_FEW = replace(_DNABERT, encoder=replace(_DNABERT.encoder, rows=256))
_T5 = {"attention_dim": 48, "ffn_dim": 96}
_NT = {"dim": 16, "ffn_dim": 32}
TINY = {
    "esmc": tiny("esmc_tiny", "esmc_300m", ffn_dim=256),
    "prott5": tiny("prott5_tiny", "prot_t5_xl_uniref50", **_T5),
    "prostt5": tiny("prostt5_tiny", "ProstT5", **_T5),
    "prostt5_3di": tiny("prostt5_3di_tiny", "ProstT5-3Di", **_T5),
    "ankh": tiny("ankh_tiny", "ankh-base", ffn_dim=96),
    "protbert": tiny("protbert_tiny", "prot_bert", _SHORT, ffn_dim=64),
    "saprot": tiny("saprot_tiny", "SaProt_35M_AF2"),
    "amplify": tiny("amplify_tiny", "AMPLIFY_120M", ffn_dim=88),
    "dnabert": tiny("dnabert_tiny", "DNABERT-S", _FEW, dim=48, heads=12, ffn_dim=96),
    "nt_v1": tiny("nt_v1_tiny", "nucleotide-transformer-500m-1000g", **_NT),
    "nt_v2": tiny("nt_v2_tiny", "nucleotide-transformer-v2-50m-multi-species", **_NT),
}


def register() -> None:
    """Let this process know them like the published ones."""
    for model in TINY.values():
        registry.MODELS[model.name] = registry._BY_NAME[model.name] = model
