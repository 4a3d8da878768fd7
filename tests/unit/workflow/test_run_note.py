"""The note of a run, where several begin at once."""

import multiprocessing
import os
from multiprocessing.synchronize import Barrier
from pathlib import Path

from plm_embed.errors import PlmEmbedError
from plm_embed.workflow.run_note import NOTE, note_start, read_call

RUNS = 6


def begin(results: Path, together: Barrier, folder: Path) -> None:
    together.wait()
    try:
        note_start(results, ["a_model"])
        (folder / str(os.getpid())).touch()
    except PlmEmbedError:
        pass
    together.wait()  # none has ended before all have tried


def test_of_runs_that_begin_in_the_same_instant_one_goes_on(tmp_path: Path) -> None:
    began = tmp_path / "began"
    began.mkdir()
    fork = multiprocessing.get_context("fork")
    for number in range(5):
        results, together = tmp_path / str(number), fork.Barrier(RUNS)
        runs = [fork.Process(target=begin, args=(results, together, began)) for _ in range(RUNS)]
        for run in runs:
            run.start()
        for run in runs:
            run.join()
        (went_on,) = began.iterdir()
        call = read_call(results / NOTE)
        assert call
        assert call.pid == int(went_on.name)
        assert [path.name for path in results.iterdir()] == [NOTE]
        went_on.unlink()


def test_where_nothing_can_be_written_there_is_no_note(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    note_start(tmp_path / "file", ["a_model"])
    assert (tmp_path / "file").read_bytes() == b""
