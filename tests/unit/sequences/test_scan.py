"""Many jobs, one for each input and each range of buckets, write what one job writes."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from plm_embed.sequences.collect import collect
from plm_embed.sequences.scan import scan
from plm_embed.sequences.split import split

from plm_embed.errors import PlmEmbedError
from plm_embed.keys import bucket_bounds, bucket_names, bucket_ranges, range_bounds
from plm_embed.sequences.deduplicate import deduplicate
from plm_embed.sequences.settings import ResiduePolicy
from plm_embed.sequences.tables import Table
from support.campaign_runs import snakemake, working_folder
from support.nasty_inputs import COMPRESS, M2, NEP, PLAIN, write

TABLE = Table("id", "sequence", ("kept",))
POLICY = ResiduePolicy()


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Three files that share sequences; in the last all records are skipped."""
    odd = f"text\n{PLAIN}>odd\n{M2[:40]}J\n>low\n{M2.lower()}*\n>empty\n>gap\n{M2[:9]}-{M2[9:]}\n"
    many = "".join(f">{number}\n{NEP[number % 50 :]}{M2[number % 7 :]}\n" for number in range(400))
    table = f"id,kept,sequence\na,1,{M2}\nb,,{NEP}\nc,3,{NEP[9:]}{M2}\nd,4\n"
    return [
        write(tmp_path / "a.fasta", (odd + many).encode()),
        write(tmp_path / "b.csv.gz", COMPRESS["gzip"](table.encode())),
        write(tmp_path / "c.fasta", b">j\nJJJ\n>empty\n"),
    ]


def in_many_jobs(inputs: list[Path], folder: Path, buckets: int) -> Path:
    scans = [folder / "scans" / str(number) for number in range(len(inputs))]
    for number in reversed(range(len(inputs))):  # jobs run in any order
        scan(inputs[number], number, scans[number], buckets=buckets, table=TABLE, policy=POLICY)
    splits = [
        folder / "splits" / str(number)
        for number in range(len(bucket_ranges(bucket_names(buckets))))
    ]
    for number, output in enumerate(splits):
        split(scans, number, output, memory_mb=500)
    collect(scans, splits, folder / "sequences")
    return folder / "sequences"


@pytest.mark.parametrize("buckets", [1, 3, pytest.param(100, marks=pytest.mark.workflow)])
def test_every_byte_is_that_of_one_job(tmp_path: Path, inputs: list[Path], buckets: int) -> None:
    deduplicate(
        inputs, tmp_path / "one", buckets=buckets, table=TABLE, policy=POLICY, memory_mb=500
    )
    many = in_many_jobs(inputs, tmp_path / "many", buckets)
    assert files(tmp_path / "one") == files(many)
    collect(  # again, as after a kill
        sorted((many.parent / "scans").iterdir()),
        sorted((many.parent / "splits").iterdir(), key=lambda p: int(p.name)),
        many,
    )
    assert files(tmp_path / "one") == files(many)


