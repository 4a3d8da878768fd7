"""The queues that PBS names, as OpenPBS 23.06 prints them."""

from pathlib import Path

import pytest

from plm_embed.errors import ConfigError
from plm_embed.sites.pbs import queues

PRINTED = """\
Queue: debug
    queue_type = Execution
    state_count = Transit:0 Queued:0 Held:0 Waiting:0 Running:0 Exiting:0 Begun
\t:0
    resources_max.walltime = 01:00:00
    enabled = True
    started = True

Queue: gpu
    queue_type = Route
    enabled = True
    started = True

Queue: stopped
    queue_type = Execution
    enabled = True
    started = False

"""


def test_queues_that_run_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "printed").write_text(PRINTED)
    (tmp_path / "qstat").write_text(f"#!/bin/sh\ncat {tmp_path}/printed\n")
    (tmp_path / "qstat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert queues() == ["debug", "gpu"]
    (tmp_path / "qstat").write_text("#!/bin/sh\necho no server >&2; exit 2\n")
    with pytest.raises(ConfigError, match="says: no server"):
        queues()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="run it where you submit"):
        queues()
