"""A log in the order of time: the last impressions are held out, and the rest is in parts, oldest first."""

import json
from datetime import UTC, datetime, timedelta
from itertools import chain

import numpy as np
import polars as pl
import pytest

from same import assert_same
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs import reading, sources
from tandemrank.logs.sums import merge

N = 400
START = datetime(2024, 1, 1)
SHARES = (0.2, 0.1)  # the last fifth, and the tenth before it


def log(times=None, n: int = N, **columns) -> pl.DataFrame:
    """An impression with a query of its own for each row: so it is seen in which part it is."""
    rng = np.random.default_rng(0)
    items = pl.Series(np.sort(rng.permuted(np.tile(np.arange(9), (n, 1)), axis=1)[:, :3])).arr.to_list()
    clicks = pl.Series(rng.integers(0, 2, (n, 3))).arr.to_list()
    made = {"query_id": np.arange(n), "items": items, "clicks": clicks, **columns}
    return pl.DataFrame(made if times is None else made | {"timestamp": times})


def rows(part) -> list[int]:
    """The impressions of a part, by the ids of their queries."""
    return part.vocabulary.query_ids.filter(part.impressions > 0).to_list()


def parts(source, times=8, **options):
    """The impressions of each part: oldest first, then those held out just before the last, then the last."""
    found = reading.read_parts(source, SHARES, times=times, seed=3, **options)
    return [rows(part) for part in (*found.train, *found.held_out[::-1])], found.by_time


def shuffled() -> np.ndarray:
    """Seconds of N impressions in no order, each of its own."""
    return 1e9 + np.random.default_rng(1).permutation(N) / 4


def expected(times, n_train=8):
    """The parts by a plain sort: 280 of 400 train, 40 stop, 80 value."""
    order = np.argsort(times)
    return [sorted(some.tolist()) for some in (*np.split(order[:280], n_train), order[280:320], order[320:])]


def test_the_last_impressions_are_held_out_and_the_rest_is_in_equal_parts_oldest_first():
    seconds = shuffled()
    found, by_time = parts(log(seconds))
    assert by_time
    assert found == expected(seconds)
    assert parts(log(seconds), batch=7) == (found, True)
    assert parts(log(seconds), times=1) == (expected(seconds, 1), True)
    assert [len(some) for some in parts(log(seconds), times=3)[0]] == [93, 93, 94, 40, 80]


def test_all_parts_together_are_the_log_with_its_first_lists():
    frame = log(shuffled(), weight=np.arange(N) % 3 + 0.5)
    found = reading.read_parts(frame, SHARES, times=8, lists=5)
    assert_same(merge([*found.train, *found.held_out]), reading.read(frame))
    assert found.first.query.tolist() == [0, 1, 2, 3, 4]
    assert {part.vocabulary.query_ids.len() for part in found.train} == {N}  # one vocabulary


def test_parts_have_equal_numbers_of_impressions_whatever_they_weigh():
    seconds = shuffled()
    weights = np.where(seconds > np.median(seconds), 100.0, 0.5)
    assert parts(log(seconds, weight=weights))[0] == expected(seconds)


@pytest.mark.parametrize("kind", ["seconds", "datetime", "zone", "text", "text with zone"])
def test_every_form_of_a_time_is_the_same_order(kind, tmp_path):
    seconds = shuffled()
    moments = [START + timedelta(seconds=float(s) - 1e9) for s in seconds]
    zoned = [m.replace(tzinfo=UTC) for m in moments]
    forms = {
        "seconds": seconds,
        "datetime": moments,
        "zone": pl.Series(zoned).dt.convert_time_zone("Asia/Tokyo"),
        "text": [m.isoformat() for m in moments],
        "text with zone": [m.isoformat() for m in zoned],
    }
    assert parts(log(forms[kind])) == (expected(seconds), True)


def test_files_out_of_order_of_several_forms_are_one_log(tmp_path):
    seconds = shuffled()
    frame = log(seconds)
    folder = tmp_path / "log"
    folder.mkdir()
    frame[:150].write_parquet(folder / "b.parquet")
    moments = pl.from_epoch((pl.col("timestamp") * 1e6).cast(pl.Int64), "us").dt.to_string("iso")
    frame[150:250].with_columns(timestamp=moments).write_ndjson(folder / "a.jsonl")
    long = frame[250:].with_columns(impression_id=pl.col("query_id"), position=pl.int_ranges(1, 4))
    long = long.with_columns(timestamp=moments).explode("items", "clicks", "position")
    long.rename({"items": "item_id", "clicks": "click"}).write_csv(folder / "c.csv")
    assert parts(folder) == (expected(seconds), True)
    assert parts(folder, batch=11) == (expected(seconds), True)


