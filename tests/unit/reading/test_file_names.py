"""Names that an export gives to ids."""

from plm_embed.reading.exports.file_names import FileNames


def test_names_are_safe_short_and_told_apart() -> None:
    names = FileNames(60)
    given = ["a/b", "a%2Fb", "a\x00b", ".", "", "x" * 400, "x" * 399 + "y", "é" * 60]
    found = [names.new(id, row) for row, id in enumerate(given)]
    assert found[:4] == ["a%2Fb", "a%252Fb", "a%00b", "%."]
    assert len(set(found)) == len(given) and all(name and "/" not in name for name in found)
    assert all(len(name.encode()) <= 60 for name in found if name)
    assert [names.new("p", row) for row in (1, 2, 1, 2, 3)] == ["p", "p.2", None, None, "p.3"]
    assert [names.new("p.2", row) for row in (2, 9, 2)] == ["p.2.2", "p.2.3", None]
    names = FileNames(60)
    assert [names.new(*pair) for pair in (("A", 1), ("A.2", 2), ("A", 2), ("A", 2))] == [
        "A",
        "A.2",
        "A.3",
        None,
    ]
