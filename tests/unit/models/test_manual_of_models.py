"""The tables of models in the manual say what the registry and the plan say."""

import re
from collections.abc import Iterator
from math import floor, log10
from pathlib import Path

import pytest

from plm_embed.inference.settings import Settings
from plm_embed.models.families import FAMILIES
from plm_embed.models.family import TokenizerFile
from plm_embed.models.registry import MODELS, Model, find_model
from plm_embed.planning import costs

ROOT = Path(__file__).parents[3]
LETTERS = 350
FAMILY_NAMES = {
    **{"esm2": "ESM-2", "esm1b": "ESM-1b", "esm1v": "ESM-1v", "esmc": "ESM C", "saprot": "SaProt"},
    **{"prott5": "ProtT5", "prostt5": "ProstT5", "protbert": "ProtBERT", "ankh": "Ankh"},
    **{"amplify": "AMPLIFY", "dnabert": "DNABERT", "prostt5_3di": "ProstT5-3Di"},
    **dict.fromkeys(("nt_v1", "nt_v2"), "Nucleotide Transformer"),
}


def table(page: str, pattern: str) -> dict[str, tuple[str, ...]]:
    """The cells of each row that begins with a model's name."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return {name: tuple(cells) for name, *cells in re.findall(pattern, text, re.MULTILINE)}


def size(gigabytes: float) -> str:
    return f"{gigabytes:.{2 if gigabytes < 0.1 else 1 if gigabytes < 10 else 0}f}"


def memory(model: Model) -> str:
    return f"{size(model.parameters * 2e-9)}, {size(model.parameters * 4e-9)} GB"


def speed(model: Model) -> str:
    """Sequences per second on an A100, to two digits."""
    work = costs.work(model, {LETTERS: 1}, Settings())
    rate = costs.estimated("A100", model, work, "auto").tokens_per_second / work.tokens
    return f"{round(rate, 1 - floor(log10(rate))):,.0f}"


def names_of_rows() -> Iterator[tuple[list[tuple[str, str]], tuple[str, ...]]]:
    """Yield the names of each row, with their short names or '', and its other cells."""
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    row = r"^\| (`[^|]+) \| (\d+) \| (\d+) \| ([^|]+) \| ([\d,]+) \|$"
    for names, *cells in re.findall(row, text, re.MULTILINE):
        yield re.findall(r"`(\w[\w.-]+)`(?: \(`([\w.-]+)`\))?(?!\))", names), tuple(cells)


def cells_of_families(heading: str) -> dict[str, list[str]]:
    """The cells of the first table below a heading by the names of families in their first."""
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    lines = text.partition(f"\n## {heading}\n\n")[2].partition("\n\n")[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines[2:]]
    return {name: cells for names, *cells in rows for name in names.partition(" (")[0].split(", ")}


def test_the_table_of_licenses_and_longest_sequences() -> None:
    rows = cells_of_families("License and longest sequence")
    rows["ProstT5-3Di"] = rows["ProstT5"]
    assert set(rows) == set(FAMILY_NAMES.values())
    terms = "MIT|AFL-3.0|CC-BY-NC-SA-4.0|Apache-2.0|Cambrian Open|(?:Cambrian )?non-commercial"
    for model in filter(lambda model: model.trained, MODELS.values()):
        longest, license = rows[FAMILY_NAMES[model.family.name]]
        family = model.family
        limits = [f"{most:,} " for most in (family.max_residues, family.max_tokens) if most]
        assert all(limit in longest for limit in limits or ["no limit"]), model.name
        stated = model.license.replace("its publisher names none", "not stated")
        words = re.findall(f"{terms}|not stated", stated, re.IGNORECASE)
        assert words and all(word.lower() in license.lower() for word in words), model.name


def test_the_table_of_tokens() -> None:
    rows = cells_of_families("Tokens")
    assert set(rows) == set(FAMILY_NAMES.values())
    for family in FAMILIES.values():
        rare, special = rows[FAMILY_NAMES[family.name]]
        if family.name == "prott5":
            special = special.partition("; of ProstT5 also ")[0]
        tokens = family.tokenizer
        assert ("before" in special) == bool(tokens.prefix)
        assert ("after" in special) == bool(tokens.suffix)
        if isinstance(tokens, TokenizerFile):
            assert re.findall("`(.+?)`", special) == [*tokens.prefix, *tokens.suffix]
            continue
        fates = {letter: "token" for letter in "UZOB" if letter in tokens.letters}
        fates |= dict.fromkeys(tokens.read_as, "read as X")
        fates |= dict.fromkeys(tokens.unknown_letters, "`<unk>`")
        clauses = [] if rare == "the record is skipped" else rare.split("; ")
        shown = dict[str, str]()
        for clause in clauses:
            letters, fate = re.split(" (?:are|have|has a) ", clause)
            shown |= dict.fromkeys(letters.split(", "), fate.replace("tokens", "token"))
        assert shown == fates, family.name


def test_the_table_of_all_models() -> None:
    shown = {name for name in MODELS if not re.search("untrained|esm1v.*[2-5]$", name)}
    rows = {name: cells for names, cells in names_of_rows() for name, _ in names if name != "_5"}
    expected = {
        model.name: (str(model.layers), str(model.dim), memory(model), speed(model))
        for model in map(find_model, shown)
    }
    differing = dict(expected.items() - rows.items()), sorted(rows.keys() - expected.keys())
    assert rows == expected, (
        "correct the table `Size and speed` in docs/models.md: missing or other rows (model, "
        f"layers, width, memory, speed) {differing[0]}; rows of no model: {differing[1]}"
    )


def test_the_short_names() -> None:
    pairs = [pair for names, _ in names_of_rows() for pair in names if pair[1]]
    assert pairs
    for name, short in pairs:
        assert find_model(short).name == name


@pytest.mark.parametrize("free", ["MIT", "AFL-3.0", "non-commercial", "not stated"])
def test_the_table_of_the_first_page(free: str) -> None:
    row = (
        r"^\| `([\w.-]+)`[^|]* \| [^|]+ \| (\d+) \| ([^|]+) \| ([\d,]+)(?:, [\d.]+)? \| ([^|]+) \|$"
    )
    rows = {name: cells for name, cells in table("README.md", row).items() if cells[3] == free}
    assert rows
    for name, (width, weights, rate, license) in rows.items():
        model = find_model(name)
        assert (width, weights, rate) == (str(model.dim), memory(model), speed(model)), name
        said = license.replace("not stated", "names none")
        assert said in model.license, (name, model.license)


def test_constants_that_the_page_on_new_models_names_exist() -> None:
    text = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    paths = [path for folder in ("workflow/src", "tests") for path in (ROOT / folder).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    names = set(re.findall(r"`(?:\w+=)?([A-Z_]{4,})`", text))
    assert "FORMULAS" in names
    for name in names:
        assert re.search(rf"^{name}\b.*=", code, re.MULTILINE), name
