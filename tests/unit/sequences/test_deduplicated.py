"""Files of deduplicate are read as they were written, or named."""

import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.io.parquet import read_batches
from plm_embed.jobs.completion_record import read_bucket
from plm_embed.keys import key
from plm_embed.sequences.summary import bucket_table, known_summary, read_summary, verified
from support.campaigns import make_campaign, seal_sequences
from support.deduplicated import run
from support.nasty_inputs import M2, NEP, PLAIN, write

AGAIN = r"(delete \S*sequences/summary\.json and )?run the campaign again"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    many = "".join(f">{number}\n{NEP[number % 50 :]}{M2[number % 7 :]}\n" for number in range(60))
    path = write(folder / "a.fasta", PLAIN + many + ">j\nJJ\n")
    run([path], folder / "sequences")
    return folder / "sequences"


def read_everything(sequences: Path) -> None:
    """As later steps read it."""
    for number in range(read_summary(sequences).buckets):
        bucket_table(sequences / "buckets" / f"{number:04d}.parquet", ["key", "sequence"])
        list(read_batches(verified(sequences, f"members/{number:04d}.parquet")))
    list(read_batches(verified(sequences, "records.parquet")))


def flip(path: Path, generator: random.Random) -> None:
    content = bytearray(path.read_bytes())
    place = generator.randrange(8 * len(content))
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)


def cut(path: Path, generator: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: generator.randrange(path.stat().st_size)])


def remove(path: Path, _: random.Random) -> None:
    path.unlink()


def swap(path: Path, _: random.Random) -> None:
    """With another file of its folder, or of the folder beside it."""
    other = next(found for found in sorted(path.parent.parent.rglob("*.parquet")) if found != path)
    path.rename(path.with_suffix(".tmp"))
    other.rename(path)
    path.with_suffix(".tmp").rename(other)


@pytest.mark.parametrize(
    "name", ["summary.json", "records.parquet", "buckets/0001.parquet", "members/0002.parquet"]
)
def test_a_changed_file_is_named_with_what_to_run(tmp_path: Path, whole: Path, name: str) -> None:
    generator = random.Random(name)
    for number, damage in enumerate([*[flip] * 20, cut, remove, swap]):
        sequences = tmp_path / str(number) / "sequences"
        shutil.copytree(whole, sequences)
        damage(sequences / name, generator)
        with pytest.raises(PlmEmbedError, match=rf"sequences/[\w/.]*: .*; {AGAIN}$") as error:
            read_everything(sequences)
        assert "\n" not in str(error.value)
        assert name in str(error.value) or damage is swap


def test_a_summary_that_is_not_believed_is_unknown_where_it_is_not_needed(
    tmp_path: Path, whole: Path
) -> None:
    known = known_summary(whole)
    assert known and known.unique == read_summary(whole).unique
    assert known_summary(tmp_path) is None
    (tmp_path / "summary.json").write_text('{"unique": 3}')  # as earlier versions wrote it
    assert known_summary(tmp_path) is None


def test_each_sequence_of_a_bucket_has_its_key(tmp_path: Path) -> None:
    """Also where a bucket file stands alone."""
    (tmp_path / "alone").mkdir()
    path, digest = tmp_path / "alone" / "0000.parquet", key(M2)
    for sequence in (M2[:-1] + "A", None):
        sequences = pa.array([sequence], pa.string())
        pq.write_table(pa.table({"key": [digest], "sequence": sequences}), path)
        words = rf"0000\.parquet: {digest} is not the SHA-256 of its sequence; run"
        with pytest.raises(PlmEmbedError, match=words):
            bucket_table(path, ["key", "sequence"])
        assert bucket_table(path, ["key"])["key"].to_pylist() == [digest]


def test_a_bucket_of_another_campaign_is_refused_even_when_its_keys_are_right(
    tmp_path: Path, whole: Path
) -> None:
    campaign = make_campaign(tmp_path)
    bucket, record = campaign.sequences / "buckets/0001.parquet", campaign.embedded / "0001.json"
    shutil.copyfile(whole / "buckets" / "0001.parquet", bucket)
    changed = rf"buckets/0001\.parquet: changed since it was written; {AGAIN}"
    with pytest.raises(PlmEmbedError, match=changed):
        bucket_table(bucket, ["key", "sequence"])
    with pytest.raises(PlmEmbedError, match=changed):
        read_bucket(bucket, record)
    seal_sequences(campaign.sequences)
    with pytest.raises(PlmEmbedError, match="made for other sequences"):
        read_bucket(bucket, record)
