"""The table of models by their published names and aliases."""

from dataclasses import replace

from plm_embed.errors import ConfigError, WeightsError
from plm_embed.models.families.dnabert import DNABERT
from plm_embed.models.families.esm.family import ESM1B, ESM1V, ESM2
from plm_embed.models.families.esmc import ESMC
from plm_embed.models.families.nt import NT_V1, NT_V2
from plm_embed.models.families.protbert import PROTBERT
from plm_embed.models.families.t5 import ANKH, PROSTT5, PROSTT5_3DI, PROTT5
from plm_embed.models.family import Family
from plm_embed.models.model import Model
from plm_embed.wording import did_you_mean

FAMILIES = (
    *(ESM2, ESM1B, ESM1V, ESMC, PROTT5, PROSTT5, PROSTT5_3DI, PROTBERT, ANKH),
    *(DNABERT, NT_V1, NT_V2),
)


def _published(name: str, family: Family, layers: int, dim: int, heads: int, *short: str) -> Model:
    return Model(
        name=name,
        family=family,
        layers=layers,
        dim=dim,
        heads=heads,
        urls=(f"https://dl.fbaipublicfiles.com/fair-esm/models/{name}.pt",),
        aliases=(f"facebook/{name}", *short),
    )


def _esm2(layers: int, size: str, dim: int, heads: int) -> Model:
    short = (f"esm2_{size}", f"esm2-{size}", f"esm2_t{layers}", f"esm2_t{layers}_{size}", size)
    return _published(f"esm2_t{layers}_{size}_UR50D", ESM2, layers, dim, heads, *short)


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        # config/demo: for trying things out
        Model("esm2_t3_untrained", ESM2, 3, 32, 2, trained=False),
        # name or size, layers, dim, heads
        _esm2(6, "8M", 320, 20),
        _esm2(12, "35M", 480, 20),
        _esm2(30, "150M", 640, 20),
        _esm2(33, "650M", 1280, 20),
        _esm2(36, "3B", 2560, 40),
        _esm2(48, "15B", 5120, 40),
        _published("esm1b_t33_650M_UR50S", ESM1B, 33, 1280, 20, "esm1b", "esm-1b"),
        *(
            _published(
                f"esm1v_t33_650M_UR90S_{k}",
                ESM1V,
                33,
                1280,
                20,
                f"esm1v_{k}",
                f"esm1v-{k}",
                f"esm-1v-{k}",
            )
            for k in range(1, 6)
        ),
    )
}


def _add(*models: Model) -> None:
    MODELS.update({model.name: model for model in models})


_add(
    *(
        Model(
            f"esmc_{size.lower()}",
            ESMC,
            layers,
            dim,
            heads,
            hub=f"https://huggingface.co/biohub/ESMC-{size}/resolve/{revision}",
            files=("config.json", "model.safetensors"),
            aliases=(f"biohub/ESMC-{size}", f"esmc-{size.lower()}", f"esmc_{size.lower()}_2024_12"),
            own_license=f"MIT (files of Biohub); files of EvolutionaryScale, 2024: {earlier}",
            ffn_dim=ffn_dim,
        )
        for size, layers, dim, heads, ffn_dim, revision, earlier in (
            (
                "300M", 30, 960, 15, 2560, "a59b831785f907e96e6a246b1d142bfb76df31ee",
                "Cambrian Open License",
            ),
            (
                "600M", 36, 1152, 18, 3072, "a7e82012c83126b9eedb055fea9fa84b6c02f094",
                "Cambrian Non-Commercial License: for non-commercial use only",
            ),
        )
    )
)  # fmt: skip


def _hub(
    model: Model,
    repository: str,
    *short: str,
    revision: str = "main",
    tensors: str = "pytorch_model.bin",
) -> Model:
    """A model in a repository of the Hugging Face hub. Without the name of one file of `tensors`
    they are in several.
    """
    return replace(
        model,
        sharded=not tensors,
        hub=f"https://huggingface.co/{repository}/resolve/{revision}",
        files=tuple(filter(None, ("config.json", model.tokenizer_file, tensors))),
        aliases=(repository, *short),
    )


