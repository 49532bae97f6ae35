"""Bytes to and from a pod: the fastest way over plain SSH that proves every one of them.

    compare()   what differs at all                 listing()  what the pod has, checked
    fetch()     from the pod, under temporary names Placing    files get their names
    send()      to the pod                          item()     one file's facts and digest

    controller  compare, fetch, send  --Engine-->  workers  --Channels-->  4 to 8 ssh processes   bytes
                                      --Agent--->  one request at a time                          everything else
    pod         serve.py, fileops.py (agent)       bulk.py, intake.py, parts.py (each data connection)

SHA-256 is computed on both ends while bytes stream, once on each: the agent follows a large file in order, whichever
connections its ranges take. What is here of a large file is in a journal, so a broken transfer goes on, in another
process too. A file gets its final name only when its digest is proven, in one rename,
after an fsync (placing.py). What both ends may remember is told while bytes flow (telling.py).
"""

from __future__ import annotations

from remote_runner.transfer.channels import Channels
from remote_runner.transfer.compare import Difference, compare, remember_sent
from remote_runner.transfer.fetch import fetch
from remote_runner.transfer.items import Fetched, Item, adopt, dress, item, stamp
from remote_runner.transfer.listing import listing
from remote_runner.transfer.placing import Placing
from remote_runner.transfer.progress import Progress, State
from remote_runner.transfer.send import send

__all__ = [
    "Channels",
    "Difference",
    "Fetched",
    "Item",
    "Placing",
    "Progress",
    "State",
    "adopt",
    "compare",
    "dress",
    "fetch",
    "item",
    "listing",
    "remember_sent",
    "send",
    "stamp",
]
