"""The command line: parses, calls, prints; no arithmetic.

- `options`: the application that commands register with, and the options that several share
- `main`: the entry point: options in groups, errors as one message and an exit code
- `terminal`: results on standard output
- `progress`: how far a long job is, on standard error
- `logs`: import, validate, examine, judge
- `offpolicy`: estimate, compare, decide; `shadows`: these of shadow lists
- `policies`: learn, recommend
- `serving`: serve, replay, seal
- `sessions`: what estimate, learn, simulate and evaluate do with --sessions
- `experiments`: demo, table, simulate, evaluate
- `doctor`: what this installation is
"""
