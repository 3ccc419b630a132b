"""Several numbers as one value in a numba kernel: four float64 or sixteen float32.

Sums of such values stay in registers, where numba's own loops would write a sum of rows to memory
after each row, or cannot be vectorised at all. As plain Python (``NUMBA_DISABLE_JIT=1``) a value is
an array of as many numbers. Indices are not checked.
"""

# Numba has no types of its own here.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import operator
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable
from numba.np.arrayobj import populate_array

WIDTHS = {"float64": 4, "float32": 16}
_ELEMENTS = {"float64": ir.DoubleType(), "float32": ir.FloatType()}


class _Vector(types.Type):
    """Numba's name for several numbers of one kind."""

    def __init__(self, element: Any) -> None:
        super().__init__(name=f"vector({element})")
        self.element = element
        self.value = ir.VectorType(_ELEMENTS[element.name], WIDTHS[element.name])


register_model(_Vector)(lambda manager, kind: models.PrimitiveModel(manager, kind, kind.value))


@intrinsic
def _vectors(_typing: Any, array: Any, log: Any) -> Any:
    if log != types.none:
        return array(array, log), lambda context, builder, _, args: impl_ret_borrowed(
            context, builder, array, args[0]
        )
    kind = _Vector(array.dtype)
    result = types.Array(kind, array.ndim, "A", aligned=False)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = context.make_array(array)(context, builder, args[0])
        found = context.make_array(result)(context, builder)
        step = context.get_constant(types.intp, array.dtype.bitwidth // 8)
        strides = given.strides
        if array.layout == "C":  # known here, so that it is no variable of the loop
            strides = builder.insert_value(strides, step, array.ndim - 1)
        size = builder.mul(step, context.get_constant(types.intp, kind.value.count))
        data = builder.bitcast(given.data, kind.value.as_pointer())
        # No reference is counted, which would take longer than a short sum.
        populate_array(found, data, given.shape, strides, size, None)
        return found._getvalue()

    return result(array, log), generate


def _define(function: Any, instruction: str) -> None:
    """A sum or product of two vectors, or of a vector and a number."""

    def typed(_context: Any) -> Any:
        def result(left: Any, right: Any) -> Any:
            if isinstance(left, _Vector) and right in (left, left.element):
                return left
            return None

        return result

    def generate(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        left, right = args
        if signature.args[1] != signature.args[0]:
            kind, number = signature.args[0].value, ir.IntType(32)
            copies = ir.Constant(ir.VectorType(number, kind.count), [0] * kind.count)
            first = builder.insert_element(ir.Constant(kind, ir.Undefined), right, number(0))
            right = builder.shuffle_vector(first, first, copies)
        return getattr(builder, instruction)(left, right)

    type_callable(function)(typed)
    for second in (_Vector, types.Float):
        lower_builtin(function, _Vector, second)(generate)


_define(operator.add, "fadd")
_define(operator.mul, "fmul")


def _plain_vectors(array: Any, log: bool | None) -> Any:
    """The vectors that begin at each number of an array, along its last dimension.

    For a recursion on logarithms (see `softq.kernels.semiring`) the array as it is. It must outlive
    them.
    """
    if log is not None:
        return array
    return np.lib.stride_tricks.as_strided(
        array, (*array.shape, WIDTHS[array.dtype.name]), (*array.strides, array.strides[-1])
    )


_PLAIN = numba.njit(_plain_vectors) is _plain_vectors  # NUMBA_DISABLE_JIT
vectors: Any = _plain_vectors if _PLAIN else _vectors