def test_frames_of_every_kind_are_one_log():
    pandas = pytest.importorskip("pandas")
    seconds = shuffled()
    frame = log(seconds)
    columns = {name: frame[name].to_list() for name in frame.columns}
    long = frame.with_columns(impression_id=pl.col("query_id"), position=pl.int_ranges(1, 4))
    long = long.explode("items", "clicks", "position").rename({"items": "item_id", "clicks": "click"})
    long_columns = {name: long[name].to_list() for name in long.columns}
    for source in (frame.lazy(), long, long.lazy(), pandas.DataFrame(columns), pandas.DataFrame(long_columns)):
        assert parts(source) == (expected(seconds), True)


def test_of_impressions_at_the_same_time_chance_says_which():
    days = np.arange(N) // 100 * 86_400.0  # four days, in order: a plain cut would take the last rows of the third
    found, by_time = parts(log(days))
    assert by_time
    assert [len(some) for some in found] == [35] * 8 + [40, 80]
    assert sorted(chain.from_iterable(found)) == list(range(N))
    assert set(found[-1]) < set(range(300, 400))
    assert max(np.diff(found[-1])) > 1  # not the last 80 rows
    assert set(found[-2]) & set(range(300, 400)) == set(range(300, 400)) - set(found[-1])
    assert parts(log(days), batch=13)[0] == found
    other = reading.read_parts(log(days), SHARES, times=8, seed=4)
    assert rows(other.held_out[0]) != found[-1]


