"""Sixteen float32 numbers as one value in a numba kernel, for loops that need every register and sums in a fixed order.

Numba leaves it to the compiler to find out which loops can run on several numbers at once. Where sums must stay in registers through
a loop it does not find out, and how it orders a sum depends on the processor. Lanes settle both: `load` and `store` move sixteen
neighbours of a one-dimensional float32 array (the index is not checked), ``+ - * /`` and the functions below work on each lane, and
`add_up` adds the lanes in one order. As plain Python (``NUMBA_DISABLE_JIT=1``) a value is an array of sixteen numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, overload, register_model

F = TypeVar("F", bound=Callable[..., Any])

WIDTH = 16
_FLOATS = ir.VectorType(ir.FloatType(), WIDTH)
_WORDS = ir.VectorType(ir.IntType(32), WIDTH)


def kernel(function: F) -> F:
    """Compile with numba; products and sums may be fused but are never reordered."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})(function))


class _Lanes(types.Type):
    """Numba's name for sixteen float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name="lanes")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, _FLOATS)  # type: ignore[no-untyped-call]


_LANES = _Lanes()


def _words(value: int) -> Any:
    return ir.Constant(_WORDS, [value] * WIDTH)


def _copies(builder: Any, number: Any) -> Any:
    nothing = ir.Constant(_FLOATS, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0)), nothing, _words(0))


def _place(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


@intrinsic
def _load(_typing: Any, array: Any, _index: Any) -> Any:
    """Sixteen numbers from ``array[index]`` on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.bitcast(_place(context, builder, signature.args[0], *args), _FLOATS.as_pointer())
        return builder.load(place, align=4)

    return _LANES(array, types.int64), generate


@intrinsic
def _store(_typing: Any, array: Any, _index: Any, _value: Any) -> Any:
    """Write them from ``array[index]`` on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.bitcast(_place(context, builder, signature.args[0], *args[:2]), _FLOATS.as_pointer())
        builder.store(args[2], place, align=4)
        return context.get_dummy_value()

    return types.none(array, types.int64, _LANES), generate


@intrinsic
def _spread(_typing: Any, array: Any, _index: Any) -> Any:
    """One number, ``array[index]``, in every lane."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _copies(builder, builder.load(_place(context, builder, signature.args[0], *args)))

    return _LANES(array, types.int64), generate


@intrinsic
def _fill(_typing: Any, _number: Any) -> Any:
    """A float32 in every lane."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _copies(builder, args[0])

    return _LANES(types.float32), generate


@intrinsic
def _where_greater(_typing: Any, _a: Any, _b: Any, _x: Any, _y: Any) -> Any:
    """Choose x where a > b, else (also where one is NaN) y."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        a, b, x, y = args
        return builder.select(builder.fcmp_ordered(">", a, b), x, y)

    return _LANES(_LANES, _LANES, _LANES, _LANES), generate


@intrinsic
def _power_of_two(_typing: Any, _exponent: Any) -> Any:
    """2^exponent for whole numbers from -126 to 127."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        exponent = builder.fptosi(args[0], _WORDS)
        return builder.bitcast(builder.shl(builder.add(exponent, _words(127)), _words(23)), _FLOATS)

    return _LANES(_LANES), generate


@intrinsic
def _exponent(_typing: Any, _value: Any) -> Any:
    """The whole number e with 2^e ≤ value < 2^(e+1), for a positive normal value."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.sitofp(builder.sub(builder.lshr(builder.bitcast(args[0], _WORDS), _words(23)), _words(127)), _FLOATS)

    return _LANES(_LANES), generate


