"""Count the functions and files of the package that one datum passes: a measure of simplicity.

    .venv/bin/python benchmarks/walks.py           # a table of all walks
    .venv/bin/python benchmarks/walks.py embed     # one walk, with the names of its functions

`gather` and `read` need the results of `make demo`. Processes that a walk starts are not counted,
nor are comprehensions, lambdas and generated functions.
"""

import inspect
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "config" / "demo"
RESULTS = ROOT / "results" / "esm2_t3_untrained"
MODEL = "esm2_t3_untrained"
PROTEIN = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVKALPDAQFEVVHSLAKWKRQ"
PACKAGE = f"{Path('plm_embed')}/"

passed: set[tuple[str, str]] = set()


def embed(_: Path) -> None:
    """Walk with a sequence to its vector in memory."""
    import plm_embed

    plm_embed.embed([PROTEIN], model=MODEL, weights=DEMO / f"{MODEL}.pt")


def deduplicate(folder: Path) -> None:
    """Walk with a record to its bucket."""
    (folder / "one.fasta").write_text(f">a\n{PROTEIN}\n", encoding="utf-8")
    output = folder / "sequences"
    call("deduplicate", str(folder / "one.fasta"), "--buckets=1", f"--output={output}")


def weights(folder: Path) -> None:
    """Walk with a published file of weights to what a job loads."""
    source = DEMO / f"{MODEL}.pt"
    call("weights", f"--model={MODEL}", f"--source={source}", f"--output={folder / 'weights'}")


def gather(folder: Path) -> None:
    """Walk with the demo's store to its master."""
    call(
        "gather",
        f"--sequences={RESULTS.parent / 'sequences'}",
        f"--embedded={RESULTS / 'embedded'}",
        f"--store={RESULTS / 'store'}",
        f"--master={folder / 'master.h5'}",
        f"--index={folder / 'master.parquet'}",
        f"--records={folder / 'records.parquet'}",
    )


def read(_: Path) -> None:
    """Walk with an id to its vector, in an open master."""
    import plm_embed

    with plm_embed.open(RESULTS) as embeddings:
        identifier = next(iter(embeddings.ids))
        passed.clear()
        _ = embeddings[identifier]


WALKS: dict[str, Callable[[Path], None]] = {
    walk.__name__: walk for walk in (embed, deduplicate, weights, gather, read)
}


def call(*words: str) -> None:
    """Run a command in this process."""
    from plm_embed.cli.main import group

    group.main(list(words), standalone_mode=False)


def note(frame: FrameType, event: str, _: object) -> None:
    """Note a function of the package that is entered."""
    code = frame.f_code
    written = code.co_flags & inspect.CO_OPTIMIZED and "<" not in code.co_name + code.co_filename
    if event == "call" and PACKAGE in code.co_filename and written:
        passed.add((code.co_filename.rpartition(PACKAGE)[2], code.co_qualname))


def main() -> None:
    """Print one walk, or the numbers of all."""
    if not sys.argv[1:]:
        for name in WALKS:
            command = [sys.executable, __file__, name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(done.stdout.splitlines()[-1])
        return
    walk = WALKS[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder:
        threading.setprofile(note)
        sys.setprofile(note)
        walk(Path(folder))
        sys.setprofile(None)
        threading.setprofile(None)
    for file, function in sorted(passed):
        print(f"  {file}: {function}")
    print(f"{walk.__name__}: {len(passed)} functions in {len({file for file, _ in passed})} files")


if __name__ == "__main__":
    main()