_T5 = Model("", PROTT5, 24, 1024, 32, attention_dim=4096, ffn_dim=16384)
_BERT = Model("", PROTBERT, 30, 1024, 16)
_add(
    _hub(
        replace(_T5, name="prot_t5_xl_half_uniref50-enc"),
        "Rostlab/prot_t5_xl_half_uniref50-enc",
        "prott5",
        "prott5_half",
    ),
    _hub(replace(_T5, name="prot_t5_xl_uniref50"), "Rostlab/prot_t5_xl_uniref50", "prott5_full"),
    _hub(replace(_T5, name="ProstT5", family=PROSTT5), "Rostlab/ProstT5"),
    replace(
        _hub(replace(_T5, family=PROSTT5_3DI), "Rostlab/ProstT5"),
        name="ProstT5-3Di",
        aliases=("prostt5_3di",),
    ),
    _hub(replace(_T5, name="ProstT5_fp16", family=PROSTT5), "Rostlab/ProstT5_fp16"),
    _hub(replace(_BERT, name="prot_bert"), "Rostlab/prot_bert", "protbert"),
    _hub(replace(_BERT, name="prot_bert_bfd"), "Rostlab/prot_bert_bfd", "protbert_bfd"),
    _hub(
        Model("ankh-base", ANKH, 48, 768, 12),
        "ElnaggarLab/ankh-base",
        "ankh_base",
        revision="d99cb6b966530dfc2ae96bc69d9255c2a07308b0",
    ),
    _hub(
        Model("ankh-large", ANKH, 48, 1536, 16, attention_dim=1024, ffn_dim=3840),
        "ElnaggarLab/ankh-large",
        "ankh_large",
        revision="74b371dbfa3ee0a05d32ae74df0c2e0b82d6b9a6",
    ),
)

_DNABERT = Model("", DNABERT, 12, 768, 12)
_add(
    _hub(replace(_DNABERT, name="DNABERT-2-117M"), "zhihan1996/DNABERT-2-117M", "dnabert2"),
    _hub(
        replace(_DNABERT, name="DNABERT-S", own_license="its publisher names none"),
        "zhihan1996/DNABERT-S",
        "dnaberts",
    ),
)
_add(
    *(
        _hub(
            Model(f"nucleotide-transformer-{name}", family, layers, dim, heads),
            f"InstaDeepAI/nucleotide-transformer-{name}",
            f"nt-{name}",
            tensors="" if name.startswith("2.5b") else "model.safetensors",
        )
        for name, family, layers, dim, heads in (
            ("v2-50m-multi-species", NT_V2, 12, 512, 16),
            ("v2-100m-multi-species", NT_V2, 22, 512, 16),
            ("v2-250m-multi-species", NT_V2, 24, 768, 16),
            ("v2-500m-multi-species", NT_V2, 29, 1024, 16),
            ("500m-human-ref", NT_V1, 24, 1280, 20),
            ("500m-1000g", NT_V1, 24, 1280, 20),
            ("2.5b-1000g", NT_V1, 32, 2560, 20),
            ("2.5b-multi-species", NT_V1, 32, 2560, 20),
        )
    ),
)

_SPELLED = {
    name.lower(): (name, model)
    for model in MODELS.values()
    for name in (model.name, *model.aliases)
}
_BY_NAME = {name: model for name, (_, model) in _SPELLED.items()}


def find_model(name: str) -> Model:
    """The model of a published name, `facebook/...` or a short alias such as `esm2_650m`, in any
    case.

    Raises ConfigError with the nearest names when there is none.
    """
    wanted = str(name).strip().lower()
    model = _BY_NAME.get(wanted)
    if model is None:
        nearest: dict[str, str] = {}  # of each model the name that is most like the one given

        def called(word: str) -> str:
            spelled, found = _SPELLED[word]
            published = spelled == found.name or "/" in spelled
            return nearest.setdefault(found.name, spelled if published else word)

        hint = did_you_mean(wanted, _BY_NAME, 3, called)
        raise ConfigError(
            f"model: {name!r} is not known{hint}\ndocs/models.md lists all models", key="model"
        )
    return model


def tokens(name: str, residues: int, sequences: int) -> int:
    """Tokens of a model's sequences, for estimates: as many as residues for an unknown one, whose
    results may be of another version.
    """
    model = MODELS.get(name)
    return model.family.tokens(residues, sequences) if model else residues


def family_of(architecture: str) -> Family:
    """The family that computes models of an architecture; of those that share it, the first."""
    for family in FAMILIES:
        if family.architecture == architecture:
            return family
    raise WeightsError(f"architecture {architecture!r} is not known to this version of plm-embed")
