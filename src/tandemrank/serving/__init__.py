"""A policy that is live: answers with known propensities, and a log that the next round learns from.

Without a network:
- `engine`: `Server`, which answers queries, and explains them
- `records`: who answers, answers, impressions, events as values
- `live_policy`: a policy as it answers: scores one query at a time, ids, its digest
- `live_sessions`: the last click of each session, and how many lists ago it was
- `drawing`: how lists are drawn, and the exposure that follows from it
- `journal`: append-only files that survive `kill -9`, and the names of a log's files
- `recorder`: impressions and events go to a journal
- `sealing`: journals become segments of a click log
- `propensities`: those of the segments, of the mixture of policies
- `export`: a policy for the systems of others: vector indexes, search engines, run files
- `onnx`: its networks as ONNX
- `replay`: every list drawn again from its key, and compared
- `verdict`: what became of recent answers, and new minus old while both are live

With one (the extra `serve`):
- `service`: policies that come and go, the folder they are loaded from, the verdict, the log, in one process
- `messages`: what goes over the wire, every call, and their description
- `app`: the HTTP interface: around every handler access, and failures as answers; metrics; the page for people (`static/`)
- `run`: listens on one address, within limits; what a stranger may ask for
- `client`: calls it
"""

from tandemrank._base import modules_of

__getattr__ = modules_of(__name__)
