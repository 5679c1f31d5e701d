"""Logs: what is written is what is read, sums are exact in any order, and every bad log is refused by name."""

import json
import math
import shutil
from datetime import datetime, timedelta
from itertools import permutations

import numpy as np
import pandas
import polars as pl
import pytest
from scipy.sparse import csr_matrix

from same import assert_same
from tandemrank._base.ids import IdRegistry, Vocabulary
from tandemrank.clicks import models, simulation
from tandemrank.errors import ConfigError, LogError, OutputError
from tandemrank.logs import checks, counting, reading, sources, writing
from tandemrank.logs import sums as log_sums
from tandemrank.logs.feedback import exposure
from tandemrank.logs.impressions import Impressions
from tandemrank.logs.schema import schema_problems
from tandemrank.logs.sums import merge
from tandemrank.offpolicy.propensities import frequency_propensity

SCORES = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
RELEVANCE = csr_matrix(np.array([[1, 0, 1, 0, 0, 1], [0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 1, 0], [0, 1, 1, 1, 1, 1.0]]))
THETA = models.examination_curve(3)
NUMBERS = Vocabulary(pl.Series([10, 20, 30, 40]), pl.Series([5, 3, 9, 1, 7, 11]))
WORDS = Vocabulary(pl.Series(["d", "a", "c", "b"]), pl.Series(["u", "z", "v", "y", "w", "x"]))


def simulate(N=500, *, seed=0, part=120, scores=SCORES):
    draw = simulation.one_stage(lambda q: scores[q], 3)
    return simulation.simulate(draw, RELEVANCE, np.arange(4), N, models.position_based(THETA), seed=seed, part=part)


def propensities(part):
    """Any function of query and item will do here."""
    return (1 + part.query[:, None] + 4.0 * part.items) / 97


def plain(frame):
    """The sums of a wide log in plain Python, by outside ids: (shown, clicks) by (query, item, rank)."""
    sums = {}
    for row in frame.iter_rows(named=True):
        for k, (item, click) in enumerate(zip(row["items"], row["clicks"], strict=True)):
            w = row.get("weight", 1)
            shown, clicked = sums.get((row["query_id"], item, k), (0, 0))
            sums[row["query_id"], item, k] = (shown + w, clicked + w * click)
    return sums


def by_id(feedback):
    query = feedback.vocabulary.query_ids.gather(feedback.query)
    item = feedback.vocabulary.item_ids.gather(feedback.item)
    rows = zip(query, item, feedback.rank.tolist(), feedback.shown, feedback.clicks, strict=True)
    return {(q, d, k): (s, c) for q, d, k, s, c in rows}


def wide(**columns):
    """A good wide log of four impressions, with some columns replaced or (None) left out."""
    good = {
        "query_id": [1, 2, 1, 3],
        "items": [[7, 8], [8, 9, 7], [9], [7, 9]],
        "clicks": [[0, 1], [0, 0, 1], [1], [0, 0]],
        "propensities": [[0.5, 0.5], [1.0, 0.2, 0.1], [1.0], [0.1, 0.3]],
        "weight": [1.0, 0.5, 2.0, 1.0],
    }
    return pl.DataFrame({name: v for name, v in (good | columns).items() if v is not None}, strict=False)


def long(**columns):
    good = {
        "impression_id": [1, 1, 2, 2],
        "query_id": ["a", "a", "b", "b"],
        "item_id": ["x", "y", "y", "x"],
        "position": [1, 2, 1, 3],
        "click": [0, 1, 0, 0],
    }
    return pl.DataFrame({name: v for name, v in (good | columns).items() if v is not None}, strict=False)


