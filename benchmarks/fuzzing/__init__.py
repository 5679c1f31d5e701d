"""What `benchmarks/fuzz.py` calls, and what it gives: a target is a name with an endless supply of calls.

- `calls`: one call, and how it ended
- `wrong`: wrong values, wrong files, damaged copies of good ones
- `commands`: the command line, in this process
- `served`: HTTP bodies for a server on the loopback; journals with valid checksums, segments of a served log
- `api`: the public names of Python
"""
