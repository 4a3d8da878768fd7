"""The command line as a process: help, errors in words, bugs with their traceback."""

import os
import re
import shlex
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import click
import pytest

from plm_embed._version import __version__
from plm_embed.cli.main import SECTIONS
from support.commands import COMMANDS, status

pytestmark = pytest.mark.workflow
FASTA = str(Path(__file__).parents[3] / "config" / "demo" / "proteins.fasta")
EMBED = ("--store", "s", "--record", "e/0000.json")
GATHER = [
    *("--sequences", ".", "--embedded", ".", "--store", "."),
    *("--master", "m.h5", "--index", "m.h5", "--records", "r.parquet"),
]
TABLES = ("deduplicate", __file__, "--output", "out", "--tables")
WEIGHTS = ("weights", "--model", "esm2_8m", "--settings")


def plm_embed(
    *arguments: str | Path, code: str = "from plm_embed.cli.main import main; main()"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_shows_every_command_with_its_first_sentence() -> None:
    shown = plm_embed("--help")
    assert shown.returncode == 0
    modules = {module for names in SECTIONS.values() for module in names.values()}
    there = [
        value.name
        for module in modules
        for value in vars(import_module(f"plm_embed.cli.{module}")).values()
        if isinstance(value, click.Command)
    ]
    assert sorted(map(str, there)) == sorted(COMMANDS)
    assert all(f"{title}:\n" in shown.stdout for title in SECTIONS)
    text = " ".join(shown.stdout.split())
    for name, command in COMMANDS.items():
        sentence = " ".join(str(command.help).partition("\n\n")[0].split()).split(". ")[0]
        assert re.search(rf" {name} +{re.escape(sentence)}", text)
        for option in command.params:
            if isinstance(option, click.Option):
                assert (option.help or "").endswith("."), (name, option.name)
    assert plm_embed("--version").stdout.strip().endswith(__version__)


def test_help_loads_no_library() -> None:
    code = """
import sys
from plm_embed.cli.main import group
group.main(["--help"], standalone_mode=False)
print({"numpy", "pyarrow", "h5py", "torch", "yaml"} & set(sys.modules))
"""
    assert plm_embed(code=code).stdout.splitlines()[-1] == "{'yaml'}"


def test_on_a_terminal_errors_stand_alone() -> None:
    code = """
import os, pty, sys
status = pty.spawn([sys.executable, "-m", "plm_embed", *sys.argv[1:]])
sys.exit(os.waitstatus_to_exitcode(status))
"""
    done = plm_embed("weights", "--model", "absent", "--output", "w", code=code)
    assert done.returncode == 1
    assert done.stdout.startswith("plm-embed: error: model: 'absent'"), done.stdout


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"deduplicate", "embed", "gather"}))
def test_a_command_for_people_has_an_example_that_it_understands(name: str) -> None:
    command = COMMANDS[name]
    shown = command.get_help(click.Context(command, info_name=f"plm-embed {name}"))
    example = re.search(r"Example[^\n]*:\n((?: +[^\n]+\n)+)", shown)
    assert example, shown
    program, step, *arguments = shlex.split(example[1].replace("\\\n", " "))
    assert [program, step] == ["plm-embed", name]
    # files need not exist; options that there are none of are an error all the same
    command.make_context(name, list(arguments), resilient_parsing=True)
    for option in command.params:
        if option.required and isinstance(option, click.Option):
            assert set(option.opts) & set(arguments), option.name


def test_the_process_that_starts_workers_loads_none_of_their_libraries() -> None:
    code = """
import gc, sys
from plm_embed import startup
from plm_embed.cli.main import main
startup.set_up("embed")
before = gc.get_threshold()
try:
    main()
except SystemExit:
    print({"torch", "jsonschema", "pandas"} & set(sys.modules))
    print(gc.get_threshold()[0] > before[0] == 700)  # of a user's own process it stays
"""
    done = plm_embed("embed", "absent.parquet", *EMBED, "--weights", ".", code=code)
    assert done.stdout == "set()\nTrue\n" and "absent.parquet: there is no" in done.stderr