def test_a_range_that_exceeds_the_memory_is_split_the_same(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    once = files(in_many_jobs(inputs, tmp_path / "much", 2))
    monkeypatch.setattr("plm_embed.sequences.split.OWN_MEMORY_MB", 499.999)
    monkeypatch.setattr("plm_embed.sequences.scan.PIECE", 1000)
    assert files(in_many_jobs(inputs, tmp_path / "little", 2)) == once


def test_only_whole_scans_and_splits_are_taken_up(tmp_path: Path, inputs: list[Path]) -> None:
    in_many_jobs(inputs, tmp_path, 2)
    scans, splits = (sorted((tmp_path / name).iterdir()) for name in ("scans", "splits"))
    (splits[1] / "summary.json").unlink()
    with pytest.raises(
        PlmEmbedError,
        match=r"splits/1/summary.json: there is no such file; run .*`plm-embed split`",
    ):
        collect(scans, splits, tmp_path / "sequences")
    (scans[0] / "summary.json").write_text('{"buck')
    with pytest.raises(
        PlmEmbedError,
        match=r"scans/0/summary.json: not a summary .*, or damaged; run .*`plm-embed scan`",
    ):
        split(scans, 1, splits[1], memory_mb=500)
    cut = write(tmp_path / "cut.gz", COMPRESS["gzip"](PLAIN.encode() * 900)[:-20])
    with pytest.raises(PlmEmbedError, match="cut short"):
        scan(cut, 0, scans[0], buckets=2, table=TABLE, policy=POLICY)
    assert not (scans[0] / "summary.json").exists()
    with pytest.raises(PlmEmbedError, match="keep: length: the results have a column"):
        scan(
            inputs[0],
            0,
            tmp_path / "new",
            buckets=2,
            table=Table("id", "sequence", ("length",)),
            policy=POLICY,
        )


def test_ranges_are_the_buckets_or_groups_of_neighbors() -> None:
    for buckets in (1, 2, 63, 64, 65, 1000, 10_000, 10_240):
        names, bounds = bucket_names(buckets), bucket_bounds(buckets)
        ranges = bucket_ranges(names)
        assert [name for names in ranges for name in names] == names
        assert len(ranges) == min(buckets, 64) and all(ranges)
        assert range_bounds(buckets) == [*(bounds[int(names[0])] for names in ranges), 1 << 64]


@pytest.mark.workflow
def test_the_workflow_runs_many_jobs_and_goes_on_after_some_were_lost_or_damaged(
    tmp_path: Path,
) -> None:
    """What is said about a damaged file makes the sequences whole."""
    options = ["results/sequences/summary.json", "--cores", "2", "--notemp"]
    one, many = (working_folder(tmp_path / mode) for mode in ("one_job", "by_input"))
    run = snakemake(one, *options, deduplicate="one_job", buckets=3)
    assert run.returncode == 0, run.stdout
    wanted, made = files(one / "results/sequences"), many / "results/sequences"
    by_input = {"deduplicate": "by_input", "buckets": 3}
    # as after a kill between the steps
    run = snakemake(many, *options, "--until", "split", **by_input)
    assert run.returncode == 0, run.stdout
    shutil.rmtree(next(made.glob("splits/01-*")))
    run = snakemake(many, *options, **by_input)
    assert run.returncode == 0, run.stdout
    assert "1 of 2 steps" in run.stdout and "plm-embed split" not in run.stdout
    whole = files(made)
    assert {name: whole[name] for name in wanted} == wanted
    assert json.loads(wanted["summary.json"])["unique"] > 100

    (records,) = made.glob("scans/00001-*/records.parquet")
    (members,) = made.glob("splits/00-*/members/0000.parquet")
    for damaged in (str(path.relative_to(made)) for path in (records, members)):
        content = bytearray(whole[damaged])
        content[len(content) // 2] ^= 1
        (made / damaged).write_bytes(content)
        assert snakemake(many, *options, "--forcerun", "collect", **by_input).returncode == 1
        log = (many / "results/logs/collect.log").read_text(encoding="utf-8")
        (said,) = re.findall(rf"results/sequences/{damaged}: .*; run `snakemake ([^`]*)`", log)
        healed = snakemake(many, *options, *shlex.split(said), **by_input)
        assert healed.returncode == 0, healed.stdout
        assert files(made) == whole


@pytest.mark.workflow
def test_scans_for_another_configuration_are_not_taken_and_do_not_stay(tmp_path: Path) -> None:
    """Their jobs may outlive a Snakemake that is killed, whose notes then do not know them."""
    folder = working_folder(tmp_path)
    options = ["results/sequences/summary.json", "--cores", "2"]
    for name in ("old", "new"):
        (folder / f"{name}.fasta").write_text(f">{name}\nMKV{name.upper()}\n", encoding="utf-8")
    asked = {"deduplicate": "by_input", "buckets": 1}
    run = snakemake(folder, *options, "--until", "scan", inputs=["old.fasta"], **asked)
    assert run.returncode == 0, run.stdout
    shutil.rmtree(folder / ".snakemake")
    run = snakemake(folder, *options, inputs=["new.fasta"], **asked)
    assert run.returncode == 0, run.stdout
    summary = json.loads((folder / options[0]).read_text(encoding="utf-8"))
    assert [entry["path"] for entry in summary["inputs"]] == ["new.fasta"]
    assert not [*folder.glob("results/sequences/s*/*")]
