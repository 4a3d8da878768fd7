"""Data of sites: what the shipped ones say, and what a user's own may hold."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_pbs.site import clock, load_site, seconds, shipped_sites


@pytest.mark.parametrize("name", shipped_sites())
def test_shipped_sites_load(name: str) -> None:
    site = load_site(name)
    assert site.description
    assert site.default_queue is None or site.default_queue in site.queues


def test_numbers_of_polaris() -> None:
    queues = load_site("polaris").queues
    assert queues["preemptable"].rerunnable
    assert not queues["prod"].rerunnable
    assert [(entry.nodes, entry.walltime[1] // 3600) for entry in queues["prod"].ranges] == [
        ((10, 24), 3),
        ((25, 99), 6),
        ((100, 496), 24),
    ]
    assert {entry.walltime[0] for queue in queues.values() for entry in queue.ranges} == {300}


def test_the_most_that_a_site_gives() -> None:
    polaris, generic = load_site("polaris"), load_site("generic")
    assert [polaris.most("time", "prod", nodes) for nodes in (1, 10, 30, 200)] == [
        None,
        180,
        360,
        1440,
    ]
    assert polaris.most("memory", "prod", 10) == 503_000
    assert [generic.most(cause, "", 1) for cause in ("time", "memory")] == [None, None]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base: nosuch\n", "not known. Shipped: gadi, generic, polaris, sophia"),
        ("base: generic\nqueue: x\n", "'queue' was unexpected"),
        (
            "base: polaris\nqueues: {prod: {ranges: [{nodes: [1, 2], walltime: [0:05:00, "
            "1:00:00]}]}}\n",
            "walltime",
        ),
        ("description: x\n", "'request' is a required property"),
        ("base: generic\naccount: {flag: -B}\n", "account.flag"),
        ("- a\n", "holds no keys"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_site_file_is_told_by_key(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(WorkflowError) as caught:
        load_site(str(path))
    assert words in str(caught.value)


def test_unknown_sites_and_absent_files_are_told() -> None:
    with pytest.raises(WorkflowError, match="Shipped: gadi, generic, polaris, sophia"):
        load_site("summit")
    with pytest.raises(WorkflowError, match="cannot be read: No such file"):
        load_site("./nosuch.yaml")


def test_the_schema_tells_each_key() -> None:
    path = Path(load_site.__code__.co_filename).parent / "sites"
    schema = json.loads((path / "schema.json").read_text())
    for name in shipped_sites():
        assert set(yaml.safe_load((path / f"{name}.yaml").read_text())) <= set(schema["properties"])


@given(st.integers(min_value=0, max_value=10**7))
def test_clock_and_seconds_are_inverse(count: int) -> None:
    assert seconds(clock(count)) == count
