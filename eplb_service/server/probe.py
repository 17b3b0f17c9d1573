"""`eplb-probe`: asks one controller how it is, for those who route to it or restart it.

eplb-probe leads    0 only while it leads: send callers here
eplb-probe lives    0 while it answers, leader or standby, also while weights move: leave it alone

Light on purpose: it is started every few seconds beside each controller.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2

from eplb_service.domain.errors import InvalidSettings
from eplb_service.server.health import ALIVE
from eplb_service.server.tls import ClientFiles, channel_credentials

OK, NO, SILENT = 0, 1, 5
ASKED = {"leads": "", "lives": ALIVE}
OPTIONS = (("grpc.enable_http_proxy", 0),)


def main(argv: Sequence[str] | None = None) -> int:
    """Ask once; returns 0 for yes, 1 for no, 5 for no answer, and says which on stdout."""
    args = probe_parser().parse_args(argv)
    try:
        with channel(args) as street:
            status = ask(street, ASKED[args.question], timeout_s=args.timeout)
    except InvalidSettings as wrong:
        print(f"{wrong.code}: {wrong}")
        return SILENT
    except grpc.RpcError as silent:
        print(f"no answer from {args.endpoint} within {args.timeout:g} s: {silent.details()}")
        return SILENT
    if status == health_pb2.HealthCheckResponse.SERVING:
        print(f"{args.endpoint} {args.question}")
        return OK
    print(f"{args.endpoint} answers, and does not lead: it stands by, starts or stops")
    return NO


def channel(args: argparse.Namespace) -> grpc.Channel:
    """Open a channel, over TLS where --ca is given; raises InvalidSettings."""
    if not args.ca:
        return grpc.insecure_channel(args.endpoint, options=OPTIONS)
    credentials = channel_credentials(ClientFiles(args.ca, args.certificate, args.key))
    named = (("grpc.ssl_target_name_override", args.server_name),) if args.server_name else ()
    return grpc.secure_channel(args.endpoint, credentials, options=(*OPTIONS, *named))


def ask(street: grpc.Channel, service: str, *, timeout_s: float) -> int:
    """Return the health status of one service; raises grpc.RpcError where nobody answers."""
    check = street.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    answer = check(
        health_pb2.HealthCheckRequest(service=service), timeout=timeout_s, wait_for_ready=True
    )
    return answer.status


def probe_parser() -> argparse.ArgumentParser:
    """Return the parser of `eplb-probe`."""
    parser = argparse.ArgumentParser(
        prog="eplb-probe", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("question", choices=sorted(ASKED))
    parser.add_argument("--endpoint", default="127.0.0.1:50051", help="default %(default)s")
    parser.add_argument("--timeout", type=float, default=4.0, help="seconds (default %(default)s)")
    for name, what in (
        ("--ca", "authority of the controller's certificate; turns TLS on"),
        ("--certificate", "a certificate that the controller's security.client_ca vouches for"),
        ("--key", "its key"),
    ):
        parser.add_argument(name, type=Path, metavar="FILE", help=what)
    parser.add_argument("--server-name", default="", help="name in the controller's certificate")
    return parser


if __name__ == "__main__":
    sys.exit(main())
