"""What executes on the pod: standard library only, Python 3.8 syntax.

    controller --ssh-->  serve.py       one process per connection: lists, reads, writes, follows
                           |  launch
                           v
                         supervise.py   the one process that owns the workload, in a session of its own
                           |
                           v
                         the workload   any program that keeps checkpoint/CONTRACT.md

The same code runs on the user's own machine. Of the rest of the project it may import
checkpoint/header.py alone. It travels as one zipapp named after its own SHA-256.
"""
