"""The data plane: a mixture-of-experts forward pass whose experts can be moved while it serves.

Floors, lower never imports higher:

    runtime                         the front door
    layer                           the stages in order
    routing | exchange | experts    the stages; they do not know each other
    formats | capture               rooms beside the stages: how experts are stored; what was chosen
    backends                        the operations that stages need
    placement                       slots, maps, counters
    contracts                       what stages hand over

It knows no service, no network protocol and no scheduler: torch only.
"""
