"""Messages name the program as it was called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    ("words", "path", "name"),
    [
        (["bin/plm-embed"], "", "bin/plm-embed"),
        ([str(BIN / "plm-embed")], "", "bin/plm-embed"),
        (["plm-embed"], f"{BIN}:", "plm-embed"),
        (["bin/python", "-m", "plm_embed"], "", "bin/python -m plm_embed"),
        (["python", "-P", "-m", "plm_embed"], f"{BIN}:", "python -P -m plm_embed"),
    ],
)
def test_as_it_was_called(words: list[str], path: str, name: str) -> None:
    environment = os.environ | {"PATH": f"{path}/usr/bin:/bin"}
    environment.pop("PLM_EMBED_PATH", None)
    done = subprocess.run(
        [*words, "nope"], cwd=BIN.parent, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stderr.startswith(f"Usage: {name} [OPTIONS] COMMAND"), done.stderr


def test_in_a_job_as_the_user_calls_it(tmp_path: Path) -> None:
    environment = os.environ | {"PLM_EMBED_PATH": "/usr/bin", "PATH": f"{BIN}:/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-m", "plm_embed", "nope"], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr.startswith(f"Usage: {BIN}/plm-embed [OPTIONS]"), done.stderr
