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
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from plm_embed.errors import PassingError
from plm_embed.io.files import atomic_path, remove_abandoned, sha256_file
from plm_embed.io.paths import cache_folder

log = logging.getLogger(__name__)
COMPILERS = ("gcc", "clang", "cc")
FLAGS = ("-O3", "-fno-strict-aliasing", "-shared", "-fPIC")
SECONDS_TO_COMPILE = 60


@cache
def load(source: Path, *options: str) -> ctypes.CDLL:
    """The C code `source` of this package, compiled with `options` besides `FLAGS`.

    RuntimeError when no compiler of this machine compiles it, and none did before.
    """
    name = source.stem
    kind = platform.machine(), sysconfig.get_config_var("MULTIARCH")  # tells glibc from musl
    made_from = repr((source.read_text(encoding="utf-8"), FLAGS, options, kind))
    stem = f"{name}-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}"
    folder = cache_folder() / "kernels"
    if kept := _kept(folder, stem):
        return kept
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        made = Path(scratch) / f"{name}.so"
        _compile(source, (*FLAGS, *options), made)
        final = folder / f"{stem}-{sha256_file(made)[:16]}.so"
        try:
            with atomic_path(final) as temporary:
                shutil.copyfile(made, temporary)
            remove_abandoned(folder)
        except OSError as error:
            log.info("%s cannot be kept: %s", final, error.strerror or error)
        else:
            with suppress(OSError):  # a folder from which nothing may be run
                return ctypes.CDLL(str(final))
        return ctypes.CDLL(str(made))  # stays in memory when the file is gone


def _kept(folder: Path, stem: str) -> ctypes.CDLL | None:
    """Return the library that was compiled before; compilers may have made several, of which the
    first serves.
    """
    with suppress(OSError):  # the folder cannot be read
        for path in sorted(folder.glob(f"{stem}-*.so")):
            with suppress(OSError):  # nor the file, or nothing may be run from there
                if path.stem == f"{stem}-{sha256_file(path)[:16]}":
                    return ctypes.CDLL(str(path))
                log.warning("%s is damaged; it is made again", path)
                path.unlink()
    return None


def _compilers() -> list[str]:
    """The commands to try, the user's own first. On a Mac without its developer tools each of ours
    is a stand-in that opens a window and offers them.
    """
    own = [os.environ["CC"]] if os.environ.get("CC") else []
    if sys.platform == "darwin":
        try:
            subprocess.run(["xcode-select", "-p"], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return own
    return [*own, *COMPILERS]


def _compile(source: Path, options: tuple[str, ...], made: Path) -> None:
    wrong = []
    for compiler in _compilers():
        try:
            words = shlex.split(compiler)
        except ValueError as error:
            wrong.append(f"CC={compiler}: {error}")
            continue
        if not words or not shutil.which(words[0]):
            continue
        command = [*words, *options, "-o", str(made), str(source)]
        try:
            called = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SECONDS_TO_COMPILE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:  # it may work another time
            raise PassingError(f"{words[0]} could not compile {source.name}: {error}") from error
        if not called.returncode:
            return
        why = next((line for line in called.stderr.splitlines() if "error" in line), "")
        wrong.append(f"{words[0]} cannot compile {source.name}: {why}")
    missing = f"no C compiler ({', '.join(COMPILERS)}); it would be faster (docs/speed.md)"
    raise RuntimeError("; ".join(wrong) or missing)
