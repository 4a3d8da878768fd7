"""The script that PBS runs: its record of begin and end, its variables, and arguments that a shell
reads.
"""

import subprocess
from pathlib import Path

import pytest
from snakemake_interface_executor_plugins import utils

from snakemake_executor_plugin_pbs.job_script import script_text
from snakemake_executor_plugin_pbs.site import load_site
from snakemake_executor_plugin_pbs.workarounds import quoted_for_the_shell


@pytest.mark.parametrize(
    "text", ["it's $HOME", '"quoted" it\'s', "back\\slash", "größe 日本", "a;b & (c)"]
)
def test_arguments_are_quoted_as_a_shell_reads_them(text: str) -> None:
    with quoted_for_the_shell():
        argument = utils.format_cli_arg("--wait-for-files", [text])
    shown = subprocess.run(
        f"printf %s {argument}", shell=True, check=True, capture_output=True, text=True
    )
    assert shown.stdout == f"--wait-for-files{text}"
    assert utils.format_cli_arg("--x", ["it's"]) == '--x "it\'s"'  # Snakemake's own way is back


def run_script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "job.sh"
    path.write_text(text)
    return subprocess.run(
        ["sh", str(path)],
        env={"PBS_JOBID": "12.pbs01", "PATH": "/usr/bin:/bin"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("exit 7", 7), ("false && true", 1)])
def test_the_script_records_its_end(command: str, code: int, tmp_path: Path) -> None:
    end = tmp_path / "a folder" / "name.end"
    end.parent.mkdir()
    end.write_text("11.pbs01 0\n")
    done = run_script(script_text(command, load_site("generic"), end, {}), tmp_path)
    assert done.returncode == code
    assert end.read_text() == f"12.pbs01 {code}\n"
    assert list(end.parent.iterdir()) == [end]


def test_a_killed_script_leaves_no_record_of_an_earlier_run(tmp_path: Path) -> None:
    end = tmp_path / "name.end"
    end.write_text("12.pbs01 0\n")
    run_script(script_text("kill -9 $$", load_site("generic"), end, {}), tmp_path)
    assert end.read_text() == "12.pbs01\n"  # it began


def test_the_script_takes_chosen_variables_and_lines_of_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/a path/with 'quotes'")
    done = run_script(
        script_text(
            'echo "$PYTHONPATH" "$TMPDIR" "$TOKEN"',
            load_site("polaris"),
            tmp_path / "name.end",
            {"TOKEN": "a\"'$b"},
        ),
        tmp_path,
    )
    assert done.stdout == "/a path/with 'quotes' /tmp a\"'$b\n"
