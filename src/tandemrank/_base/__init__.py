"""What every room stands on; nothing here knows what a click is.

- `arguments`: the arguments of public functions, held to their annotations
- `ids`: outside ids and inside positions
- `contexts`: the values of a context as texts
- `random`: seeds that are derived, random keys, the streams of one seed
- `results`: what every public result can do: print, plot, become a table, a page
- `files`: writing in one piece, for others to read; never over what we did not write
- `buckets`: files at a URL
- `config`: configuration from a preset, a TOML file and single switches
- `sparse`: sparse matrices in one form
- `frames`: frames of polars and pandas as one kind of table; Parquet with a checksum
- `cluster`: Ray: functions as tasks of a cluster
- `group`: processes of which each has some queries, and what they add up
- `processes`: worker processes that end with their parent, one process at a time in a folder
- `lazy`: names that are imported at their first use
"""
