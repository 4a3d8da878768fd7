"""The tiny models of the families' golden sets. Nothing here needs torch."""

from dataclasses import replace

from plm_embed.models import registry
from plm_embed.models.encoder.description import Learned
from plm_embed.models.families.dnabert import DNABERT
from plm_embed.models.families.esmc import ESMC
from plm_embed.models.families.nt import NT_V1, NT_V2
from plm_embed.models.families.protbert import PROTBERT
from plm_embed.models.families.t5 import ANKH, PROSTT5, PROSTT5_3DI, PROTT5
from plm_embed.models.model import Model

# ProtBERT's tiny model has a shorter table of positions than the published ones, DNABERT's fewer
# tokens
_SHORT = replace(PROTBERT, encoder=replace(PROTBERT.encoder, positions=Learned(2200)))
_FEW = replace(DNABERT, encoder=replace(DNABERT.encoder, rows=256))
TINY = {
    "esmc": Model("esmc_tiny", ESMC, 3, 32, 2, ffn_dim=256),
    "prott5": Model("prott5_tiny", PROTT5, 3, 32, 2, attention_dim=48, ffn_dim=96),
    "prostt5": Model("prostt5_tiny", PROSTT5, 3, 32, 2, attention_dim=48, ffn_dim=96),
    "prostt5_3di": Model("prostt5_3di_tiny", PROSTT5_3DI, 3, 32, 2, attention_dim=48, ffn_dim=96),
    "ankh": Model("ankh_tiny", ANKH, 3, 32, 2, ffn_dim=96),
    "protbert": Model("protbert_tiny", _SHORT, 3, 32, 2, ffn_dim=64),
    "dnabert": Model("dnabert_tiny", _FEW, 3, 48, 12, ffn_dim=96),
    "nt_v1": Model("nt_v1_tiny", NT_V1, 3, 16, 2, ffn_dim=32),
    "nt_v2": Model("nt_v2_tiny", NT_V2, 3, 16, 2, ffn_dim=32),
}


def register() -> None:
    """Let this process know them like the published ones."""
    for model in TINY.values():
        registry.MODELS[model.name] = registry._BY_NAME[model.name] = model