@intrinsic
def _add_up(_typing: Any, _value: Any) -> Any:
    """The sum of the lanes, upper half onto lower half until one is left."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value, width = args[0], WIDTH
        while width > 1:
            width //= 2
            half = ir.VectorType(ir.IntType(32), width)
            lower, upper = (builder.shuffle_vector(value, value, ir.Constant(half, list(range(at, at + width)))) for at in (0, width))
            value = builder.fadd(lower, upper)
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    return types.float32(_LANES), generate


def _load_plainly(array: Any, index: int) -> Any:
    return array[index : index + WIDTH].copy()


def _store_plainly(array: Any, index: int, value: Any) -> None:
    array[index : index + WIDTH] = value


def _spread_plainly(array: Any, index: int) -> Any:
    return np.full(WIDTH, array[index])


def _fill_plainly(number: float) -> Any:
    return np.full(WIDTH, number, dtype=np.float32)


def _where_greater_plainly(a: Any, b: Any, x: Any, y: Any) -> Any:
    return np.where(a > b, x, y)


def _exponent_plainly(value: Any) -> Any:
    return (np.frexp(value)[1] - 1).astype(np.float32)


def _add_up_plainly(value: Any) -> Any:
    while len(value) > 1:
        value = value[: len(value) // 2] + value[len(value) // 2 :]
    return value[0]


_PLAIN = kernel(_load_plainly) is _load_plainly  # NUMBA_DISABLE_JIT: there is no compiler to write instructions for
load: Any = _load_plainly if _PLAIN else _load
store: Any = _store_plainly if _PLAIN else _store
spread: Any = _spread_plainly if _PLAIN else _spread
fill: Any = _fill_plainly if _PLAIN else _fill
where_greater: Any = _where_greater_plainly if _PLAIN else _where_greater
power_of_two: Any = np.exp2 if _PLAIN else _power_of_two
exponent: Any = _exponent_plainly if _PLAIN else _exponent
add_up: Any = _add_up_plainly if _PLAIN else _add_up


def _define(symbol: Any, instruction: str) -> None:
    """Let numba take ``symbol`` between lanes, and between lanes and a number, for the LLVM instruction."""

    @intrinsic
    def compute(_typing: Any, _a: Any, _b: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return getattr(builder, instruction)(*args)

        return _LANES(_LANES, _LANES), generate

    on_lanes: Any = compute

    @overload(symbol, strict=False)  # else the signatures would have to agree in their annotations too
    def choose(a: Any, b: Any) -> Any:
        if a is _LANES and b is _LANES:
            return lambda a, b: on_lanes(a, b)
        if a is _LANES and isinstance(b, types.Float):
            return lambda a, b: on_lanes(a, fill(np.float32(b)))
        if b is _LANES and isinstance(a, types.Float):
            return lambda a, b: on_lanes(fill(np.float32(a)), b)
        return None


for _symbol, _instruction in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"), (operator.truediv, "fdiv")):
    _define(_symbol, _instruction)


@kernel
def larger(a: Any, b: Any) -> Any:
    """The larger of the two in each lane; a NaN in ``a`` stays."""
    return where_greater(b, a, b, a)


@kernel
def expm1(x: Any) -> Any:
    """e^x - 1 for x ≤ 0, to rounding of the result also near 0; -1 below -87."""
    lowest = fill(np.float32(-87.0))
    x = larger(x, lowest)
    # x = power · log 2 + rest with |rest| ≤ log(2)/2; adding and subtracting 1.5 · 2^23 rounds to a whole number
    power = (x * np.float32(1.4426950408889634) + np.float32(12582912.0)) - np.float32(12582912.0)
    rest = (x - power * np.float32(0.693359375)) + power * np.float32(2.1219444005469057e-4)  # log 2 in two parts, the first short
    p = rest * np.float32(1.0 / 5040.0) + np.float32(1.0 / 720.0)
    p = p * rest + np.float32(1.0 / 120.0)
    p = p * rest + np.float32(1.0 / 24.0)
    p = p * rest + np.float32(1.0 / 6.0)
    p = p * rest + np.float32(0.5)
    p = p * (rest * rest) + rest  # e^rest - 1
    factor = power_of_two(power)
    return factor * p + (factor - np.float32(1.0))


@kernel
def log(x: Any) -> Any:
    """Logarithm of positive normal numbers."""
    # x = 2^e · f with √½ ≤ f < √2;  log(1 + y) = y - y²/2 + y³ P(y), P of least relative error
    e = exponent(x * np.float32(1.4142135))
    y = x * power_of_two(fill(np.float32(0.0)) - e) - np.float32(1.0)
    p = y * np.float32(0.0870026872) + np.float32(-0.1426746398)
    p = p * y + np.float32(0.1491481066)
    p = p * y + np.float32(-0.1657758802)
    p = p * y + np.float32(0.1996306032)
    p = p * y + np.float32(-0.2500133812)
    p = p * y + np.float32(0.3333390951)
    p = p * y + np.float32(-0.5)
    return e * np.float32(0.6931471805599453) + (p * (y * y) + y)
