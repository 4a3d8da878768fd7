"""Data of sites, and which site this is."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_pbs.recognize import chosen_site, this_site
from snakemake_executor_plugin_pbs.site import clock, load_site, seconds


def test_numbers_of_polaris() -> None:
    queues = load_site("polaris").queues
    assert [name for name, queue in queues.items() if queue.rerunnable] == ["preemptable"]
    assert [(entry.nodes, entry.walltime[1]) for entry in queues["prod"].ranges] == [
        ((10, 24), "3:00:00"),
        ((25, 99), "6:00:00"),
        ((100, 496), "24:00:00"),
    ]
    assert {entry.walltime[0] for queue in queues.values() for entry in queue.ranges} == {"0:05:00"}


RANGES = "{ranges: [{nodes: [1, 2], walltime: [0:05:00, 1:00:00]}]}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base: nosuch\n", "not known. Shipped: generic, polaris"),
        ("base: generic\nqueue: x\n", "unknown field `queue`"),
        (f"base: polaris\nqueues: {{prod: {RANGES}}}\n", "ranges[0].walltime"),
        ("description: x\n", "missing required field `parts`"),
        ("base: polaris\nqueues: {prod: {max_jobs: 0}}\n", "max_jobs"),
        ("base: generic\nqueues: {prod: 3}\n", "queues"),
        ("- a\n", "holds no keys"),
        ("a: [", "is not YAML"),
        ("", "holds no keys"),
    ],
)
def test_a_wrong_site_file_is_told_by_key(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(WorkflowError) as caught:
        load_site(str(path))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [("summit", "Shipped: generic, polaris"), ("./nosuch.yaml", "cannot be read: No such file")],
)
def test_unknown_sites_and_absent_files_are_told(name: str, words: str) -> None:
    with pytest.raises(WorkflowError, match=words):
        load_site(name)


@given(st.integers(min_value=0, max_value=10**7))
def test_clock_and_seconds_are_inverse(count: int) -> None:
    assert seconds(clock(count)) == count


@pytest.fixture
def pbs_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that names the server, which is not there yet."""
    for variable in ("PBS_DEFAULT", "PBS_SERVER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PBS_CONF_FILE", str(tmp_path / "pbs.conf"))
    return tmp_path / "pbs.conf"


POLARIS = "polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov"
STRANGER = "no site file names the PBS server {}"


@pytest.mark.parametrize(
    ("variable", "configured", "site", "why"),
    [
        (POLARIS, "", "polaris", f"by the PBS server {POLARIS}"),
        ("", "Polaris-PBS-01:15001", "polaris", "by the PBS server polaris-pbs-01"),
        ("pbs01", POLARIS, "generic", STRANGER.format("pbs01")),
        ("my-polaris-pbs-01", "", "generic", STRANGER.format("my-polaris-pbs-01")),
        ("", "", "generic", "no PBS server is named"),
    ],
)
def test_a_site_is_known_by_its_server(
    variable: str, configured: str, site: str, why: str, pbs_conf: Path
) -> None:
    """By PBS_DEFAULT, else by pbs.conf."""
    pbs_conf.write_text(f"# comment\nPBS_EXEC=/opt\nPBS_SERVER={configured}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PBS_DEFAULT", variable)
        assert this_site() == (site, why)


@pytest.mark.parametrize(
    ("server", "named", "site"),
    [
        (POLARIS, "polaris", "polaris"),
        (POLARIS, "generic", "generic"),
        (POLARIS, None, "polaris"),
        ("", "polaris", "polaris"),  # nothing here tells which it is
        ("pbs01", "./mine.yaml", "./mine.yaml"),
        ("pbs01", "polaris", None),
    ],
)
def test_a_profile_of_another_site_is_refused_by_the_servers_name(
    server: str, named: str | None, site: str | None, pbs_conf: Path
) -> None:
    if server:
        pbs_conf.write_text(f"PBS_SERVER={server}\n")
    if site:
        assert chosen_site(named).site == site
        return
    with pytest.raises(WorkflowError, match="says polaris, but the PBS server here is pbs01"):
        chosen_site(named)
