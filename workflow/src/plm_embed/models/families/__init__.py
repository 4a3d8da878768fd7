"""The families by name, each in a module of its own."""

from plm_embed.models.families.amplify import AMPLIFY
from plm_embed.models.families.dnabert import DNABERT
from plm_embed.models.families.esm import ESM1B, ESM1V, ESM2, SAPROT
from plm_embed.models.families.esmc import ESMC
from plm_embed.models.families.nt import NT_V1, NT_V2
from plm_embed.models.families.protbert import PROTBERT
from plm_embed.models.families.t5 import ANKH, PROSTT5, PROSTT5_3DI, PROTT5

FAMILIES = {
    family.name: family
    for family in (
        *(ESM2, ESM1B, ESM1V, SAPROT, ESMC, PROTT5, PROSTT5, PROSTT5_3DI, PROTBERT, ANKH, AMPLIFY),
        *(DNABERT, NT_V1, NT_V2),
    )
}
