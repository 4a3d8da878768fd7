"""The command line: one command per thing that people do, and one per rule of the workflow."""

import io
import os
import sys
from importlib import import_module

import click

from plm_embed._version import __version__
from plm_embed.cli import interrupted
from plm_embed.errors import (
    CONFIG_FAULT,
    NODE_FAULT,
    ConfigError,
    InputError,
    NodeError,
    PassingError,
    PlmEmbedError,
    limit_reached,
    missing_extra,
    no_space,
    unusable_path,
)
from plm_embed.io.terminal import log_to_stderr, printable
from plm_embed.startup import (
    COMPUTING,
    WITHOUT_PANDAS,
    NoPandas,
    end_at_once,
    program,
    set_up,
    spare_collector,
)


def main() -> None:
    """Run a command. Errors that a user can fix end with one or two lines and exit code 1; bugs
    keep their traceback.

    A log that says `unfinished:` belongs to a step that another attempt may well complete. The exit
    code of embed is NODE_FAULT where another node may do the same work. In a job of SLURM or PBS
    it is CONFIG_FAULT where settings or inputs are wrong: no attempt can help.
    """
    spare_collector()
    if WITHOUT_PANDAS.intersection(sys.argv[1:2]):
        sys.meta_path.insert(0, NoPandas())
    log_to_stderr()
    try:
        group.main(prog_name=program(), standalone_mode=False)
        if sys.stdout:
            sys.stdout.flush()
        if sys.argv[1:2] and sys.argv[1] in COMPUTING:
            end_at_once(0)
    except PassingError as error:
        print(printable(f"plm-embed: unfinished: {error}"), file=sys.stderr)
        sys.exit(NODE_FAULT if isinstance(error, NodeError) else 1)
    except PlmEmbedError as error:
        print(printable(f"plm-embed: error: {error}"), file=sys.stderr)
        from plm_embed.jobs.heartbeat import job_id

        hopeless = isinstance(error, ConfigError | InputError) and job_id()
        sys.exit(CONFIG_FAULT if hopeless else 1)
    except click.UsageError as error:
        text = io.StringIO()
        error.show(text)
        sys.exit(printable(text.getvalue().rstrip()))
    except click.Abort:
        sys.exit(interrupted())
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        os._exit(1)
    except Exception as error:
        full = no_space(error)
        message = full or unusable_path(error) or missing_extra(error) or limit_reached(error)
        if not message:
            raise
        print(printable(f"plm-embed: error: {message}"), file=sys.stderr, flush=True)
        if full:
            os._exit(1)  # at an orderly exit HDF5 would try to write again, and crash
        sys.exit(1)


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
        command: click.Command = getattr(module, {"import": "import_"}.get(cmd_name, cmd_name))
        for option in command.params:
            if isinstance(option, click.Option) and option.default == "":
                option.show_default = False  # the help says what happens without it
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in SECTIONS.items():
            with formatter.section(title):
                commands = ((name, self.get_command(ctx, name)) for name in names)
                limit = formatter.width * 10
                formatter.write_dl(
                    [
                        (name, command.get_short_help_str(limit))
                        for name, command in commands
                        if command
                    ]
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
