"""Views as JSON, and heat as bytes: what the page's scripts read.

Axes    L MoE layers   E logical experts   N ranks   P slots
"""

import json
import math
import struct

import numpy as np

from eplb_service.controller.page_desk import Look, PlacedHeat, PlanLine, PlanMap
from eplb_service.controller.views import HistoryView, OperationView

Json = dict[str, object]


def looks_json(looks: tuple[Look, ...]) -> bytes:
    """Every deployment at one look, one line of JSON."""
    return _dump({"deployments": [_look(look) for look in looks]})


def history_json(history: HistoryView) -> bytes:
    """Lines of history, newest first."""
    entries = [
        {
            "at": e.at_s,
            "kind": e.kind,
            "plan": e.plan_id,
            "epoch": e.epoch,
            "who": e.who,
            "text": e.text,
        }
        for e in history.entries
    ]
    return _dump({"deployment": history.deployment, "entries": entries})


def plan_json(plan: PlanMap) -> bytes:
    """A plan slot by slot."""
    return _dump(
        {
            "layers": plan.layers,
            "modelLayers": plan.model_layers,
            "starts": plan.slot_starts,
            "before": plan.before.tolist(),
            "after": plan.after.tolist(),
            "moves": plan.moves,
            "findings": [
                {"gate": f.gate, "answer": f.answer.value, "text": f.text} for f in plan.findings
            ],
        }
    )


def error_json(code: str, text: str) -> bytes:
    """Why there is no answer."""
    return _dump({"code": code, "error": text})


def heat_bytes(placed: PlacedHeat) -> bytes:
    """Heat as the page's scripts take it without parsing, all little-endian.

    The length of a head as uint32, the head as JSON padded with blanks to a multiple of 4,
    float32 tokens [L, E], float32 load [L, N] with NaN for unknown ranks, int32 phy2log [L, P].
    """
    heat, placement = placed.heat, placed.placement
    layout = placement.layout
    head = _dump(
        {
            "layers": len(heat.layers),
            "experts": heat.tokens.shape[1],
            "ranks": layout.num_ranks,
            "starts": layout.starts(),
            "modelLayers": heat.model_layers,
            "imbalance": [_number(value) for value in heat.imbalance.tolist()],
            "steps": heat.num_steps,
        }
    )
    head += b" " * (-len(head) % 4)
    return b"".join(
        (
            struct.pack("<I", len(head)),
            head,
            heat.tokens.astype("<f4").tobytes(),
            heat.rank_load.astype("<f4").tobytes(),
            np.ascontiguousarray(placement.phy2log).astype("<i4").tobytes(),
        )
    )


def _look(look: Look) -> Json:
    status = look.status
    return {
        "name": status.deployment,
        "epoch": status.epoch,
        "generation": status.generation,
        "settledAge": _number(status.settled_age_s),
        "imbalance": {
            "mean": _number(status.imbalance.mean),
            "worst": _number(status.imbalance.worst),
            "worstLayer": status.imbalance.worst_layer,
        },
        "window": {
            "steps": status.window.num_steps,
            "coverage": _number(status.window.coverage),
            "age": _number(status.window.age_s),
        },
        "ranks": [
            {"rank": r.rank, "connected": r.is_connected, "epoch": r.epoch, "phase": r.phase}
            for r in status.ranks
        ],
        **_operation(status.operation),
        "heatKey": look.heat_key,
        "plans": [_plan(line) for line in look.plans],
    }


def _operation(operation: OperationView) -> Json:
    running, freeze = operation.running, operation.freeze
    return {
        "halt": operation.halt.reason if operation.halt.is_active else "",
        "freeze": f"{freeze.reason} ({freeze.who})" if freeze else "",
        "running": running
        and {
            "plan": running.plan_id,
            "phase": running.phase,
            "wave": running.wave,
            "waves": running.num_waves,
            "wavePhase": running.wave_phase,
        },
    }


def _plan(line: PlanLine) -> Json:
    return {
        "id": line.plan_id,
        "policy": line.policy,
        "origin": line.cause.origin.value,
        "who": line.cause.who,
        "reason": line.cause.reason,
        "phase": line.phase,
        "ending": line.ending,
        "at": line.drawn_at_s,
        "moves": line.cost[0],
        "bytes": line.cost[1],
        "before": _number(line.imbalance[0]),
        "after": _number(line.imbalance[1]),
    }


def _number(value: float) -> float | None:
    """A number that JSON can say; null where there is none."""
    return value if math.isfinite(value) else None


def _dump(tree: Json) -> bytes:
    return json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()
