"""The command line: one command per thing that people do, and one per rule of the workflow."""

import io
import os
import sys
from importlib import import_module

import click

from plm_embed._version import __version__
from plm_embed.errors import (
    ConfigError,
    InputError,
    NodeError,
    PassingError,
    PlmEmbedError,
    in_words,
    limit_reached,
    no_space,
)
from plm_embed.io.terminal import log_to_stderr, printable
from plm_embed.startup import NoPandas, end_at_once, program, set_up, spare_collector

NODE_FAULT = 75
"""Exit status of a job that failed for its node (EX_TEMPFAIL): an executor may try another node."""
CONFIG_FAULT = 78
"""Exit status of a job whose settings or inputs are wrong (EX_CONFIG): no attempt can help."""
INTERRUPTED = 130
"""Exit status that shells give to what a Ctrl-C ends."""


def main() -> None:
    """Run a command. An error that a user can fix ends it with one or two lines; a bug keeps its
    traceback.
    """
    spare_collector()
    step = "".join(sys.argv[1:2])
    if step in ("deduplicate", "gather"):  # which need no data frames
        sys.meta_path.insert(0, NoPandas())
    log_to_stderr()
    try:
        group.main(prog_name=program(), standalone_mode=False)
        if sys.stdout:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        os._exit(1)
    except Exception as error:
        words, status = ending(error)
        if not words:
            raise
        print(printable(words), file=sys.stderr, flush=True)
        if no_space(error):
            os._exit(status)  # at an orderly exit HDF5 would try to write again, and crash
        sys.exit(status)
    if step == "weights":  # which loaded torch
        end_at_once(0)


def ending(error: Exception) -> tuple[str, int]:
    """Return the words and the exit status of an error that ends a command; no words for a bug.

    A log that says `unfinished:` belongs to a step that another attempt may well complete.
    """
    match error:
        case click.Abort():
            return "; ".join(["plm-embed: interrupted", *error.args]), INTERRUPTED
        case click.UsageError():
            text = io.StringIO()
            error.show(text)
            return text.getvalue().rstrip(), 1
        case PassingError():
            status = NODE_FAULT if isinstance(error, NodeError) else 1
            return f"plm-embed: unfinished: {error}", status
        case PlmEmbedError():
            from plm_embed.jobs.heartbeat import job_id

            hopeless = isinstance(error, ConfigError | InputError) and job_id()
            return f"plm-embed: error: {error}", CONFIG_FAULT if hopeless else 1
    words = in_words(error) or limit_reached(error)
    return words and f"plm-embed: error: {words}", 1


SECTIONS = {
    "Plan and run": {"plan": "campaign", "run": "run", "profile": "profile"},
    "Look": dict.fromkeys(("watch", "summary", "report"), "campaign"),
    "Use the result": dict.fromkeys(("search", "export", "diff"), "reading"),
    "Store": {"import": "reading"},
    "Single steps, which the workflow calls": dict.fromkeys(
        ("weights", "deduplicate", "embed", "gather", "validate"), "steps"
    ),
}
"""The commands by what people do with them, each with its module, which only it loads."""
_MODULES = {name: module for names in SECTIONS.values() for name, module in names.items()}


class Sections(click.Group):
    """Commands that are loaded when they are called, and help that lists them by section, each with
    its whole first sentence.
    """

    def list_commands(self, _: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, _: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        set_up(cmd_name)  # before the module of the command loads a library
        module = import_module(f"plm_embed.cli.{_MODULES[cmd_name]}")
        command: click.Command = getattr(module, "import_" if cmd_name == "import" else cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in SECTIONS.items():
            commands = [command for name in names if (command := self.get_command(ctx, name))]
            with formatter.section(title):
                formatter.write_dl(
                    [(command.name or "", command.get_short_help_str(1000)) for command in commands]
                )


group = Sections(
    "plm-embed",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    help="""Turn sequences of proteins and DNA into embeddings by language models.

\b
Examples:
  plm-embed run proteins.fasta --model esm2_8m
  plm-embed plan --configfile my_config.yaml
  plm-embed watch results
  plm-embed COMMAND --help
""",
)
click.version_option(__version__)(group)