# --- what is written is read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", [NUMBERS, WORDS])
@pytest.mark.parametrize("with_propensities", [None, propensities])
def test_a_written_log_reads_as_the_impressions_it_came_from(tmp_path, vocabulary, with_propensities):
    path = writing.write(simulate(), tmp_path / "log", vocabulary, propensities=with_propensities, policy="production")
    assert sorted(p.name for p in path.iterdir()) == [f"part-0000{i}.parquet" for i in range(5)]
    direct = counting.from_impressions(simulate(), vocabulary, propensities=with_propensities)
    assert_same(reading.read(path, vocabulary=vocabulary, K=3), direct)
    assert by_id(direct) == plain(pl.read_parquet(path / "*.parquet"))
    assert direct.N == direct.impressions.sum() == 500
    assert (direct.Q, direct.D) == (4, 6)
    key = (direct.query.astype(int) * 6 + direct.item) * 3 + direct.rank
    assert (np.diff(key) > 0).all()
    own = reading.read(path)  # without a vocabulary the log's own ids are one, sorted
    assert own.vocabulary.item_ids.to_list() == sorted(vocabulary.item_ids.to_list())
    assert by_id(own) == by_id(direct)


def test_logged_propensities_are_read(tmp_path):
    path = writing.write(simulate(), tmp_path / "log", NUMBERS, propensities=propensities)
    feedback = reading.read(path, vocabulary=NUMBERS)
    assert feedback.propensity == pytest.approx((1 + feedback.query + 4.0 * feedback.item) / 97, rel=1e-14)
    assert counting.from_impressions(simulate(), NUMBERS).propensity is None


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        writing.write(simulate(seed=seed), tmp_path / name, WORDS, propensities=propensities)
    a, b, c = ([p.read_bytes() for p in sorted((tmp_path / n).iterdir())] for n in "abc")
    assert a == b != c


def test_short_and_empty_lists_are_written_without_their_padding(tmp_path):
    few = np.where(np.arange(6) < np.array([[2], [6], [0], [1]]), SCORES, -np.inf).astype(np.float32)
    path = writing.write(simulate(scores=few), tmp_path / "log", WORDS, propensities=propensities)
    frame = pl.read_parquet(path / "*.parquet")
    lengths = dict(frame.select("query_id", pl.col("items").list.len()).unique().iter_rows())
    assert lengths == {"d": 2, "a": 3, "c": 0, "b": 1}
    assert len(frame) == 500
    direct = counting.from_impressions(simulate(scores=few), WORDS, propensities=propensities)
    assert_same(reading.read(path, vocabulary=WORDS), direct)
    assert direct.N == 500


def test_progress_is_told(tmp_path):
    told = []
    writing.write(simulate(), tmp_path / "log", NUMBERS, progress=told.append)
    assert told == [120, 240, 360, 480, 500]


def test_a_log_that_fails_half_way_leaves_nothing(tmp_path):
    def broken():
        yield next(simulate())
        raise LogError("stop")

    with pytest.raises(LogError, match="stop"):
        writing.write(broken(), tmp_path / "log", NUMBERS)
    with pytest.raises(LogError, match="got none"):
        writing.write([], tmp_path / "log", NUMBERS)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        writing.write(simulate(), tmp_path / "file" / "log", NUMBERS)


def test_what_is_hidden_in_a_folder_is_no_part_of_the_log(tmp_path):
    """Half of a log that is written right now, or that a killed process left, is in a hidden folder."""
    path = writing.write(simulate(), tmp_path / "log", NUMBERS)
    expected = reading.read(tmp_path)
    shutil.copytree(path, tmp_path / ".tandemrank-abcdefgh" / "new" / "log")
    shutil.copy(path / "part-00000.parquet", path / ".part.parquet")
    assert_same(reading.read(tmp_path), expected)
    assert_same(reading.read(path), expected)


def test_files_folders_patterns_and_frames_are_the_same_log(tmp_path):
    path = writing.write(simulate(), tmp_path / "log", NUMBERS)
    expected = reading.read(path)
    frame = pl.read_parquet(path / "*.parquet")
    for source in (
        str(path),
        path / "part-*.parquet",
        sorted(path.iterdir()),
        [path / "part-0000[0-1].parquet", str(path / "part-0000[2-9].parquet")],
        frame,
        frame.lazy(),
        frame.with_columns(pl.col("query_id").cast(pl.UInt16), pl.col("items", "clicks").list.to_array(3)),
        frame.with_columns(pl.col("items").cast(pl.List(pl.Int16)), pl.col("clicks").cast(pl.List(pl.Boolean))),
        frame.with_columns(pl.col("clicks").cast(pl.List(pl.Float32))),
    ):
        assert_same(reading.read(source), expected)


