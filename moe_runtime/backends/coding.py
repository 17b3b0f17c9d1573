"""Encoding rows before they are sent, in the form that the experts read."""

from dataclasses import dataclass

from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.rows import RowForm, Rows

__all__ = ["FormCoder"]


@dataclass(frozen=True, slots=True)
class FormCoder:
    """Meets `RowCoder`: what arrives is what experts would have made of plain rows themselves."""

    backend: Backend
    form: RowForm

    def encode(self, x_MZ: Tensor) -> Rows:
        """Return the rows in the form."""
        return self.backend.quantise(x_MZ, self.form)
