"""Click logs: reading them with every check, reducing them to exact sums, writing them, telling whether they are fit.

- `impressions`: shown lists and their clicks, in inside positions: a table, or flat
- `feedback`: `Feedback`, the sums of a log that every estimator needs; clicks by the propensities of their own showings
- `exact`: sums of numbers without rounding, in any order
- `sums`: the sums behind `Feedback`, and merging
- `contexts`: queries in the context of their impressions, such as a device, and the sums without it
- `counting`: impressions become `Feedback`, some of them held out: the last ones by time, or by chance
- `schema`: the schema of a log, and a problem in one
- `layouts`: positions that are names, or cells of a grid, in the order of their ranks
- `checks`: every check of a log; files and impressions that come twice
- `sources`: Parquet, CSV, JSON lines, folders and frames as batches of rows, or a period of them; a problem by file and row
- `json_lines`: JSON lines, line by line; plain Python values as columns
- `reading`: a log becomes `Feedback`, here or on a cluster
- `log`: `tr.read`: a log that was read once
- `details`: a log whose rows are split by shadow lists, rewards and propensities
- `titles`: what items and queries are called, for people
- `writing`: a log as Parquet, its files marked as ours
- `importers`: logs of other systems become logs of ours
- `pairs`: pairs of query and item: what ranks are compared by, and what must not be shown again; whether the clicks of a list
  depend on each other
- `description`: what a log is, whether its lists vary, and which questions it can answer
- `sessions`: the steps of sessions in order, what was clicked last, and whether they say enough
- `validation`: is my log fit, and a clean copy of it
"""

from tandemrank._base import modules_of

__getattr__ = modules_of(__name__)
