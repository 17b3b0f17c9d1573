"""What one layer must give for a format: stage by stage in one process, and in float64.

Axes    T tokens   D width   K experts per token   E experts   F = 2 I   Z width

`Oracle.staged` quantises where the format does and rounds where the model's dtype does, and has
neither slots nor exchange; a layer may differ from it by the rounding of its last sum only.
`Oracle.exact` quantises and rounds nowhere, and says how far a layer may be from it: each
quantisation by the format's own error (`formats.bounds`), each product and rounding by the
dtype's, carried through the linears and the activation. Neither number is tuned.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.backends.cpu_rows import dequantise, quantise
from moe_runtime.contracts.gating import Choice
from moe_runtime.contracts.rows import RowForm
from moe_runtime.contracts.tokens import NoTokenIds, TokenIds
from moe_runtime.contracts.torch_calls import to_ints
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.formats.bounds import row_error
from moe_runtime.formats.packing import Packing, dense_of, pack
from moe_runtime.layer.parts import rms_norm
from moe_runtime.routing.router import GatingPath, RouterInput, bind
from moe_runtime.runtime import ClippedSwiGLU, OnInputRouting, SwiGLUOAI, SyntheticModel

__all__ = ["Oracle", "Want"]

_STEEPEST = 1.13
"""No gate's factor in any activation is steeper: silu's is 1.0999, gelu's 1.1290."""
_WIDE = torch.float64


@dataclass(frozen=True, slots=True, eq=False)
class Want:
    """What is wanted of a layer, and how far it may be from it."""

    y_TD: Tensor
    within_TD: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Expert:
    """float64, as its format stores it."""

    w13_FZ: Tensor
    w2_ZI: Tensor
    bias13_F: Tensor
    bias2_Z: Tensor