@pytest.mark.parametrize("times", [None, [5.0] * N, [None] * N, [None, 5.0] * (N // 2)])
def test_without_an_order_chance_splits_the_log_and_one_part_trains(times):
    source = log() if times is None else log(pl.Series(times, dtype=pl.Float64))
    by_chance = reading.read_parts(log(), SHARES, seed=3)
    found = reading.read_parts(source, SHARES, times=8, seed=3)
    assert not found.by_time
    assert len(found.train) == 1
    for ours, theirs in zip(found.train + found.held_out, by_chance.train + by_chance.held_out, strict=True):
        assert_same(ours, theirs)


def test_times_do_not_count_unless_they_are_asked_for():
    found = reading.read_parts(log(shuffled()), SHARES, seed=3)
    assert not found.by_time
    assert_same(found.held_out[0], reading.read_parts(log(), SHARES, seed=3).held_out[0])


def test_impressions_without_a_time_are_the_oldest(tmp_path):
    seconds = shuffled()
    missing = np.arange(N) % 8 == 0
    times = pl.Series(seconds).set(pl.Series(missing), None)
    found, by_time = parts(log(times))
    assert by_time
    assert set(found[0] + found[1]) >= set(np.flatnonzero(missing).tolist())
    assert found[2:] == expected(np.where(missing, 0, seconds))[2:]
    log(times)[:200].write_parquet(tmp_path / "a.parquet")  # and so is a file without the column
    log()[200:].write_parquet(tmp_path / "b.parquet")
    found, by_time = parts(tmp_path)
    assert by_time
    assert found[-1] == expected(np.where(missing | (np.arange(N) >= 200), 0, seconds))[-1]


@pytest.mark.parametrize("n", [2, 5, 11])
def test_short_logs_have_fewer_parts_that_train_and_none_is_empty(n):
    seconds = np.arange(n) + 1e9
    found = reading.read_parts(log(seconds, n=n), SHARES, times=8)
    every = [rows(part) for part in (*found.train, *found.held_out[::-1])]
    assert list(chain.from_iterable(every)) == list(range(n))
    assert all(rows(part) for part in found.train)
    assert len(found.train) <= 8


def test_a_share_of_nothing_is_an_empty_part_by_time_too():
    seconds = shuffled()
    found = reading.read_parts(log(seconds), (0.2, 0.0), times=2)
    assert found.held_out[1].N == 0
    assert rows(found.held_out[0]) == expected(seconds)[-1]
    nothing = reading.read_parts(log(seconds), (0.0,), times=2)
    assert (nothing.held_out[0].N, nothing.by_time) == (0, True)
    assert len(reading.read_parts(log(seconds), times=4).train) == 4


def test_lines_without_times_are_not_parsed_for_them(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    row = {"query_id": 1, "items": [1, 2], "clicks": [0, 1]}
    path.write_text("\n".join(json.dumps(row) for _ in range(5)))
    monkeypatch.setattr("tandemrank.logs.json_lines._object", lambda line: pytest.fail("parsed"))
    assert reading.times_in(path).tolist() == [-np.inf] * 5


def test_what_is_wrong_with_times_is_told_as_always(tmp_path):
    late = log(np.where(np.arange(N) == 7, 4e9, 1e9 + np.arange(N)))
    with pytest.raises(LogError, match=r"row 7, column timestamp: expected times until now"):
        reading.read_parts(late, SHARES, times=8)
    with pytest.raises(LogError, match="column timestamp: expected times; got the type List"):
        reading.read_parts(log(pl.Series([[1]] * N)), SHARES, times=8)
    (tmp_path / "log.parquet").write_bytes(b"nothing")
    with pytest.raises(LogError, match="cannot be read as Parquet"):
        reading.read_parts(tmp_path, SHARES, times=8)
    with pytest.raises(ConfigError, match=r"times: expected the number of parts that train, 0 or more; got -1\."):
        reading.read_parts(log(), SHARES, times=-1)


def test_the_past_and_the_future_are_the_whole_log_each_impression_once(tmp_path):
    """By a share, a number or a date; as a frame, as files of every form; long impressions stay whole."""
    seconds = shuffled()
    whole, cut = log(seconds), np.sort(seconds)[280]
    before, after = sorted(np.flatnonzero(seconds < cut)), sorted(np.flatnonzero(seconds >= cut))
    whole[:150].write_parquet(tmp_path / "a.parquet")
    whole[150:].write_ndjson(tmp_path / "b.jsonl")
    long = whole.with_row_index("impression_id").explode("items", "clicks")
    long = long.rename({"items": "item_id", "clicks": "click"}).with_columns(
        position=pl.int_range(1, pl.len() + 1).over("impression_id")
    )
    dated = whole.with_columns(pl.from_epoch(pl.col("timestamp") * 1000, "ms").alias("timestamp"))
    when = datetime.fromtimestamp(cut, UTC).isoformat()
    for source, said in ((whole, "70%"), (tmp_path, "70 %"), (long, str(cut)), (dated, when), (whole.to_pandas(), cut)):
        past, future = (reading.read(sources.during(source, **{name: said})) for name in ("until", "since"))
        assert (rows(past), rows(future)) == (before, after), said
    some = sources.during(tmp_path, since="20%", until="70%")
    found = reading.read_parts(some, (0.5,), times=2, lists=5, batch=9)
    middle = np.argsort(seconds)[80:280]
    assert [sorted(x.tolist()) for x in np.split(middle, [50, 100])] == [
        rows(x) for x in (*found.train, *found.held_out)
    ]
    assert set(whole["query_id"].gather(found.train[0].vocabulary.query_ids[found.first.query]).to_list()) <= set(
        middle
    )


def test_periods_without_impressions_or_without_times_are_refused_by_name():
    with pytest.raises(
        ConfigError, match="until: expected a date, a time, Unix seconds or a share such as 70%; got 'soon'"
    ):
        sources.during(log(shuffled()), until="soon")
    with pytest.raises(ConfigError, match=r"since: expected .*got '170%'"):
        sources.during(log(shuffled()), since="170%")
    with pytest.raises(LogError, match="no impression has a `timestamp`"):
        sources.during(log(), since="50%")
    with pytest.raises(LogError, match="expected impressions in the period, 2030-01-01 to its end; the log has none"):
        sources.during(log(shuffled()), since="2030-01-01")
    assert sources.during("anything") == "anything"
    broken = log(shuffled()).with_columns(clicks=pl.lit([1, 0, 2]))
    with pytest.raises(LogError, match="the frame since 50%, row 0, column clicks"):
        reading.read(sources.during(broken, since="50%"))
