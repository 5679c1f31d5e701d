"""Open Bandit Dataset."""

from collections.abc import Sequence

import polars as pl

from tandemrank.logs.importers.tables import Log, need, whole


def obd(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Log:
    """Open Bandit: each position is a query of its own that shows one item, with the logged P(item | position).

    A row's propensity_score is the chance of the item at its position. With one place per impression and examination 1
    that is exactly rho_0; the position's own attractiveness is then part of the query's click rate.
    """
    columns = ["item_id", "position", "click", "propensity_score"]
    parts = [
        whole(need(f, columns, "obd"), columns, "obd").select(
            query_id=pl.concat_str(pl.lit("position "), pl.col("position").cast(pl.String)),
            items=pl.concat_list(pl.col("item_id").cast(pl.Int64)),
            clicks=pl.concat_list(pl.col("click").cast(pl.UInt8)),
            propensities=pl.concat_list(pl.col("propensity_score").cast(pl.Float64)),
        )
        for f in frames
    ]
    return Log(
        pl.concat(parts),
        0,
        (
            "every position is a query of its own with lists of one item: P(item | position) is then its propensity rho_0",
            "use --list-length 1 and a curve of one rank; examination across positions cannot be asked",
        ),
    )