def test_the_long_form_is_the_same_log(tmp_path):
    wide_form = writing.write(simulate(), tmp_path / "log", WORDS, propensities=propensities)
    frame = pl.read_parquet(wide_form / "*.parquet").with_columns(weight=pl.int_range(pl.len()) % 3 + 0.25)
    rows = (
        frame.with_row_index("impression_id")
        .with_columns(position=pl.int_ranges(1, 4))
        .explode("items", "clicks", "propensities", "position")
    )
    rows = rows.rename({"items": "item_id", "clicks": "click", "propensities": "propensity"})
    rows.write_parquet(tmp_path / "long.parquet", row_group_size=100)
    for batch in (40, 10_000):  # a batch may end inside an impression
        assert_same(reading.read(tmp_path / "long.parquet", batch=batch), reading.read(frame))
        for a, b in zip(split(rows, 0.3, batch=batch), split(frame, 0.3), strict=True):
            assert_same(a, b)


def test_csv_json_lines_and_pandas_are_the_same_log(tmp_path):
    path = writing.write(simulate(), tmp_path / "log", WORDS, propensities=propensities)
    frame = pl.read_parquet(path / "*.parquet").with_columns(weight=pl.int_range(pl.len()) % 3 + 0.25)
    rows = (
        frame.with_row_index("impression_id")
        .with_columns(position=pl.int_ranges(1, 4))
        .explode("items", "clicks", "propensities", "position")
        .rename({"items": "item_id", "clicks": "click", "propensities": "propensity"})
    )
    expected = reading.read(frame)
    (tmp_path / "a").mkdir()
    frame.write_ndjson(tmp_path / "a" / "log.jsonl")
    rows.write_csv(tmp_path / "log.csv")
    for batch in (40, 10_000):
        assert_same(reading.read(tmp_path / "a", batch=batch), expected)
        assert_same(reading.read(tmp_path / "*.csv", batch=batch), expected)
    frame[:200].write_parquet(tmp_path / "a" / "0.parquet")  # one log of three forms
    frame[200:300].write_ndjson(tmp_path / "a" / "log.jsonl")
    rows[900:].with_columns(click=pl.col("click") == 1).write_csv(tmp_path / "a" / "rest.CSV")
    assert_same(reading.read(tmp_path / "a"), expected)
    for source in (frame, rows):
        assert_same(reading.read(pandas.DataFrame(source.to_dict(as_series=False))), expected)


def test_text_ids_that_look_like_numbers_stay_apart(tmp_path):
    (tmp_path / "log.csv").write_text("impression_id,query_id,item_id,position,click\n1,1,7,1,0\n1,1,007,2,1\n")
    assert reading.read(tmp_path / "log.csv").vocabulary.item_ids.to_list() == ["007", "7"]


