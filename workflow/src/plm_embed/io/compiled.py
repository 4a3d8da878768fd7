"""C code of this package, compiled when it is first needed.

That takes half a second; the library then stays in the user's cache, for all machines of a kind
that share it, also those without a compiler. Its name has the hash of what it was made from, and of
its bytes: a damaged one is made again.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from plm_embed.errors import PassingError
from plm_embed.io.files import atomic_path, cache_folder, sha256_file

log = logging.getLogger(__name__)
COMPILERS = ("gcc", "clang", "cc")
FLAGS = ("-O3", "-fno-strict-aliasing", "-shared", "-fPIC")
SECONDS_TO_COMPILE = 60


@cache
def load(source: Path, *options: str) -> ctypes.CDLL:
    """Return the C code `source` of this package, compiled with `options` besides `FLAGS`.

    RuntimeError when no compiler of this machine compiles it, and none did before.
    """
    kind = platform.machine(), sysconfig.get_config_var("MULTIARCH")  # tells glibc from musl
    recipe = repr((source.read_text(encoding="utf-8"), FLAGS, options, kind))
    stem = f"{source.stem}-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
    folder = cache_folder() / "kernels"
    # compilers may have made several, of which the first serves
    for path in sorted(folder.glob(f"{stem}-*.so")):
        with suppress(OSError):  # it cannot be read, or nothing may be run from there
            if path.stem == f"{stem}-{sha256_file(path)[:16]}":
                return ctypes.CDLL(str(path))
            log.warning("%s is damaged: compiling it again", path)
            path.unlink()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        library = Path(scratch) / f"{source.stem}.so"
        _compile(source, [*FLAGS, *options, "-o", str(library), str(source)])
        final = folder / f"{stem}-{sha256_file(library)[:16]}.so"
        try:
            with atomic_path(final) as temporary:
                shutil.copyfile(library, temporary)
            return ctypes.CDLL(str(final))
        except OSError as error:  # no cache, or nothing may be run from there
            log.info("%s cannot be kept: %s", final, error.strerror or error)
            return ctypes.CDLL(str(library))  # stays in memory when the file is gone


def _compile(source: Path, options: list[str]) -> None:
    """Run the first compiler that compiles it, the user's own first."""
    compilers = [os.environ.get("CC", "").split(), *([name] for name in COMPILERS)]
    problems = []
    for words in compilers:
        if not words or not shutil.which(words[0]):
            continue
        try:
            process = subprocess.run(
                [*words, *options],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SECONDS_TO_COMPILE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:  # it may work another time
            raise PassingError(f"{words[0]} could not compile {source.name}: {error}") from error
        if not process.returncode:
            return
        why = next((line for line in process.stderr.splitlines() if "error" in line), "")
        problems.append(f"{words[0]} cannot compile {source.name}: {why}")
    missing = f"no C compiler ({', '.join(COMPILERS)}); it would be faster (docs/speed.md)"
    raise RuntimeError("; ".join(problems) or missing)