class Oracle:
    """A synthetic model's first layer, in one format and dtype."""

    def __init__(self, model: SyntheticModel, packing: Packing, dtype: torch.dtype) -> None:
        self._model = model
        self._shape = model.shape
        self._form = packing.format.rows
        self._dtype = dtype
        self._unit = torch.finfo(dtype).eps
        self._experts = self._unpacked(packing)

    def _unpacked(self, packing: Packing) -> list[_Expert]:
        model, dtype, numbers = self._model, self._dtype, range(self._shape.num_experts)
        plain = [model.expert(0, e, torch.float32) for e in numbers]
        stacks = DenseWeights(
            torch.cat([w.w13_SFZ for w in plain]), torch.cat([w.w2_SZI for w in plain])
        )
        stood_for = dense_of(pack(stacks, packing, dtype))
        biases = [model.bias(0, e, dtype) for e in numbers]
        counted = 1 if self._shape.biased else 0
        return [
            _Expert(w13_FZ, w2_ZI, counted * b.gate_up_F.to(_WIDE), counted * b.down_Z.to(_WIDE))
            for w13_FZ, w2_ZI, b in zip(stood_for.w13_SFZ, stood_for.w2_SZI, biases, strict=True)
        ]

    def staged(self, x_TD: Tensor, ids: NoTokenIds | TokenIds) -> Want:
        """Return the layer with every rounding of the format and the dtype, but the last sum's."""
        return self._layer(x_TD, ids, is_exact=False)

    def misplaced(self, x_TD: Tensor, ids: NoTokenIds | TokenIds) -> Want:
        """Return what the layer would be if each expert's weights were its neighbour's."""
        right = self._experts
        self._experts = [*right[1:], right[0]]
        wrong = self.staged(x_TD, ids)
        self._experts = right
        return wrong

    def exact(self, x_TD: Tensor, ids: NoTokenIds | TokenIds) -> Want:
        """Return the layer in float64, and the format's own error."""
        return self._layer(x_TD, ids, is_exact=True)

    def _layer(self, x_TD: Tensor, ids: NoTokenIds | TokenIds, *, is_exact: bool) -> Want:
        x_TD = x_TD.to(self._dtype)
        weights = self._model.layer(0, self._dtype)
        normed_TD = rms_norm(x_TD)
        router = bind(self._shape.selector, weights.router, path=GatingPath.REFERENCE)
        given = RouterInput(normed_TD, normed_TD @ weights.gate_XD.t(), ids)
        choice = router.choose(given, CpuBackend())
        want = self._routed(normed_TD, choice, is_exact=is_exact)
        y_TD, within_TD = want.y_TD, want.within_TD
        for shared in weights.shared:
            dense = dense_of(shared.weights)
            w13_DF, w2_ID = dense.w13_SFZ[0].t(), dense.w2_SZI[0].t()
            gate_up = normed_TD.to(_WIDE) @ w13_DF
            size_TF = normed_TD.to(_WIDE).abs() @ w13_DF.abs()
            off_TF = self._products(size_TF, normed_TD.shape[1])
            hidden, off_TI = self._activated(gate_up, off_TF)
            y_TD = y_TD + hidden @ w2_ID
            size_TD = (hidden.abs() + off_TI) @ w2_ID.abs()
            within_TD = within_TD + off_TI @ w2_ID.abs() + self._products(size_TD, len(w2_ID))
        total_TD = x_TD.to(_WIDE) + y_TD
        return Want(total_TD, within_TD + 4 * self._unit * (x_TD.abs() + y_TD.abs() + within_TD))

    def _routed(self, normed_TD: Tensor, choice: Choice, *, is_exact: bool) -> Want:
        on_input = isinstance(self._shape.selector, OnInputRouting)
        weights_TK = choice.weights_TK.to(self._dtype)
        y_TD = torch.zeros(normed_TD.shape, dtype=_WIDE)
        within_TD, sizes_TD = torch.zeros_like(y_TD), torch.zeros_like(y_TD)
        for k in range(weights_TK.shape[1]):
            weight_T1 = weights_TK[:, k : k + 1]
            x_TD = normed_TD * weight_T1 if on_input else normed_TD
            scale_T1 = torch.ones_like(weight_T1) if on_input else weight_T1
            for row, expert in enumerate(to_ints(choice.experts.ids_TK[:, k])):
                scale = scale_T1[row].to(_WIDE)
                if expert >= self._shape.num_experts:
                    one = Want(x_TD[row].to(_WIDE), torch.zeros_like(y_TD[row]))
                else:
                    one = self._one(self._experts[expert], x_TD[row : row + 1], is_exact=is_exact)
                y_TD[row] += (scale * one.y_TD).reshape(-1)
                within_TD[row] += (scale.abs() * one.within_TD).reshape(-1)
                sizes_TD[row] += (scale.abs() * one.y_TD.abs()).reshape(-1)
        num_sums = weights_TK.shape[1] + 8
        return Want(y_TD, within_TD + num_sums * self._unit * (sizes_TD + within_TD))

    def _one(self, expert: _Expert, x_1D: Tensor, *, is_exact: bool) -> Want:
        if not is_exact:
            return self._one_staged(expert, x_1D)
        x_1Z = x_1D.to(_WIDE)
        off_1Z = row_error(x_1Z, self._form)
        gate_up = x_1Z @ expert.w13_FZ.t() + expert.bias13_F
        size_1F = (x_1Z.abs() + off_1Z) @ expert.w13_FZ.abs().t() + expert.bias13_F.abs()
        off_1F = off_1Z @ expert.w13_FZ.abs().t() + self._products(size_1F, x_1Z.shape[1])
        hidden, off_1I = self._activated(gate_up, off_1F)
        off_1I = off_1I + row_error(hidden.abs() + off_1I, self._form)
        y_1Z = hidden @ expert.w2_ZI.t() + expert.bias2_Z
        size_1Z = (hidden.abs() + off_1I) @ expert.w2_ZI.abs().t() + expert.bias2_Z.abs()
        within = off_1I @ expert.w2_ZI.abs().t() + self._products(size_1Z, hidden.shape[1])
        return Want(y_1Z, within)

    def _one_staged(self, expert: _Expert, x_1D: Tensor) -> Want:
        dtype = self._dtype
        x_1Z = dequantise(quantise(x_1D, self._form))
        gate_up = (x_1Z @ expert.w13_FZ.t()).to(dtype)
        if self._shape.biased:
            gate_up = gate_up + expert.bias13_F.to(dtype)
        if self._form is RowForm.PLAIN:
            hidden_1I = self._shape.activation(gate_up)
        else:  # a last bit before quantising may be worth a step, so it is settled wide
            hidden_1I = self._shape.activation(gate_up.to(_WIDE)).to(dtype)
        hidden = dequantise(quantise(hidden_1I, self._form))
        y_1Z = (hidden @ expert.w2_ZI.t()).to(dtype)
        if self._shape.biased:
            y_1Z = y_1Z + expert.bias2_Z.to(dtype)
        return Want(y_1Z.to(_WIDE), torch.zeros(y_1Z.shape, dtype=_WIDE))

    def _products(self, size: Tensor, num_terms: int) -> Tensor:
        """Return the error of sums of that many products, added up in float32 or better."""
        return size * (2 * self._unit + 2 * num_terms * 2.0**-24)

    def _activated(self, gate_up: Tensor, off_F: Tensor) -> tuple[Tensor, Tensor]:
        """Return the activation and its error: two factors, both of bounded slope."""
        activation = self._shape.activation
        hidden = activation(gate_up)
        interleaved = isinstance(activation, SwiGLUOAI)
        gate, up = _halves(gate_up, interleaved=interleaved)
        off_gate, off_up = _halves(off_F, interleaved=interleaved)
        beta = 1.0 if interleaved else 0.0
        if isinstance(activation, ClippedSwiGLU):
            beta = abs(activation.beta)
        size = gate.abs() * (up.abs() + beta)
        off = _STEEPEST * off_gate * (up.abs() + beta + off_up) + gate.abs() * off_up
        return hidden, off + 8 * self._unit * (size + off)


def _halves(gate_up: Tensor, *, interleaved: bool) -> tuple[Tensor, Tensor]:
    if interleaved:
        return gate_up[..., ::2], gate_up[..., 1::2]
    first, second = gate_up.chunk(2, dim=-1)
    return first, second
