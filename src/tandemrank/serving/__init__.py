"""A pair that is live: answers with known propensities, and a log that the next round learns from.

Without a network:
- `engine`: `Server`, which answers queries
- `records`: who answers, questions, answers, impressions, events, outcomes as values
- `live`: a pair as it answers: scores one query at a time, ids, its digest
- `exploration`: how lists are drawn, and the exposure that follows from it
- `interleaving`: two pairs in one list, and its exposure
- `recorder`: impressions and events go to a journal
- `sealing`: journals become segments of a click log
- `bucket`: copies of the segments at a URL, for servers that share no folder
- `propensities`: those of the segments, of the mixture of pairs
- `journal`: an append-only file that survives `kill -9`
- `outcomes`: what became of recent answers
- `verdict`: new minus old while both are live
- `replay`: every list drawn again from its key, and compared
- `price`: what exploration costs and buys

With one (the extra `serve`):
- `service`: pairs that come and go, the verdict, the log, in one process
- `library`: the folder that pairs may be loaded from
- `messages`, `openapi`: what goes over the wire, and its description
- `access`: what a stranger may ask for
- `metrics`: for monitoring
- `explain`: what each live pair makes of a query
- `requests`: lists and clicks over HTTP; around every handler: access, and failures as answers
- `app`: the HTTP interface, and the page for people (`static/`)
- `run`: listens on one address, within limits
- `replicas`: several processes on a Ray cluster
- `client`: calls it
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
