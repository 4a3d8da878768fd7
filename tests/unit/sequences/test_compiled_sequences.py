"""Keys, and whole results, are the same in C; where there is no C, they come all the same."""

import _ctypes
import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_embed import keys
from plm_embed.io import compiled
from plm_embed.sequences import compiled_sequences
from plm_embed.sequences.compiled_sequences import WORTH_IT, usable, worth_it
from plm_embed.sequences.deduplicate import deduplicate
from plm_embed.sequences.settings import ResiduePolicy
from plm_embed.sequences.tables import Table

IN_C = usable.__wrapped__()  # not what it remembers: see test_fasta
needs_c = pytest.mark.skipif(not IN_C, reason="no C compiler here, or a Python without OpenSSL")
WAYS = [keys.digests, *([compiled_sequences.digests] if IN_C else [])]


@pytest.fixture
def untried() -> Iterator[None]:
    """As in a process that has not looked for C yet."""
    for again in (True, False):
        for cached in (
            usable,
            compiled_sequences._library,
            compiled_sequences._openssl,
            compiled.load,
        ):
            cached.cache_clear()
        if again:
            yield


def test_a_machine_with_a_compiler_and_openssl_uses_them() -> None:
    linked = getattr(sys.modules.get("_hashlib"), "__file__", None)
    if any(map(shutil.which, compiled.COMPILERS)) and sys.platform == "linux" and linked:
        assert IN_C


@pytest.mark.parametrize("digests", WAYS, ids=["Python", "C"][: len(WAYS)])
@given(sequences=st.lists(st.binary(max_size=200)))
def test_digests_are_those_of_the_pieces(
    digests: Callable[..., bytes], sequences: list[bytes]
) -> None:
    ends = np.array(list(accumulate(map(len, sequences))), np.int64)
    expected = b"".join(hashlib.sha256(sequence).digest() for sequence in sequences)
    text = b"".join(sequences)
    assert digests(text, ends) == digests(memoryview(text), ends) == expected


@needs_c
def test_deduplicate_gives_the_same_bytes_with_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in.fasta"
    source.write_text(
        "".join(f">r{number} x\nMKT{'ACDE' * (number % 700)}\n" for number in range(3000))
        + ">odd\nMK T\n"
    )
    results = []
    names = {"digests", "parse_plain"}
    for in_c in (False, True):
        monkeypatch.setattr(compiled_sequences, "worth_it", lambda _, in_c=in_c: in_c)
        spies = {name: Mock(wraps=getattr(compiled_sequences, name)) for name in names}
        output = tmp_path / str(in_c)
        with patch.multiple(compiled_sequences, **spies):
            deduplicate(
                [source], output, buckets=4, table=Table("id", "sequence"), policy=ResiduePolicy(),
                memory_mb=1000,
            )  # fmt: skip
        assert {name for name in names if spies[name].called} == (names if in_c else set())
        files = sorted(path for path in output.rglob("*") if path.is_file())
        results.append([(path.relative_to(output), path.read_bytes()) for path in files])
    assert results[0] == results[1]
    assert len(results[0]) == 1 + 4 + 4 + 1


@needs_c
@pytest.mark.usefixtures("untried")
def test_only_much_input_is_worth_a_compiler_but_then_all_is_read_in_c() -> None:
    assert not worth_it(WORTH_IT - 1)
    assert worth_it(WORTH_IT)
    assert worth_it(1)


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("lacking", ["compiler", "_hashlib", "SHA256_Init"])
def test_without_what_it_takes_there_is_no_c(
    lacking: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    if lacking == "compiler":
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(compiled, "COMPILERS", ())
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    elif lacking == "_hashlib":
        monkeypatch.setitem(sys.modules, "_hashlib", None)
    else:
        monkeypatch.setattr("_hashlib.__file__", _ctypes.__file__, raising=False)
    assert not worth_it(WORTH_IT)
    assert "sequences are read without C: " in caplog.text
    assert lacking in caplog.text


@needs_c
@pytest.mark.usefixtures("untried")
def test_other_digests_than_pythons_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled_sequences, "digests", lambda *_: b"others")
    assert not usable.__wrapped__()
    assert "gives other digests than Python's hashlib" in caplog.text
