"""Sites are recognized by the names of servers and machines that their files hold, and by nothing
else.
"""

from pathlib import Path

import pytest

from snakemake_executor_plugin_pbs import recognize
from snakemake_executor_plugin_pbs.recognize import Recognized, server_name
from standin import StandIn


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without PBS, of a name that nobody knows."""
    for variable in ("PBS_DEFAULT", "PBS_SERVER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PBS_CONF_FILE", str(tmp_path / "pbs.conf"))
    monkeypatch.setenv("PATH", str(tmp_path))
    host(monkeypatch, "somewhere")


def host(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for function in ("gethostname", "getfqdn"):
        monkeypatch.setattr(f"socket.{function}", lambda: name)


@pytest.mark.parametrize(
    ("server", "site"),
    [
        ("polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov", "polaris"),
        ("sophia-pbs-01.lab.alcf.anl.gov", "sophia"),
        ("gadi-pbs", "gadi"),
        ("gadi-pbs-01.gadi.nci.org.au", "gadi"),
    ],
)
def test_a_site_is_known_by_its_server(
    server: str, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PBS_DEFAULT", server)
    assert recognize.this_site() == Recognized(site, f"by the PBS server {server}")


@pytest.mark.parametrize(
    ("name", "site"), [("polaris-login-02", "polaris"), ("gadi-login-05.gadi.nci.org.au", "gadi")]
)
def test_or_by_its_login_nodes(name: str, site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, name)
    assert recognize.this_site() == Recognized(site, f"by the host {name}")


@pytest.mark.parametrize(
    "server", ["pbs01", "my-polaris-pbs-01", "polaris", "aurora-pbs-0001.hostmgmt.cm.aurora"]
)
def test_what_no_file_names_is_generic(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBS_DEFAULT", server)
    found = recognize.this_site()
    assert found.site == "generic"
    assert found.why == f"no site file names the PBS server {server}, nor the host somewhere"


def test_a_machine_without_pbs_is_generic() -> None:
    assert recognize.this_site() == Recognized(
        "generic", "no PBS server is known here, nor the host somewhere"
    )


def test_the_name_is_looked_up_as_pbs_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    standin: StandIn = request.getfixturevalue("pbs")
    monkeypatch.setenv("PATH", f"{standin.bin}:/usr/bin:/bin")
    assert server_name() == "pbs01"  # by qstat -B
    (tmp_path / "pbs.conf").write_text(
        "# comment\nPBS_EXEC=/opt/pbs\nPBS_SERVER=Polaris-PBS-01:15001\n"
    )
    assert server_name() == "polaris-pbs-01"
    monkeypatch.setenv("PBS_DEFAULT", "other")
    assert server_name() == "other"


def test_a_server_that_does_not_answer_has_no_name(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    standin: StandIn = request.getfixturevalue("pbs")
    monkeypatch.setenv("PATH", f"{standin.bin}:/usr/bin:/bin")
    standin.down()
    assert server_name() == ""
    standin.up()
    standin.hang()
    monkeypatch.setattr(recognize, "PATIENCE", 0.5)
    assert server_name() == ""
