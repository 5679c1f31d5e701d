"""Titles: tables of items and of queries, looked up by either kind of id, searched; what they may not have."""

import polars as pl
import pytest

from tandemrank.errors import DataError
from tandemrank.logs.titles import Title, read_titles

ITEMS = pl.DataFrame({"item_id": [1, 2], "title": ["Red shoes", None], "url": ["https://shop.example/1", None]})
QUERIES = pl.DataFrame({"query_id": ["a", "b"], "title": ["<b>shoes</b>", "Winter SHOES"]})


def test_both_tables_by_either_kind_of_id(tmp_path) -> None:
    ITEMS.write_parquet(tmp_path / "items.parquet")
    QUERIES.write_csv(tmp_path / "queries.csv")
    found = read_titles(tmp_path / "queries.csv", tmp_path / "items.parquet")
    assert found.items.of(1) == found.items.of("1") == Title("Red shoes", "https://shop.example/1", "")
    assert found.items.of(2) == found.items.of(3) == Title()
    assert found.queries.of("a").title == "<b>shoes</b>"  # whoever shows it escapes it
    assert (len(found.items), len(found.queries), len(read_titles().items)) == (2, 2, 0)
    assert read_titles(ITEMS.to_pandas()).items.of(1) == found.items.of(1)


def test_a_search_is_of_plain_words_in_any_case() -> None:
    found = read_titles(QUERIES).queries
    assert found.search("shoes", 5) == [("a", "<b>shoes</b>"), ("b", "Winter SHOES")]
    assert found.search("shoes", 1) == [("a", "<b>shoes</b>")]
    assert found.search("W.nter", 5) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (ITEMS.drop("title"), "expected the columns title and either item_id or query_id; got item_id, url"),
        (ITEMS.with_columns(query_id=1), "either item_id or query_id"),
        (ITEMS.with_columns(item_id=pl.lit(1.5)), "expected integers or strings; got Float64"),
        (ITEMS.with_columns(item_id=pl.lit(7)), "row 1, column item_id: expected one row for each; got item 7 again"),
        (ITEMS.with_columns(item_id=pl.Series([1, None])), "row 1, column item_id: expected an id; got None"),
        (ITEMS.with_columns(url=pl.lit("javascript:alert(1)")), "row 0, column url: expected an address that begins"),
        ([1], "expected a path or a frame of polars or pandas; got list"),
        ("nowhere.csv", "nowhere.csv cannot be read"),
    ],
)
def test_what_is_not_a_table_of_titles_is_refused(wrong, words) -> None:
    with pytest.raises(DataError, match=words):
        read_titles(wrong)


def test_one_table_of_each() -> None:
    with pytest.raises(DataError, match="expected one table of items; got a second one"):
        read_titles(ITEMS, ITEMS)


@pytest.mark.parametrize(
    "address",
    ["javascript:alert(1)", "java\tscript:x", " //evil.org", "//evil.org/x", "/\\evil.org", "\\\\evil", "data:text/html,x",
     "http://x y", "https://x\n", "a:b", "\x01javascript:x", "file:///etc/passwd"],
)  # fmt: skip
def test_only_addresses_of_the_web_or_beside_the_page_are_taken(address) -> None:
    with pytest.raises(DataError, match="column image: expected an address that begins with http"):
        read_titles(ITEMS.with_columns(image=pl.lit(address)))


def test_pictures_may_lie_beside_the_page_and_a_title_moves_no_cursor() -> None:
    table = ITEMS.with_columns(title=pl.lit("  a\nb\x1b[31m\u202e "), image=pl.Series(["img/1 a.png", "/2.png"]))
    found = read_titles(table).items
    assert found.of(1) == Title("a b [31m", "https://shop.example/1", "img/1 a.png")
    assert found.of(2).image == "/2.png"
