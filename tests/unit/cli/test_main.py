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
from click.testing import CliRunner

from plm_embed._version import __version__
from plm_embed.cli.main import SECTIONS, group
from plm_embed.startup import called
from support.commands import COMMANDS

pytestmark = pytest.mark.workflow


def plm_embed(
    *arguments: str | Path, code: str = "from plm_embed.cli.main import main; main()"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_shows_every_command_once_with_its_first_sentence() -> None:
    shown = plm_embed("--help")
    assert shown.returncode == 0
    modules = {module for names in SECTIONS.values() for module in names.values()}
    there = [
        value
        for module in modules
        for value in vars(import_module(f"plm_embed.cli.{module}")).values()
        if isinstance(value, click.Command)
    ]
    assert sorted(str(command.name) for command in there) == sorted(COMMANDS)
    assert all(f"{title}:\n" in shown.stdout for title in SECTIONS)
    assert "..." not in shown.stdout.partition("Options:")[2]
    text = " ".join(shown.stdout.split())
    for name, command in COMMANDS.items():
        assert command.help
        (sentence, *_) = command.help.split("\n\n")
        assert re.search(rf" {name} +{re.escape(' '.join(sentence.split()).split('. ')[0])}", text)
    assert plm_embed("--version").stdout.strip().endswith(__version__)


def test_help_loads_no_library() -> None:
    code = """
import sys
from plm_embed.cli.main import group
group.main(["--help"], standalone_mode=False)
print({"numpy", "pyarrow", "h5py", "torch", "yaml"} & set(sys.modules))
"""
    assert plm_embed(code=code).stdout.splitlines()[-1] == "{'yaml'}"


def test_every_option_is_explained_in_sentences() -> None:
    for name, command in COMMANDS.items():
        for option in command.params:
            if isinstance(option, click.Option):
                assert (option.help or "").endswith("."), (name, option.name)


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
    found = re.search(r"Example[^\n]*:\n((?: +[^\n]+\n)+)", shown)
    assert found, shown
    program, step, *arguments = shlex.split(found[1].replace("\\\n", " "))
    assert [program, step] == ["plm-embed", name]
    # files need not exist; options that there are none of are an error all the same
    command.make_context(name, list(arguments), resilient_parsing=True)
    for option in (
        one for one in command.params if one.required and one.param_type_name == "option"
    ):
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
    folders = ("--weights", ".", "--store", "s", "--record", "e/0000.json")
    assert plm_embed("embed", "absent.parquet", *folders, code=code).stdout == "set()\nTrue\n"


@pytest.mark.parametrize("closed", ["", "1", "2", "12"])
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


def test_the_first_line_repeats_the_step(tmp_path: Path) -> None:
    done = plm_embed("weights", "--model", "absent", "--output", tmp_path / "with a blank")
    words = f"weights --model absent --output '{tmp_path}/with a blank'"
    assert done.stderr.splitlines()[0] == f"# {called('plm-embed')} {words}"
    for arguments in (["report", "--help"], ["scan", "--bogus"], ["embed"]):  # no step begins
        shown = plm_embed(*arguments)
        assert (shown.stdout + shown.stderr).startswith(f"Usage: {called('plm-embed')} ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["embed"], "Missing argument 'BUCKET'"),
        (["emded"], "No such command 'emded'"),
        (["search", "absent.h5", "MKV"], "absent.h5"),
        (["deduplicate", "absent.fasta", "--output", "out"], "absent.fasta"),
        (
            ["deduplicate", __file__, "--output", "out", "--tables", "[1]"],
            "[1]: Expected `object`, got `int` - at `$[0]`",
        ),
        (
            ["deduplicate", __file__, "--output", "out", "--tables", '[{"id": "x", "path": "y"}]'],
            "there is no key path here",
        ),
        (
            ["weights", "--model", "x", "--settings", '{"long_sequences": {"max_residue": 9}}'],
            "there is no key max_residue",
        ),
        (
            ["weights", "--model", "x", "--settings", '{"policy": "crop"}'],
            "there is no key policy here",
        ),
        (
            ["weights", "--model", "x", "--settings", '{"max_residues": 500}'],
            "there is no key max_residues here",
        ),
        (
            ["weights", "--model", "x", "--settings", '{"device": "cpu"}'],
            "there is no key device here",
        ),
        (
            ["weights", "--model", "esm2_8m", "--settings", '{"layers": [9]}'],
            "embedding.layers: [9]: esm2_t6_8M_UR50D has layers 0 to 6",
        ),
        (
            ["weights", "--model", "esm2_8m", "--settings", '{"pooling": []}'],
            "embedding.pooling: is empty; name at least one",
        ),
        (["diff", __file__, __file__, "--tolerance", "nan"], "nan is not a number"),
        (
            ["embed", __file__, "--weights", __file__, "--store", "s", "--record", "e/0.json"],
            "manifest.json: there is no such file; name a campaign's weights.json",
        ),
        (
            ["embed", "absent.parquet", "--weights", ".", "--store", "s", "--record", "e/0.json"],
            "absent.parquet",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_users_mistake_ends_in_words(arguments: list[str], words: str) -> None:
    done = plm_embed(*arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_results_are_never_older_than_an_input(tmp_path: Path) -> None:
    """Snakemake would fail after the step, also where a file server's clock is a little ahead."""
    fasta, step = tmp_path / "some.fasta", ("deduplicate", str(tmp_path / "some.fasta"))
    fasta.write_text(">a\nMKTAYIAK\n")
    os.utime(fasta, (time.time() + 4,) * 2)
    done = plm_embed(*step, "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "records.parquet").stat().st_mtime >= fasta.stat().st_mtime
    os.utime(fasta, (time.time() + 3600,) * 2)
    done = plm_embed(*step, "--output", str(tmp_path / "out"))
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


@pytest.mark.parametrize(
    ("output", "words"), [("a_file", "File exists"), ("a_file/below", "Not a directory")]
)
def test_a_path_that_cannot_be_is_named(tmp_path: Path, output: str, words: str) -> None:
    (tmp_path / "a_file").touch()
    fasta = tmp_path / "a.fasta"
    fasta.write_text(">a\nMK\n")
    done = plm_embed("deduplicate", fasta, "--output", tmp_path / output)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"plm-embed: error: {tmp_path}/a_file")
    assert words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("lines", ["0", "1"])
def test_a_reader_that_ends_early_is_no_error(lines: str) -> None:
    command = f"{sys.executable} -m plm_embed --help | head -n {lines}"
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


@pytest.mark.parametrize("megabytes", [300, 500])  # of less, OpenBLAS or glibc says so itself
def test_little_memory_is_named_and_no_file_is_blamed(tmp_path: Path, megabytes: int) -> None:
    (tmp_path / "some.fasta").write_text(">a\nMKTAYIAK\n")
    limited = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({megabytes} << 20,) * 2)\n"
        "from plm_embed.cli.main import main; main()"
    )
    where = ["--output", str(tmp_path / "sequences")]
    done = plm_embed("deduplicate", str(tmp_path / "some.fasta"), *where, code=limited)
    known = "plm-embed: error: " in done.stderr and "(ulimit -v" in done.stderr
    by_glibc = "cannot allocate memory for thread-local data" in done.stderr
    assert done.returncode == 0 or known or by_glibc, done.stderr
    assert "Traceback" not in done.stderr


def test_a_limit_of_threads_is_named(tmp_path: Path) -> None:
    """As a user to whom the system gives none, since root has no such limit."""
    (tmp_path / "some.fasta").write_text(">a\nMKTAYIAK\n")
    refused = (
        "import threading\n"
        'def start(self): raise RuntimeError("can\'t start new thread")\n'
        "threading.Thread.start = start\n"
        "from plm_embed.cli.main import main; main()"
    )
    where = ["--output", str(tmp_path / "sequences")]
    done = plm_embed("deduplicate", str(tmp_path / "some.fasta"), *where, code=refused)
    assert "allows no more threads: processes (ulimit -u)" in done.stderr, done.stderr


def test_gather_has_three_files_to_write(tmp_path: Path) -> None:
    paths = [f"--{name}={tmp_path}" for name in ("sequences", "embedded", "store")]
    paths += [f"--{name}={tmp_path / 'out.h5'}" for name in ("master", "index", "records")]
    done = CliRunner().invoke(group, ["gather", *paths])
    assert done.exit_code == 2 and "must be three files" in done.output
