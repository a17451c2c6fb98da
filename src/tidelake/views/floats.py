"""Sums of floats that are exact, whatever the order of the rows: accumulators that are whole numbers.

Owns the cut of a float into windows of bits, and the way back; must not know plans.

A double is a whole number times a power of two between 2^-1074 and 2^971. Its bits are cut at fixed places
into windows of 84 bits. Each window is summed as a whole number, which a HUGEINT holds for 2^42 rows. NaN and
the infinities are counted. The result is the sum of the windows, rounded once, to the nearest double, ties to
even.
"""

from collections.abc import Sequence

_BITS = 84
_LOWEST = -1092
_WINDOWS = 26
# Of a sum, so many bits go into the one rounding; the last of them is 1 if a lower bit is.
_ROUNDED_BITS = 60


def float_parts(text: str, condition: str) -> tuple[str, ...]:
    """The accumulators of a sum of a DOUBLE, each an expression of type HUGEINT that is never NULL.

    The text is not NULL where the condition holds.
    """
    kinds = (f"isnan({text})", f"{text} = CAST('inf' AS DOUBLE)", f"{text} = CAST('-inf' AS DOUBLE)")
    counts = [f"CAST(CASE WHEN {condition} AND {kind} THEN 1 ELSE 0 END AS HUGEINT)" for kind in kinds]
    finite = f"{condition} AND isfinite({text})"
    windows = [_window(text, _LOWEST + i * _BITS, finite) for i in range(_WINDOWS)]
    return (*counts, *windows)


def _window(text: str, low: int, condition: str) -> str:
    """The bits of a float from 2^low on, with its sign, as a whole number. Each step is exact."""
    upper = low + _BITS
    bits = f"trunc({_times(text, -low)})"
    cases = [f"WHEN NOT ({condition}) THEN 0"]
    if upper + 53 <= 1023:
        cases.append(f"WHEN abs({text}) >= {_power(upper + 53)} THEN 0")
    if upper <= 1023:
        above = f"trunc({_times(text, -upper)}) * {_power(_BITS)}"
        cases.append(f"WHEN abs({text}) >= {_power(upper)} THEN {bits} - {above}")
    return f"CAST(CASE {' '.join(cases)} ELSE {bits} END AS HUGEINT)"


def _power(exponent: int) -> str:
    return f"CAST({2.0**exponent!r} AS DOUBLE)"


def _times(text: str, exponent: int) -> str:
    """A float times a power of two, in two steps if that is no double."""
    if exponent <= 1023:
        return f"({text} * {_power(exponent)})"
    return f"({text} * {_power(exponent // 2)} * {_power(exponent - exponent // 2)})"


def float_total(names: Sequence[str]) -> str:
    """The sum over accumulators that are called so: a DOUBLE."""
    (nans, ups, downs), windows = names[:3], names[3:]
    listed = f"[{', '.join(windows)}]"
    negated = f"[{', '.join(f'-{one}' for one in windows)}]"
    digits = _bound("c", _carried(listed), f"CASE WHEN c[1] < 0 THEN {_carried(negated)} ELSE c END")
    first = "coalesce(list_position(list_transform(d, lambda x: x <> 0), true), 0)"
    finite = _bound("d", digits, _bound("p", first, f"CASE WHEN p = 0 THEN 0 ELSE {_rounded()} END"))
    sign = f"CASE WHEN {_carried(listed)}[1] < 0 THEN -1 ELSE 1 END"
    return (
        f"CASE WHEN {nans} > 0 OR ({ups} > 0 AND {downs} > 0) THEN CAST('nan' AS DOUBLE) "
        f"WHEN {ups} > 0 THEN CAST('inf' AS DOUBLE) WHEN {downs} > 0 THEN CAST('-inf' AS DOUBLE) "
        f"ELSE {sign} * {finite} END"
    )


def _bound(name: str, value: str, body: str) -> str:
    """A text in which a name stands for a value that is computed once."""
    return f"list_transform([{value}], lambda {name}: {body})[1]"


def _carried(windows: str) -> str:
    """What is carried out of the highest window, and digits below 2^84 from the highest to the lowest."""
    digit = f"((a[1] + w) % {2**_BITS} + {2**_BITS}) % {2**_BITS}"
    step = f"list_concat([(a[1] + w - ({digit})) // {2**_BITS}, {digit}], a[2:])"
    return f"list_reduce({windows}, lambda a, w: {step}, [0::HUGEINT])"


def _rounded() -> str:
    """The double nearest to the digits `d`, of which the one at `p` is the first that is not zero."""
    bits = "length(bin(d[p]))"
    next_ = "coalesce(d[p + 1], 0)"
    rest = "len(list_filter(d[p + 2:], lambda x: x <> 0)) > 0"
    wide = _bound(
        "q", f"pow(2, {bits} - {_ROUNDED_BITS})::HUGEINT", _sticky("d[p]", "q", f"{next_} <> 0 OR {rest}")
    )
    above = f"d[p] * pow(2, {_ROUNDED_BITS} - {bits})::HUGEINT"
    divisor = f"pow(2, {_BITS - _ROUNDED_BITS} + {bits})::HUGEINT"
    narrow = f"{above} + {_bound('q', divisor, _sticky(next_, 'q', rest))}"
    kept = f"CASE WHEN {bits} >= {_ROUNDED_BITS} THEN {wide} ELSE {narrow} END"
    exponent = f"{_LOWEST} + ({_WINDOWS + 1} - p) * {_BITS} + {bits} - {_ROUNDED_BITS}"
    halves = "pow(2.0::DOUBLE, e // 2) * pow(2.0::DOUBLE, e - e // 2)"
    return _bound("e", exponent, f"CAST(CAST({kept} AS BIGINT) AS DOUBLE) * {halves}")


def _sticky(number: str, divisor: str, rest: str) -> str:
    """A number divided; the last bit is 1 if anything that is not zero was cut off."""
    cut = f"{number} % {divisor} <> 0 OR {rest}"
    return (
        f"({number} // {divisor} + CASE WHEN ({number} // {divisor}) % 2 = 0 AND ({cut}) THEN 1 ELSE 0 END)"
    )