@pytest.mark.parametrize(
    ("columns", "place"),
    [
        ({"query_id": [1, "1"]}, "row 1, column query_id: expected a number"),
        ({"items": [["1"], [1]]}, "row 1, column items: expected a list of texts"),
        ({"items": [[1], ["1", 2]]}, "row 1, column items: expected a list of numbers"),
        ({"clicks": [[0], [0.5]]}, "row 1, column clicks: expected 0 or 1; got 0.5"),
        ({"query_id": ["a", None]}, "row 1, column query_id"),
    ],
)
def test_python_values_are_never_bent_to_fit(tmp_path, columns, place):
    """Polars alone would read 0.5 as 0 and 1 as "1" here."""
    log = {"query_id": [1, 2], "items": [[1], [2]], "clicks": [[0], [0]]} | columns
    rows = [dict(zip(log, values, strict=True)) for values in zip(*log.values(), strict=True)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for source in (tmp_path / "log.jsonl", pandas.DataFrame(log)):
        with pytest.raises(LogError, match=place):
            reading.read(source)


def test_times_until_now_are_accepted():
    now = datetime.now()
    for times in ([now] * 4, [now.date()] * 4, [now.isoformat()] * 4, [now.timestamp()] * 4, [None, now, None, now]):
        assert_same(reading.read(wide(timestamp=times)), reading.read(wide()))
    late = wide(timestamp=[now, now, now + timedelta(days=3), now])
    with pytest.raises(LogError, match=r"row 2, column timestamp: expected times until now"):
        reading.read(late)


def test_long_positions_may_have_gaps():
    assert by_id(reading.read(long())) == {
        ("a", "x", 0): (1, 0),
        ("a", "y", 1): (1, 1),
        ("b", "y", 0): (1, 0),
        ("b", "x", 2): (1, 0),
    }


@pytest.mark.parametrize("ids", [[3, 10**15, -(10**15)], ["3", "é", ""]])
def test_ids_may_be_any_integers_or_strings(ids):
    frame = pl.DataFrame({"query_id": ids, "items": [ids[::-1]] * 3, "clicks": [[0, 1, 0]] * 3})
    assert by_id(reading.read(frame)) == plain(frame)
    categories = frame.with_columns(pl.col("query_id").cast(pl.String).cast(pl.Categorical))
    assert reading.read(categories).vocabulary.query_ids.to_list() == sorted(map(str, ids))


# --- exact sums -----------------------------------------------------------------------------------------------------


def weighted_frame():
    rng = np.random.default_rng(1)
    n = 3000
    items = np.argsort(rng.random((n, 30)), axis=1)[:, :4]
    return pl.DataFrame(
        {
            "query_id": np.minimum(rng.integers(0, 40, n), rng.integers(0, 40, n)),
            "items": pl.Series(items).arr.to_list(),
            "clicks": pl.Series(rng.integers(0, 2, (n, 4))).arr.to_list(),
            "propensities": pl.Series(rng.uniform(1e-6, 1, (n, 4))).arr.to_list(),
            "weight": rng.exponential(size=n) + 1e-3,
        }
    )


@pytest.mark.parametrize("columns", [[], ["weight"], ["propensities"], ["weight", "propensities"]])
def test_batches_and_the_order_of_parts_do_not_change_a_bit(columns, monkeypatch):
    frame = weighted_frame().select("query_id", "items", "clicks", *columns)
    whole = reading.read(frame)
    expected = plain(frame)
    assert by_id(whole).keys() == expected.keys()
    found = np.array([sums for _, sums in sorted(by_id(whole).items())])
    assert found == pytest.approx(np.array([sums for _, sums in sorted(expected.items())]), rel=1e-13)
    assert whole.shown.sum() == pytest.approx(4 * whole.N)
    monkeypatch.setattr(log_sums, "PENDING", 500)  # many small sorts and merges
    assert_same(reading.read(frame, batch=333), whole)
    assert_same(reading.read(frame[:50], batch=1), reading.read(frame[:50]))
    pieces = [reading.read(frame[i : i + 700]) for i in range(0, 3000, 700)]
    assert_same(merge(pieces), whole)
    assert_same(merge(pieces[::-1]), whole)
    assert_same(merge([merge(pieces[3:]), merge(pieces[:2]), pieces[2]]), whole)
    assert_same(reading.read(frame[::-1]), whole)


def test_merging_keeps_a_common_vocabulary():
    parts = list(simulate())
    pieces = [counting.from_impressions([part], WORDS) for part in parts]
    assert_same(merge(pieces[::-1]), counting.from_impressions(parts, WORDS))


def test_merging_refuses_what_does_not_belong_together():
    with pytest.raises(LogError, match="at least one"):
        merge([])
    with pytest.raises(LogError, match="column query_id: expected ids that are String"):
        merge([counting.from_impressions(simulate(), WORDS), counting.from_impressions(simulate(), NUMBERS)])
    with pytest.raises(LogError, match="some parts of the log have propensities"):
        merge([reading.read(wide()), reading.read(wide(propensities=None))])


def test_merging_refuses_more_ids_than_a_key_holds(monkeypatch):
    pieces = [reading.read(wide(query_id=[number, number + 1, number, number])) for number in (1, 3)]
    assert merge(pieces).Q == 4
    monkeypatch.setattr(log_sums, "QUERY_BITS", 1)
    with pytest.raises(LogError, match="more than 2 different ids in one column"):
        merge(pieces)


def split(source, share, **options):
    """What trains, and what is held out."""
    found = reading.read_parts(source, (share,), **options)
    assert not found.by_time
    return *found.train, *found.held_out


def test_the_split_is_by_impression_and_depends_on_the_seed_alone(tmp_path):
    N = 20_000
    path = writing.write(simulate(N, part=3000), tmp_path / "log", NUMBERS)
    train, held_out = split(path, 0.15, seed=5, vocabulary=NUMBERS)
    assert abs(held_out.N - 0.15 * N) < 5 * math.sqrt(N * 0.15 * 0.85)
    assert_same(merge([train, held_out]), reading.read(path, vocabulary=NUMBERS))
    assert held_out.shown.sum() == 3 * held_out.N  # whole impressions
    for again in (
        split(path, 0.15, seed=5, vocabulary=NUMBERS, batch=1111),
        counting.parts_of(simulate(N, part=700), NUMBERS, (0.15,), seed=5),
    ):
        assert_same(again[0], train)
        assert_same(again[1], held_out)
    assert not np.array_equal(split(path, 0.15, seed=6)[1].impressions, held_out.impressions)
    # the clicks are not what decides
    rates = [f.clicks.sum() / f.N for f in (train, held_out)]
    assert abs(rates[0] - rates[1]) < 5 * math.sqrt(rates[0] / held_out.N)


@pytest.mark.parametrize("share", [1, -0.1, float("nan")])
def test_a_split_that_is_none_is_refused(share):
    with pytest.raises(ConfigError, match="share"):
        split(wide(), share)


def test_a_share_of_nothing_leaves_all_for_training():
    used, held_out = split(wide(), 0)
    assert_same(used, reading.read(wide()))
    assert held_out.N == held_out.clicks.sum() == 0


# --- propensities ---------------------------------------------------------------------------------------------------


def test_frequency_propensity_converges_to_the_exact_one():
    """rho_0(d | q) = sum over lists y of P(y) theta_{k(d)}, by complete enumeration (paper: propensity_def)."""
    feedback = counting.from_impressions(simulate(80_000, part=80_000), NUMBERS)
    rho_0 = frequency_propensity(feedback, THETA)
    for q in range(4):
        first, second = np.zeros(6), np.zeros(6)
        for y in permutations(range(6), 3):
            p, left = 1.0, np.exp(SCORES[q].astype(float))
            for d in y:
                p *= left[d] / left.sum()
                left[d] = 0
            for k, d in enumerate(y):
                first[d] += p * THETA[k]
                second[d] += p * THETA[k] ** 2
        for d in range(6):
            found = np.unique(rho_0[(feedback.query == q) & (feedback.item == d)])
            assert len(found) == 1
            assert abs(found[0] - first[d]) <= 5 * math.sqrt((second[d] - first[d] ** 2) / feedback.impressions[q])


def test_exposure_and_frequency_by_hand():
    feedback = reading.read(wide(propensities=None, weight=None))  # pairs: (1,7,0) (1,8,1) (1,9,0) (2,7,2) (2,8,0) ...
    theta = np.array([1.0, 0.5, 0.25])
    assert exposure(feedback, theta).tolist() == [1.0, 0.5, 1.0, 0.25, 1.0, 0.5, 1.0, 0.5]
    assert frequency_propensity(feedback, theta).tolist() == [0.5, 0.25, 0.5, 0.25, 1.0, 0.5, 1.0, 0.5]
    twice = pl.DataFrame({"query_id": [1, 1], "items": [[7, 8], [8, 7]], "clicks": [[0, 0], [0, 0]]})
    assert frequency_propensity(reading.read(twice), theta).tolist() == [0.75] * 4
    with pytest.raises(LogError, match="rank 3, but the examination curve ends at rank 2"):
        exposure(feedback, theta[:2])


# --- bad logs -------------------------------------------------------------------------------------------------------

BAD = {
    "missing column": (wide(clicks=None), "clicks", "got query_id, items, propensities, weight"),
    "missing long column": (long(position=None), "position", "got impression_id, query_id, item_id, click"),
    "no column": (pl.DataFrame({"a": [1]}), "query_id", "got a"),
    "items no list": (wide(items=[1, 2, 3, 4]), "items", "lists of integers or strings; got the type Int64"),
    "items of floats": (wide(items=[[1.5], [1.0], [1.0], [1.0]]), "items", "List\\(Float64\\)"),
    "query float": (wide(query_id=[1.0, 2.0, 3.0, 4.0]), "query_id", "Float64"),
    "clicks of strings": (wide(clicks=[["0"]] * 4), "clicks", "List\\(String\\)"),
    "weight a string": (wide(weight=["1"] * 4), "weight", "String"),
    "position a float": (long(position=[1.0, 2.0, 1.0, 2.0]), "position", "Float64"),
    "more clicks": (
        wide(clicks=[[0, 1], [0, 0, 1], [1, 0], [0, 0]]),
        "row 2, column clicks",
        "as many as items; got \\[1, 0\\]",
    ),
    "fewer clicks": (wide(clicks=[[0, 1], [0, 0], [1], [0, 0]]), "row 1, column clicks", "as many as items"),
    "more propensities": (
        wide(propensities=[[0.5, 0.5], [1.0, 0.2, 0.1], [1.0], [0.1]]),
        "row 3, column propensities",
        "as many",
    ),
    "click 2": (wide(clicks=[[0, 1], [0, 2, 1], [1], [0, 0]]), "row 1, column clicks", "0 or 1; got 2"),
    "click -1": (wide(clicks=[[0, 1], [0, 0, 1], [-1], [0, 0]]), "row 2, column clicks", "0 or 1; got -1"),
    "click half": (wide(clicks=[[0, 1], [0, 0.5, 1], [1], [0, 0]]), "row 1, column clicks", "0 or 1; got 0.5"),
    "click NaN": (wide(clicks=[[0, 1], [0, math.nan, 1], [1], [0, 0]]), "row 1, column clicks", "0 or 1; got nan"),
    "null query": (wide(query_id=[1, None, 1, 3]), "row 1, column query_id", "got null"),
    "null list": (wide(items=[[7, 8], [8, 9, 7], None, [7, 9]]), "row 2, column items", "got null"),
    "null item": (wide(items=[[7, 8], [8, None, 7], [9], [7, 9]]), "row 1, column items", "got null"),
    "null click": (wide(clicks=[[0, 1], [0, 0, 1], [1], [0, None]]), "row 3, column clicks", "got null"),
    "null clicks": (wide(clicks=[[0, 1], None, [1], [0, 0]]), "row 1, column clicks", "got null"),
    "null true": (wide(clicks=[[False, None], [True] * 3, [True], [True] * 2]), "row 0, column clicks", "got null"),
    "null propensity": (
        wide(propensities=[[0.5, 0.5], [1.0, 0.2, 0.1], [None], [0.1, 0.3]]),
        "row 2, column propen",
        "null",
    ),
    "null weight": (wide(weight=[1.0, 1.0, 1.0, None]), "row 3, column weight", "got null"),
    "item twice": (wide(items=[[7, 8], [8, 9, 8], [9], [7, 9]]), "row 1, column items", "once in a list"),
    "item twice, equal lengths": (
        wide(items=[[1, 2], [3, 3]] * 2, clicks=[[0, 0]] * 4, propensities=None),
        "row 1, column items",
        "2 rows of this batch have the problem",
    ),
    "item twice beside another, equal lengths": (
        wide(items=[[1, 2, 4], [3, 3, 5]] * 2, clicks=[[0, 0, 0]] * 4, propensities=None),
        "row 1, column items",
        "2 rows of this batch have the problem",
    ),
    "longer than the curve": (
        wide(items=[[7, 8], [8, 9, 7], [9], [1, 2, 3, 4]], clicks=[[0] * 2, [0] * 3, [0], [0] * 4], propensities=None),
        "row 3, column items",
        "at most 3 items.*got 4",
    ),
    "propensity 0": (
        wide(propensities=[[0.5, 0.5], [1.0, 0.0, 0.1], [1.0], [0.1, 0.3]]),
        "row 1, column propen",
        "got 0.0",
    ),
    "propensity 1.5": (
        wide(propensities=[[1.5, 0.5], [1.0, 0.1, 0.1], [1.0], [0.1, 0.3]]),
        "row 0, column propen",
        "got 1.5",
    ),
    "propensity NaN": (
        wide(propensities=[[1, 0.5], [1.0, 0.1, 0.1], [1.0], [0.1, math.nan]]),
        "row 3, column pro",
        "got nan",
    ),
    "weight 0": (wide(weight=[1.0, 0.0, 1.0, 1.0]), "row 1, column weight", "got 0.0"),
    "weight NaN": (wide(weight=[1.0, 1.0, math.nan, 1.0]), "row 2, column weight", "got nan"),
    "weight inf": (wide(weight=[math.inf, 1.0, 1.0, 1.0]), "row 0, column weight", "got inf"),
    "id beyond 64 bits": (
        wide(query_id=pl.Series([1, 2, 2**64 - 1, 3], dtype=pl.UInt64)),
        "row 2, column query_id",
        "64-bit",
    ),
    "position 0": (long(position=[1, 2, 0, 3]), "row 2, column position", "from 1 to 3.*got 0"),
    "position beyond the curve": (long(position=[1, 2, 1, 4]), "row 3, column position", "got 4"),
    "position twice": (long(position=[1, 2, 1, 1]), "row 2, column position", "once in an impression"),
    "long item twice": (long(item_id=["x", "x", "y", "z"]), "row 0, column item_id", "once in a list"),
    "long click": (long(click=[0, 1, 0, 7]), "row 3, column click", "0 or 1; got 7"),
    "long null": (long(item_id=["x", "y", None, "z"]), "row 2, column item_id", "got null"),
    "two queries": (
        long(query_id=["a", "b", "b", "b"]),
        "row 1, column query_id",
        "one query in an impression; got 'b'",
    ),
    "impression comes back": (
        long(impression_id=[1, 2, 1, 1], query_id=["a"] * 4),
        "row 2, column impression_id",
        "Sort by impression_id",
    ),
    "empty": (wide()[:0], "the log|expected a log", "empty"),
    "empty long": (long()[:0], "expected a log", "empty"),
}


def problems(frame, K=None, vocabulary=None):
    """All that is wrong with the rows of a frame."""
    return schema_problems(frame.schema) or checks.examine(frame, IdRegistry(vocabulary), K)[0]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_log_is_refused_by_file_row_and_column(name, tmp_path):
    frame, place, what = BAD[name]
    frame.write_parquet(tmp_path / "bad.parquet")
    with pytest.raises(LogError, match=place) as refused:
        reading.read(tmp_path / "bad.parquet", K=3)
    assert refused.match(what)
    if "empty" not in name:
        assert str(refused.value).startswith(str(tmp_path / "bad.parquet"))
        if name != "impression comes back":
            assert problems(frame, K=3)


def test_the_good_frames_are_good():
    assert problems(wide(), K=3) == problems(long(), K=3) == []


def test_rows_are_counted_in_the_file_and_not_in_the_batch(tmp_path):
    path = writing.write(simulate(), tmp_path / "log", NUMBERS)
    frame = pl.read_parquet(path / "part-00001.parquet")
    clicks_ = frame["clicks"].to_list()
    clicks_[101] = [0, 9, 0]
    frame.with_columns(clicks=pl.Series(clicks_)).write_parquet(path / "part-00001.parquet")
    with pytest.raises(LogError, match=r"part-00001.parquet, row 101, column clicks: expected 0 or 1; got 9"):
        reading.read(path, batch=10)


def test_all_problems_are_told_at_once():
    frame = wide(
        clicks=[[0, 3], [0, 0, 1], [4], [0, 0]],
        items=[[7, 8], [8, 8, 7], [9], [7, 9]],
        weight=[1.0, 1.0, -1.0, 1.0],
        propensities=[[0.5, 0.5], [1.0, 0.2, 0.1], [0.0], [0.1, 0.3]],
    )
    vocabulary = Vocabulary(pl.Series([1, 2]), pl.Series([7, 8]))
    found = {p.column + p.message[:14]: p.rows.tolist() for p in problems(frame, vocabulary=vocabulary)}
    assert found == {
        "clicksexpected 0 or ": [0, 2],
        "propensitiesexpected prope": [2],
        "weightexpected weigh": [2],
        "query_idexpected one o": [3],
        "itemsexpected one o": [2, 3],
        "itemsexpected each ": [1],
    }


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (Vocabulary(pl.Series([1, 2]), pl.Series([7, 8, 9])), "row 3, column query_id: .* 2 known ids.* got 3"),
        (Vocabulary(pl.Series([1, 2, 3]), pl.Series([7, 8])), "row 1, column items: .* 2 known ids.* got 9"),
        (Vocabulary(pl.Series([1, 2, 3]), pl.Series(["7", "8", "9"])), "row 0, column items: .* String; got 7"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(vocabulary, message):
    with pytest.raises(LogError, match=message):
        reading.read(wide(), vocabulary=vocabulary)


def test_files_of_one_log_must_agree(tmp_path):
    wide().write_parquet(tmp_path / "a.parquet")
    wide(query_id=list("abcd")).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(LogError, match=r"b.parquet, row 0, column query_id: .* Int64; got 'a'"):
        reading.read(tmp_path)
    wide(propensities=None).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(LogError, match="some parts of the log have propensities"):
        reading.read(tmp_path)


def test_unreadable_files_are_refused(tmp_path):
    path = tmp_path / "log.parquet"
    for source in (path, tmp_path, tmp_path / "*.parquet", []):
        with pytest.raises(LogError, match=r"nothing is at|empty"):
            reading.read(source)
    weighted_frame().write_parquet(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(LogError, match=r"log.parquet: cannot be read as Parquet"):
        reading.read(path)
    path.write_bytes(b"query_id,items\n1,2\n")
    with pytest.raises(LogError, match=r"log.parquet: cannot be read as Parquet"):
        reading.read(path)
    path.write_bytes(whole[:1000] + b"\xff" * 20_000 + whole[21_000:])
    with pytest.raises(LogError, match=r"log.parquet: cannot be read as Parquet"):
        reading.read(path)


def test_an_impression_that_comes_back_in_a_later_batch_is_refused(tmp_path):
    path = tmp_path / "log.parquet"
    rows = long(
        impression_id=[*range(500), 123, 123],
        query_id=[1] * 502,
        item_id=[*[7] * 501, 8],
        position=[*[1] * 501, 2],
        click=[0] * 502,
    )
    rows.write_parquet(path, row_group_size=50)
    assert len(list(sources.batches(path, 50))) > 2
    with pytest.raises(LogError, match=r"log.parquet, row 500, column impression_id: .* comes back"):
        reading.read(path, batch=50)


def test_a_batch_of_empty_lists_does_not_decide_the_type_of_ids(tmp_path):
    (tmp_path / "log.jsonl").write_text(
        '{"query_id": "a", "items": [], "clicks": []}\n{"query_id": "a", "items": ["x"], "clicks": [1]}\n'
    )
    assert by_id(reading.read(tmp_path / "log.jsonl", batch=1)) == {("a", "x", 0): (1, 1)}


def test_a_panic_of_the_reader_is_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    def panic(*_, **__):
        raise pl.exceptions.PanicException("unwrap")

    wide().write_parquet(tmp_path / "log.parquet")
    monkeypatch.setattr(pl.LazyFrame, "collect_batches", panic)
    with pytest.raises(LogError, match=r"log.parquet: cannot be read as Parquet after row 0: unwrap"):
        reading.read(tmp_path / "log.parquet")


def test_impressions_outside_the_vocabulary_are_refused():
    part = Impressions(np.array([0], dtype=np.int32), np.array([[6]], dtype=np.int32), np.array([[0]], dtype=np.uint8))
    with pytest.raises(LogError, match="positions that the vocabulary does not have"):
        counting.from_impressions([part], NUMBERS)
    with pytest.raises(LogError, match="empty"):
        counting.from_impressions([], NUMBERS)
