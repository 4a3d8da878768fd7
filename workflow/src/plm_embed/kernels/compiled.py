"""C code of this package, compiled for the processor of this machine when it is first needed.

That takes half a second; the library then stays in the user's cache. Its name has the hash of what
it was made from, and of its bytes: a damaged one is made again.
"""

import ctypes
import hashlib
import logging
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from plm_embed.io.files import atomic_path, sha256_file
from plm_embed.io.paths import cache_folder
from plm_embed.kernels.cpu import cpu_features

log = logging.getLogger(__name__)
COMPILERS = ("gcc", "clang", "cc")
FLAGS = ("-O3", "-march=native", "-fno-strict-aliasing", "-shared", "-fPIC")
SECONDS_TO_COMPILE = 60


def compiler() -> str | None:
    """The C compiler of this machine, if it has one."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


@cache
def library(name: str, *definitions: str) -> ctypes.CDLL:
    """The C code `name` of this folder as a library, with -D of `definitions`.

    RuntimeError when there is no compiler, or when it refuses the code.
    """
    source = Path(__file__).with_name(f"{name}.c")
    options = (*FLAGS, *(f"-D{definition}" for definition in definitions))
    made_from = repr((source.read_text(encoding="utf-8"), options, cpu_features()))
    stem = f"{name}-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}"
    folder = cache_folder() / "kernels"
    for kept in folder.glob(f"{stem}-*.so"):
        if kept.stem == f"{stem}-{sha256_file(kept)[:16]}":
            return ctypes.CDLL(str(kept))
        log.warning("%s is damaged; it is made again", kept)
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / f"{name}.so"
        _compile(source, options, made)
        final = folder / f"{stem}-{sha256_file(made)[:16]}.so"
        try:
            with atomic_path(final) as temporary:
                shutil.copyfile(made, temporary)
        except OSError as error:
            log.info("%s cannot be kept: %s", final, error.strerror or error)
            return ctypes.CDLL(str(made))  # stays open when the file is gone
        return ctypes.CDLL(str(final))


def _compile(source: Path, options: tuple[str, ...], made: Path) -> None:
    command = compiler()
    if command is None:
        raise RuntimeError(f"no C compiler ({', '.join(COMPILERS)})")
    called = subprocess.run(
        [command, *options, "-o", str(made), str(source)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS_TO_COMPILE,
        check=False,
    )
    if called.returncode:
        why = next((line for line in called.stderr.splitlines() if "error" in line), "")
        raise RuntimeError(f"{command} cannot compile {source.name}: {why}")
