import hashlib
import http.server
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tandemrank.errors import ConfigError, DataError, DownloadError
from tandemrank.experiments import datasets as movielens_module
from tandemrank.experiments.datasets import Task, download_movielens, from_ratings, load, movielens, synthetic

TINY_1M = b"1::10::5::978300760\n1::30::3::978302109\n7::20::4::978301968\n"
PAGE = "https://grouplens.org/datasets/movielens/"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a tiny release in the place of the published one."""
    monkeypatch.setattr(movielens_module, "MD5", hashlib.md5(TINY_1M).hexdigest())
    monkeypatch.setattr(movielens_module, "URL", "http://127.0.0.1:1/")


def make_zip(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def assert_is_tiny(task: Task, name: str) -> None:
    assert task.name == name
    assert (task.Q, task.D) == (2, 3)
    assert task.vocabulary.query_ids.to_list() == [1, 7]
    assert task.vocabulary.item_ids.to_list() == [10, 20, 30]
    np.testing.assert_array_equal(task.ratings.toarray(), [[5, 0, 3], [0, 4, 0]])
    np.testing.assert_array_equal(task.relevance.toarray(), [[1, 0, 0], [0, 1, 0]])
    assert task.ratings.dtype == task.relevance.dtype == np.float32
    assert task.relevance.nnz == 2


class TestMovieLens:
    @pytest.mark.usefixtures("tiny")
    def test_its_ratings_are_found_in_a_zip(self, tmp_path: Path) -> None:
        one = make_zip(tmp_path / "a.zip", {"__MACOSX/._ratings.dat": b"?", "ml-1m/ratings.dat": TINY_1M})
        assert_is_tiny(movielens(one), "ml-1m")

    @pytest.mark.usefixtures("tiny")
    def test_genres_and_decades_are_features_of_the_items(self, tmp_path: Path) -> None:
        """In the order of the rated items; nothing where one of them is not there."""
        one = (
            b"30::Thirty (1995)::Crime|Drama\n10::T\xe9n (1940)::Drama\n20::No year::Comedy\n99::Unrated (1990)::War\n"
        )
        files = {"ml-1m/ratings.dat": TINY_1M, "ml-1m/movies.dat": one}
        frame = movielens(make_zip(tmp_path / "a.zip", files)).item_features
        assert frame is not None
        assert frame["item_id"].to_list() == [10, 20, 30]
        genres = frame.select(pl.col("^genre .*$")).to_numpy()
        assert genres[:, genres.sum(0) > 0].tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 1]]
        assert frame["decade"].to_list() == ["194", None, "199"]
        short = make_zip(tmp_path / "c.zip", {"ml-1m/ratings.dat": TINY_1M, "ml-1m/movies.dat": one[30:]})
        assert movielens(short).item_features is None

    @pytest.mark.usefixtures("tiny")
    def test_folder_or_the_folder_around_it(self, tmp_path: Path) -> None:
        (tmp_path / "ml-1m").mkdir()
        (tmp_path / "ml-1m" / "ratings.dat").write_bytes(TINY_1M)
        assert_is_tiny(movielens(tmp_path / "ml-1m"), "ml-1m")
        assert_is_tiny(movielens(tmp_path), "ml-1m")

    @pytest.mark.usefixtures("tiny")
    def test_threshold(self, tmp_path: Path) -> None:
        path = make_zip(tmp_path / "a.zip", {"ml-1m/ratings.dat": TINY_1M})
        assert movielens(path, threshold=4).relevance.nnz == 1
        assert movielens(path, threshold=2.5).relevance.nnz == 3

    def test_the_real_one(self, ml1m_zip: Path) -> None:
        task = movielens(ml1m_zip)
        assert (task.name, task.Q, task.D) == ("ml-1m", 6040, 3706)
        assert task.ratings.nnz == 1_000_209
        assert task.relevance.nnz == task.relevance.sum() == 575_281
        # User 1 gave One Flew Over the Cuckoo's Nest (1193) five stars: the first line of the file.
        q, d = task.vocabulary.queries(pl.Series([1]))[0], task.vocabulary.items(pl.Series([1193]))[0]
        assert task.ratings[q, d] == 5

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=f"there is no {tmp_path / 'ml.zip'}.*{PAGE}"):
            movielens(tmp_path / "ml.zip")

    def test_unreadable_zip(self, tmp_path: Path) -> None:
        path = tmp_path / "ml-1m.zip"
        path.write_bytes(b"<html>not here</html>")
        with pytest.raises(DataError, match=f"cannot read {path}: File is not a zip file.*{PAGE}"):
            movielens(path)

    @pytest.mark.usefixtures("tiny")
    def test_damaged_zip(self, tmp_path: Path) -> None:
        path = make_zip(tmp_path / "ml-1m.zip", {"ml-1m/ratings.dat": TINY_1M})
        path.write_bytes(path.read_bytes().replace(b"978300760", b"978300761"))
        with pytest.raises(DataError, match=f"cannot read {path}: Bad CRC"):
            movielens(path)

    def test_without_ratings(self, tmp_path: Path) -> None:
        path = make_zip(tmp_path / "ml.zip", {"ml-25m/ratings.csv": b"1,1,5"})
        for place in (path, tmp_path):
            with pytest.raises(DataError, match=f"{place} holds no ratings of MovieLens-1M: expected ratings.dat"):
                movielens(place)

    def test_wrong_checksum(self, tmp_path: Path) -> None:
        path = make_zip(tmp_path / "ml.zip", {"ml-1m/ratings.dat": TINY_1M})
        came = hashlib.md5(TINY_1M).hexdigest()
        with pytest.raises(DataError, match=f"expected md5 a89aa3591bc97d6d4e0c89459ff39362, but it is {came}"):
            movielens(path)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A local web server: its address and the folder it serves."""
    folder = tmp_path / "site"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", folder
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("tiny")
class TestDownload:
    def test_into_the_cache_once(
        self, site: tuple[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        address, folder = site
        served = make_zip(folder / "x.zip", {"ml-1m/ratings.dat": TINY_1M})
        fetch = partial(download_movielens, cache=tmp_path / "cache", url=f"{address}/x.zip")
        path = fetch()
        assert path == tmp_path / "cache" / "ml-1m.zip"
        assert_is_tiny(movielens(path), "ml-1m")
        served.unlink()
        assert fetch() == path, "the second call needs no server"
        assert list(path.parent.iterdir()) == [path]
        assert capfd.readouterr() == ("", ""), "nothing is printed in a pipe"

    def test_a_damaged_cache_is_fetched_again(self, site: tuple[str, Path], tmp_path: Path) -> None:
        address, folder = site
        make_zip(folder / "x.zip", {"ml-1m/ratings.dat": TINY_1M})
        (tmp_path / "ml-1m.zip").write_bytes(b"half a")
        path = download_movielens(cache=tmp_path, url=f"{address}/x.zip")
        assert_is_tiny(movielens(path), "ml-1m")

    @pytest.mark.parametrize(
        "served",
        [{"ml-1m/ratings.dat": TINY_1M + b"7::30::1::0\n"}, {"README": b""}],
        ids=["wrong checksum", "no ratings"],
    )
    def test_wrong_content_is_not_kept(self, site: tuple[str, Path], tmp_path: Path, served: dict[str, bytes]) -> None:
        address, folder = site
        make_zip(folder / "x.zip", served)
        with pytest.raises(
            DownloadError, match=rf"has not given ml-1m: expected a zip with ratings.dat of md5 .*{PAGE}"
        ):
            download_movielens(cache=tmp_path / "cache", url=f"{address}/x.zip")
        assert list((tmp_path / "cache").iterdir()) == []

    def test_not_found(self, site: tuple[str, Path], tmp_path: Path) -> None:
        with pytest.raises(DownloadError, match=f"cannot download ml-1m from .*status 404.*{PAGE}"):
            download_movielens(cache=tmp_path / "cache", url=f"{site[0]}/none.zip")

    def test_no_network(self, tmp_path: Path) -> None:
        with pytest.raises(DownloadError) as refused:
            download_movielens(cache=tmp_path / "cache")
        message = str(refused.value)
        assert PAGE in message
        assert "--data path/to/ml-1m.zip" in message
        assert "connection" in message.lower()
        assert len(message) < 400, "one sentence of what, one of what to do"
        assert list((tmp_path / "cache").iterdir()) == []


RATED = pl.DataFrame({"user": ["b", "a", "b"], "item": [2, 1, 1], "rating": [4.5, 2.0, 5.0]})


class TestOwnRatings:
    @pytest.mark.parametrize("kind", ["frame", "csv", "parquet"])
    def test_sources_agree(self, kind: str, tmp_path: Path) -> None:
        table = RATED.with_columns(other=pl.lit("x"))
        source: pl.DataFrame | Path = table if kind == "frame" else tmp_path / f"mine.{kind}"
        if kind == "csv":
            table.write_csv(tmp_path / "mine.csv")
        if kind == "parquet":
            table.write_parquet(tmp_path / "mine.parquet")
        task = from_ratings(source, threshold=4.5)
        assert task.name == ("ratings" if kind == "frame" else "mine")
        assert task.vocabulary.query_ids.to_list() == ["a", "b"]
        assert task.vocabulary.item_ids.to_list() == [1, 2]
        np.testing.assert_array_equal(task.ratings.toarray(), [[2, 0], [5, 4.5]])
        np.testing.assert_array_equal(task.relevance.toarray(), [[0, 0], [1, 0]])

    def test_ids_with_leading_zeros_stay_text(self, tmp_path: Path) -> None:
        (tmp_path / "r.csv").write_text("user,item,rating\n007,1,5\n7,1,5\n")
        task = from_ratings(tmp_path / "r.csv", threshold=3)
        assert task.vocabulary.query_ids.to_list() == ["007", "7"]
        assert task.vocabulary.item_ids.to_list() == [1]

    def test_a_relevant_rating_may_be_zero(self) -> None:
        task = from_ratings(RATED.with_columns(rating=pl.Series([0, -1, -1])), threshold=-0.5)
        np.testing.assert_array_equal(task.relevance.toarray(), [[0, 0], [0, 1]])

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "cannot read ratings from .*r.csv: empty"),
            ("user,item,rating\n", "r.csv holds no ratings"),
            ("user;item;rating\n1;2;3\n", "has no column 'user', 'item', 'rating'; it has 'user;item;rating'"),
            ("user,item,stars\n1,2,3\n", "has no column 'rating'; it has 'user', 'item', 'stars'"),
            ("user,item,rating\n1,2,3\n1,,4\n", "r.csv, row 1, column item: expected an id; got None"),
            (
                "user,item,rating\n1,2,4\n1,3,\n",
                "r.csv, row 1, column rating: expected a finite number; got None",
            ),
            (
                "user,item,rating\n1,2,4\n1,3,good\n",
                "row 1, column rating: expected a finite number; got 'good'. Correct",
            ),
            ("user,item,rating\n1,2,NaN\n", "row 0, column rating: expected a finite number; got 'NaN'"),
            ("user,item,rating\n1,2,4\n1,3,inf\n", "row 1, column rating: expected a finite number; got 'inf'"),
            ("user,item,rating\n1,2,4\n1,3,-1e39\n", "row 1, column rating: expected a finite number; got '-1e39'"),
            (
                "user,item,rating\n1,2,4\n5,3,1\n5,2,1\n5,3,2\n1,2,4\n",
                "user 5 rated item 3 twice, in rows 1 and 3.*keep one",
            ),
            ("user,item,rating\n1,2,3\n", "no rating is above the threshold 3; the highest is 3"),
            ("user,item,rating\n1,2,3,4,5\n", "cannot read ratings from"),
        ],
    )
    def test_bad_files(self, text: str, message: str, tmp_path: Path) -> None:
        (tmp_path / "r.csv").write_text(text)
        with pytest.raises(DataError, match=message):
            from_ratings(tmp_path / "r.csv", threshold=3)

    @pytest.mark.parametrize(
        ("column", "message"),
        [
            (
                pl.Series("user", [1.0, 2.0, 3.0]),
                "the frame, column user: expected ids that are integers or strings; got Float64",
            ),
            (
                pl.Series("item", [[1], [2], [3]]),
                r"column item: expected ids that are integers or strings; got List\(Int64\)",
            ),
            (
                pl.Series("item", [1, 2**63, 3], dtype=pl.UInt64),
                "row 1, column item: expected an integer of at most 64 bits",
            ),
            (pl.Series("user", ["a", None, "b"]), "the frame, row 1, column user: expected an id; got None"),
            (pl.Series("rating", [1.0, 4.0, float("nan")]), "row 2, column rating: expected a finite number; got nan"),
            (
                pl.Series("rating", [[4], [5], [3]]),
                "the frame, column rating: expected ratings that are numbers; got List",
            ),
        ],
    )
    def test_bad_columns(self, column: pl.Series, message: str) -> None:
        with pytest.raises(DataError, match=message):
            from_ratings(RATED.with_columns(column), threshold=3)

    def test_bad_paths(self, tmp_path: Path) -> None:
        (tmp_path / "r.txt").write_text("user,item,rating\n1,2,4\n")
        (tmp_path / "r.parquet").write_bytes(b"PAR1 and no more")
        cases = {
            "none.csv": "none.csv: No such file",
            "": "is a folder",
            "r.txt": "ends in '.txt'",
            "r.parquet": "cannot read",
        }
        for name, message in cases.items():
            with pytest.raises(DataError, match=message):
                from_ratings(tmp_path / name, threshold=3)

    def test_bad_switches(self) -> None:
        with pytest.raises(ConfigError, match=r"threshold: expected a number of single precision, .*; got nan"):
            from_ratings(RATED, threshold=float("nan"))


