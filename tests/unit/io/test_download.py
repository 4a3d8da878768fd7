"""Downloads from a real server on this machine, with everything that goes wrong with servers."""

import logging
import socket
from pathlib import Path

import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.io.download import BLOCK, download
from plm_embed.io.json_files import write_sealed
from support.file_server import CONTENT, FileServer, server

__all__ = ["server"]  # a fixture


def interrupt(server: FileServer, path: Path, after: int) -> None:
    """Leave behind what a process that was killed after `after` bytes leaves."""
    server.cuts = [after, 0]
    with pytest.raises(PlmEmbedError, match="the same command goes on from there"):
        download(server.url, path)
    assert path.with_name("esm2.pt.part").stat().st_size == (after if server.etag else 0)
    assert not path.exists()
    server.asked.clear()


def test_a_whole_file_arrives_and_nothing_else_stays(server: FileServer, tmp_path: Path) -> None:
    path = tmp_path / "new" / "esm2.pt"
    download(server.url, path)
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


def test_lost_connections_are_taken_up_again(
    server: FileServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.cuts = [10 * BLOCK, 4 * BLOCK + 99, BLOCK]
    download(server.url, tmp_path / "esm2.pt")
    assert (tmp_path / "esm2.pt").read_bytes() == CONTENT
    assert server.asked == ["", *(f"bytes={blocks * BLOCK}-" for blocks in (10, 14, 15))]
    assert caplog.text.count("connection lost") == 3


def test_a_later_call_goes_on(server: FileServer, tmp_path: Path) -> None:
    path = tmp_path / "esm2.pt"
    interrupt(server, path, 7 * BLOCK)
    download(server.url, path)
    assert path.read_bytes() == CONTENT
    assert server.asked == [f"bytes={7 * BLOCK}-"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_part_that_is_whole_needs_no_request(server: FileServer, tmp_path: Path) -> None:
    part = tmp_path / "esm2.pt.part"
    part.write_bytes(CONTENT)
    note = {"url": server.url, "validator": '"v1"', "bytes": len(CONTENT)}
    write_sealed(tmp_path / "esm2.pt.part.json", note)
    download(server.url, tmp_path / "esm2.pt")
    assert (tmp_path / "esm2.pt").read_bytes() == CONTENT
    assert server.asked == []


@pytest.mark.parametrize(
    "reason", ["no ranges", "no validator", "changed", "other address", "no note", "damaged note"]
)
def test_what_cannot_be_resumed_starts_again(
    reason: str, server: FileServer, tmp_path: Path
) -> None:
    path = tmp_path / "esm2.pt"
    if reason == "no validator":
        server.etag = None
    interrupt(server, path, 3 * BLOCK)
    url = server.url
    if reason == "no ranges":
        server.ranges = False
    if reason == "changed":
        server.content, server.etag = CONTENT[::-1], '"v2"'
    if reason == "other address":
        url = url.replace("esm2.pt", "mirror/esm2.pt")
    if reason == "no note":
        (tmp_path / "esm2.pt.part.json").unlink()
    if reason == "damaged note":
        (tmp_path / "esm2.pt.part.json").write_text('{"url": 3')
    download(url, path)
    assert path.read_bytes() == server.content
    assert len(server.asked) == 1


def test_a_server_that_announces_too_much_is_not_believed(
    server: FileServer, tmp_path: Path
) -> None:
    server.claims = 100
    for _ in range(2):  # nothing stays behind that would spoil the next call
        with pytest.raises(
            PlmEmbedError,
            match=f"has only {20 * BLOCK} of the {20 * BLOCK + 100} bytes that it announced",
        ):
            download(server.url, tmp_path / "esm2.pt")
        assert not (tmp_path / "esm2.pt").exists()
    server.claims = 0
    download(server.url, tmp_path / "esm2.pt")
    assert (tmp_path / "esm2.pt").read_bytes() == CONTENT


def test_a_server_that_does_not_say_the_length_is_refused(
    server: FileServer, tmp_path: Path
) -> None:
    server.length = False
    with pytest.raises(PlmEmbedError, match="does not say how long"):
        download(server.url, tmp_path / "esm2.pt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("length", ["abc", "-1", "1e3"])
def test_a_length_that_is_no_number_is_refused(
    length: str, server: FileServer, tmp_path: Path
) -> None:
    server.announced = length
    with pytest.raises(PlmEmbedError, match=f"cannot be fetched safely: .*'{length}'"):
        download(server.url, tmp_path / "esm2.pt")
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_server_and_of_the_network_are_named(
    server: FileServer, tmp_path: Path
) -> None:
    with pytest.raises(PlmEmbedError, match="HTTP 404 Not Found"):
        download(server.url.replace("esm2", "absent"), tmp_path / "esm2.pt")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}/esm2.pt"
        with pytest.raises(PlmEmbedError, match="cannot be fetched: Connection refused"):
            download(closed, tmp_path / "esm2.pt")
    with pytest.raises(PlmEmbedError, match="cannot be fetched: "):
        download("http://no-such-host.invalid/esm2.pt", tmp_path / "esm2.pt")
    assert list(tmp_path.iterdir()) == []
