"""The data plane: a mixture-of-experts forward pass whose experts can be moved while it serves.

Floors, lower never imports higher:

    runtime                         the front door
    layer                           the stages in order
    routing | exchange | experts    the stages; they do not know each other
    formats                         how experts are stored; a room beside the stages
    backends                        the operations that stages need
    placement                       slots, maps, counters
    contracts                       what stages hand over

It knows no service, no network protocol and no scheduler: torch only.
"""