@pytest.mark.parametrize("closed", ["", "1", "2"])
def test_a_process_that_ends_at_once_loses_no_word(closed: str) -> None:
    code = """
import logging, os, sys
from plm_embed import startup
for number in sys.argv[1]:
    os.close(int(number))
    setattr(sys, {"1": "stdout", "2": "stderr"}[number], None)
logging.basicConfig(stream=sys.stderr or sys.stdout, level="INFO")
print("written", end="", file=sys.stdout or open(os.devnull, "w"))
logging.info("logged")
startup.end_at_once(3)
"""
    done = plm_embed(closed, code=code)
    assert done.returncode == 3
    assert ("written" in done.stdout) == ("1" not in closed)
    assert ("logged" in done.stderr) == ("2" not in closed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["embed"], "Missing argument 'BUCKET'"),
        (["emded"], "No such command 'emded'"),
        (["search", "absent.h5", "MKV"], "absent.h5"),
        (["deduplicate", "absent.fasta", "--output", "out"], "absent.fasta"),
        (["deduplicate", FASTA, "--output", FASTA], f"{FASTA}: File exists"),
        (["deduplicate", FASTA, "--output", f"{FASTA}/a"], f"{FASTA}/a: Not a directory"),
        ([*TABLES, "[1]"], "[1]: Expected `object`, got `int` - at `$[0]`"),
        ([*TABLES, '[{"id": "x", "path": "y"}]'], "there is no key path here"),
        ([*WEIGHTS, '{"long_sequences": {"max_residue": 9}}'], "there is no key max_residue here"),
        ([*WEIGHTS, '{"policy": "crop"}'], "there is no key policy here"),
        ([*WEIGHTS, '{"max_residues": 500}'], "there is no key max_residues here"),
        ([*WEIGHTS, '{"device": "cpu"}'], "there is no key device here"),
        ([*WEIGHTS, '{"pooling": []}'], "embedding.pooling: is empty; name at least one"),
        (["diff", __file__, __file__, "--tolerance", "nan"], "nan is not a number"),
        (
            ["embed", __file__, *EMBED, "--weights", __file__],
            "manifest.json: there is no such file",
        ),
        (["gather", *GATHER], "--master, --index and --records must be three files"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_users_mistake_ends_in_words(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert status(*arguments) == 1 and words in capsys.readouterr().err


def test_results_are_never_older_than_an_input(tmp_path: Path) -> None:
    """Snakemake would fail after the step, also where a file server's clock is a little ahead."""
    fasta = tmp_path / "some.fasta"
    step = ("deduplicate", fasta, "--output", tmp_path / "out")
    fasta.write_text(">a\nMKTAYIAK\n")
    os.utime(fasta, (time.time() + 4,) * 2)
    done = plm_embed(*step)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "records.parquet").stat().st_mtime >= fasta.stat().st_mtime
    os.utime(fasta, (time.time() + 3600,) * 2)
    done = plm_embed(*step)
    assert done.returncode == 1 and "in the future; `touch` it, or set" in done.stderr, done.stderr


@pytest.mark.parametrize("job", ["SLURM_JOB_ID", "PBS_JOBID"])
def test_a_job_that_no_attempt_can_do_has_a_status_of_its_own(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(job, "7")
    done = plm_embed("deduplicate", "absent.fasta", "--output", "out")
    assert done.returncode == 78 and "absent.fasta" in done.stderr


@pytest.mark.parametrize("module", ["plm_embed.cli.campaign", "plm_embed.reporting.summary"])
def test_ctrl_c_ends_in_one_line_also_while_modules_are_loaded(module: str, tmp_path: Path) -> None:
    code = f"""
import os, signal, sys
class Interrupted:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupted())
from plm_embed.cli.main import main; main()
"""
    done = plm_embed("summary", tmp_path, code=code)
    assert done.returncode == 130
    assert done.stderr.split() == ["plm-embed:", "interrupted"]


def test_a_reader_that_ends_early_is_no_error() -> None:
    command = f"{sys.executable} -m plm_embed --help | head -n 0"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_bug_keeps_its_traceback() -> None:
    code = """
import plm_embed.reporting.summary
def broken(results): raise RuntimeError("a bug")
plm_embed.reporting.summary.gathered = broken
from plm_embed.cli.main import main; main()
"""
    done = plm_embed("summary", ".", code=code)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "RuntimeError: a bug" in done.stderr


def deduplicate(folder: Path, code: str) -> str:
    """Run `plm-embed deduplicate` after some lines of code; return its standard error."""
    fasta = folder / "some.fasta"
    fasta.write_text(">a\nMKTAYIAK\n")
    code += "\nfrom plm_embed.cli.main import main; main()"
    done = plm_embed("deduplicate", fasta, "--output", folder / "sequences", code=code)
    assert "Traceback" not in done.stderr
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("megabytes", [300, 500])  # of less, OpenBLAS or glibc says so itself
def test_little_memory_is_named_and_no_file_is_blamed(tmp_path: Path, megabytes: int) -> None:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({megabytes} << 20,) * 2)"
    words = deduplicate(tmp_path, limit)
    known = "plm-embed: error: " in words and "(ulimit -v" in words
    by_glibc = "cannot allocate memory for thread-local data" in words
    assert not words or known or by_glibc, words


def test_a_limit_of_threads_is_named(tmp_path: Path) -> None:
    """As a user to whom the system gives none, since root has no such limit."""
    refused = (
        "import threading\n"
        'def start(self): raise RuntimeError("can\'t start new thread")\n'
        "threading.Thread.start = start"
    )
    assert "allows no more threads: processes (ulimit -u)" in deduplicate(tmp_path, refused)