class TestLoad:
    def test_synthetic_is_the_default(self) -> None:
        task, same = load(queries=40, items=30, seed=3), synthetic(40, 30, seed=3)
        assert (task.name, task.Q, task.D) == ("synthetic", 40, 30)
        assert (task.ratings != same.ratings).nnz == 0
        assert task.relevance.nnz == (task.ratings > 3).nnz
        assert task.vocabulary.query_ids.to_list() == list(range(1, 41))
        assert task.vocabulary.item_ids.to_list() == list(range(1, 31))
        assert load(queries=40, items=30, seed=3, threshold=4).relevance.nnz == (task.ratings > 4).nnz

    @pytest.mark.usefixtures("tiny")
    def test_movielens_paths(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make_zip(tmp_path / "x.zip", {"ml-1m/ratings.dat": TINY_1M})
        (tmp_path / "ml-1m").mkdir()
        (tmp_path / "ml-1m" / "ratings.dat").write_bytes(TINY_1M)
        assert_is_tiny(load(tmp_path / "x.zip"), "ml-1m")
        assert load(str(tmp_path / "x.zip"), threshold=2).relevance.nnz == 3
        monkeypatch.chdir(tmp_path)
        assert_is_tiny(load("ml-1m"), "ml-1m")

    def test_own_ratings(self, tmp_path: Path) -> None:
        RATED.write_parquet(tmp_path / "r.parquet")
        assert load(tmp_path / "r.parquet", threshold=3).relevance.nnz == 2
        with pytest.raises(ConfigError, match=r"need a threshold.*--set threshold=3"):
            load(tmp_path / "r.parquet")

    def test_refusals(self) -> None:
        with pytest.raises(DataError, match="unknown data 'movies': expected 'synthetic', 'ml-1m'"):
            load("movies")
        with pytest.raises(ConfigError, match=r"size the synthetic world, but the data is r\.csv"):
            load("r.csv", queries=5)
