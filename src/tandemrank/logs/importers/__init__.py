"""Logs of other systems become click logs of ours: one function per format, and what each format cannot answer.

| format     | what it is                                                          | an impression is                       |
| ---------- | ------------------------------------------------------------------- | -------------------------------------- |
| `ubi`      | OpenSearch User Behavior Insights: stored queries, and their events | a search: its hits, or its events      |
| `metarank` | Metarank: ranking and interaction events                            | a ranking event                        |
| `obd`      | Open Bandit Dataset: one CSV row per shown position                 | a row: a list of one, for its position |
| `ga4`      | Google Analytics 4, BigQuery export: view_item_list, select_item    | views of one list, one after another   |
| `clax`     | CLAX: Parquet sessions of query_doc_ids, positions, mask, clicks    | a session                              |
| `long`     | any table with one row per shown item, rows in any order            | the rows of one `impression_id`        |
| `wide`     | any table with one row per impression, its items in a list          | a row                                  |

Nothing is guessed: what cannot be joined is left out, and counted with its reason.

- `run`: the importers by name, from files to a click log; columns that become a part of the query
- `formats`: one function per format of events; `ubi`: User Behavior Insights
- `tables`: one function per format of tables
- `sources`: files as rows, whatever an engine's dump puts around its documents
- `lists`: rows of shown items, and what was done to them, become a log
"""

from tandemrank._base import modules_of

__getattr__ = modules_of(__name__)
