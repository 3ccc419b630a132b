"""Sixteen float32 numbers as one value in a numba kernel, for sums of rows that stay in a register.

Numba's loops write a sum of rows to memory after each row: a pass of a feature CRF (`features.crf`)
takes 1.4 to 2 times as long that way. As plain Python (``NUMBA_DISABLE_JIT=1``) a value is an array
of sixteen numbers. Indices are not checked.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

WIDTH = 16
_FLOATS = ir.VectorType(ir.FloatType(), WIDTH)


class _Lanes(types.Type):
    """Numba's name for sixteen float32 numbers."""


_LANES = _Lanes("lanes")
register_model(_Lanes)(
    lambda manager, kind: models.PrimitiveModel(manager, kind, _FLOATS)  # type: ignore[no-untyped-call]
)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _FLOATS.as_pointer())


@intrinsic
def _zeros(_typing: Any) -> Any:
    return _LANES(), lambda *_: ir.Constant(_FLOATS, [0.0] * WIDTH)


@intrinsic
def _add_row(_typing: Any, _total: Any, array: Any, _index: Any, _factor: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total, rows, index, factor = args
        row = builder.load(_pointer(context, builder, signature.args[1], rows, index), align=4)
        first = builder.insert_element(
            ir.Constant(_FLOATS, ir.Undefined), factor, ir.IntType(32)(0)
        )
        copies = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
        factors = builder.shuffle_vector(first, first, copies)
        return builder.fadd(total, builder.fmul(factors, row))

    return _LANES(_LANES, array, types.int64, types.float32), generate


@intrinsic
def _store(_typing: Any, array: Any, _index: Any, _value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows, index, value = args
        pointer = _pointer(context, builder, signature.args[0], rows, index)
        builder.store(value, pointer, align=4)
        return context.get_dummy_value()

    return types.none(array, types.int64, _LANES), generate


def _plain_zeros() -> Any:
    return np.zeros(WIDTH, np.float32)


def _plain_add_row(total: Any, array: Any, index: int, factor: Any) -> Any:
    return total + factor * array[index : index + WIDTH]


def _plain_store(array: Any, index: int, value: Any) -> None:
    array[index : index + WIDTH] = value


_PLAIN = numba.njit(_plain_store) is _plain_store  # NUMBA_DISABLE_JIT
zeros: Any = _plain_zeros if _PLAIN else _zeros  # sixteen times 0
add_row: Any = _plain_add_row if _PLAIN else _add_row  # total + factor · array[index : index + 16]
store: Any = _plain_store if _PLAIN else _store  # array[index : index + 16] = value
