"""What one embed job asks for at each site."""

import pytest

from plm_embed.sites.data import read_site
from plm_embed.sites.job_shape import Shape, buckets_for, shape


@pytest.mark.parametrize(
    ("site", "queue", "expected"),
    [
        ("polaris", "", Shape("preemptable", 1, 4, 32, 400, 360, 4320)),
        ("polaris", "debug", Shape("debug", 1, 4, 32, 400, 60, 60)),
        ("polaris", "capacity", Shape("capacity", 4, 4, 32, 400, 1440, 10080)),
        ("polaris", "prod", Shape("prod", 10, 4, 32, 400, 180, 180)),
        ("sophia", "", Shape("by-gpu", 1, 1, 8, None, 360, 1440)),
        ("gadi", "", Shape("gpuvolta", 1, 1, 12, None, 360, 2880)),
        ("perlmutter", "", Shape("shared", 1, 1, 16, 60, 240, 2880)),
        ("generic", "", Shape("", 1, 1, 4, None, None, None)),
        ("generic", "mine", Shape("mine", 1, 1, 4, None, None, None)),
    ],
)
def test_shapes_of_the_sites(site: str, queue: str, expected: Shape) -> None:
    assert shape(read_site(site), queue) == expected


def test_other_sizes_have_other_limits_and_more_buckets() -> None:
    polaris = read_site("polaris")
    large = shape(polaris, "prod", nodes=30)
    assert (large.workers, large.buckets, large.longest_minutes) == (120, 480, 360)
    assert shape(polaris, "prod", nodes=5).longest_minutes is None, (
        "no class of the queue takes five nodes"
    )
    assert shape(polaris, gpus=2).buckets == 8
    assert [buckets_for(workers) for workers in (1, 2, 4, 40)] == [1, 8, 16, 160]


def test_a_shape_in_words() -> None:
    assert str(shape(read_site("polaris"), "prod")) == "10 nodes x 4 GPUs, 32 cores, 400 GB, 3:00 h"
    assert str(shape(read_site("generic"))) == "1 GPU, 4 cores"
