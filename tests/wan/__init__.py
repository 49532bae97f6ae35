"""An emulated long link between two hosts of this machine: lab.py makes it, relay.c is its wire."""
