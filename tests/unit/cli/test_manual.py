"""Every block of the manual is right as far as that can be seen without running it; what can be run
here is run by tests/workflow/test_manual_blocks.py.
"""

import re
import shlex
import subprocess

import click
import jsonschema
import pytest
import yaml
from snakemake.cli import get_argument_parser

from plm_embed.workflow.config import schema
from support.commands import COMMANDS
from support.manual import FILES, INSTEAD, PAGES, ROOT, Block, blocks

ALL = list(blocks())
BASH = [block for block in ALL if block.language == "bash"]
SNAKEMAKE = get_argument_parser()._option_string_actions
SITE = (*ROOT.glob("docs/*.md"), *(ROOT / page for page in PAGES))


def commands(program: str) -> list[list[str]]:
    """The words after `program` in every line that calls it."""
    lines = [line for block in BASH for line in block.lines]
    words = [shlex.split(line, comments=True) for line in lines if "<" not in line]
    return [each[1:] for each in words if each and each[0].rpartition("/")[2] == program]


def test_every_block_is_of_a_known_kind() -> None:
    for block in ALL:
        # of R, docs/read_in_r.R is run: what arrow reads is no package of Debian's
        known = ("bash", "python", "yaml", "snakemake", "r")
        assert block.language in known, (block.page, block.first)
    lines = {line for block in ALL for line in block.lines}
    assert set(INSTEAD) <= lines, "no longer in the manual"
    assert set(FILES) <= {block.first for block in ALL}
    others = tuple(str(page.relative_to(ROOT)) for page in SITE)
    assert {block.page for block in blocks(others)} <= set(PAGES), "a page that nobody runs"


@pytest.mark.parametrize("block", BASH, ids=lambda block: f"{block.page}: {block.first}")
def test_the_shell_can_read_it(block: Block) -> None:
    text = "\n".join(line for line in block.lines if "<address of" not in line)
    subprocess.run(["bash", "-n", "-c", text], check=True)


@pytest.mark.parametrize("words", commands("plm-embed"), ids=" ".join)
def test_the_command_has_these_options(words: list[str]) -> None:
    command = COMMANDS[words[0]]
    context = click.Context(command)
    values, _, _ = command.make_parser(context).parse_args(words[1:])
    for option in command.params:
        given = values.get(option.name or "")
        if isinstance(option.type, click.Choice):
            for value in given if isinstance(given, list) else [given] * isinstance(given, str):
                option.type.convert(value, option, context)


@pytest.mark.parametrize("words", commands("snakemake"), ids=" ".join)
def test_snakemake_has_these_options(words: list[str]) -> None:
    for word in words:
        option = word.partition("=")[0]
        # options of plugins, and words for another program, are not its own
        others = option.startswith(("--pbs-", "--slurm-steady-")) or " " in option
        if option.startswith("-") and not others:
            assert option in SNAKEMAKE, option
    if "--config" in words:
        for setting in words[words.index("--config") + 1 :]:
            if "=" in setting:
                assert setting.partition("=")[0] in schema()["properties"]


@pytest.mark.parametrize(
    "block", [block for block in ALL if block.language == "yaml"], ids=lambda block: block.first
)
def test_its_keys_exist(block: Block) -> None:
    content = yaml.safe_load(block.text)
    assert isinstance(content, dict)
    blocks = [one for one in content.values() if isinstance(one, dict) and "inputs" in one]
    for one in (content, *blocks):  # a module's configuration is a block of another's
        if {"inputs", "model", "container"} & set(one):
            jsonschema.validate({"inputs": "one", "model": "one"} | one, schema())


def test_links_lead_somewhere() -> None:
    for page in SITE:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target.partition("#")[0]).exists(), f"{page}: {target}"


def test_the_first_page_is_short() -> None:
    assert (
        len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 780
    )  # with the bars of tables


def test_laptop_slurm_and_pbs_take_five_lines_each() -> None:
    for page in ("docs/laptop.md", "docs/slurm.md", "docs/pbs.md"):
        assert len(next(blocks((page,))).lines) <= 5
