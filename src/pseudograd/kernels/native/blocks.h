/* The work on a block of elements, for the loops of a CPU (loops.h) and for a thread of a device (kernels.cu). Who includes this has
defined, for each dtype:

    T, NAME(x)          the type in memory, and a name of its own for each function
    LANE(x)             the lanes in which it is computed: float32 or float64
    LOAD(p) STORE(p, v) from and to memory; STORE rounds to nearest even

and for each kind of lanes, as LANE(...): vec and mask, vectors of numbers and of yes or no; lanes, their number; all(number), none();
less, equal (a, b); above(a, b), also true if one is NaN; select(m, yes, no); clamp(v, low, high) as torch does it; whole(v), rounded to an
integer, halves to the even one; times_single(v, factor), v and the product rounded to float32; bits(m), a mask as the low bits of a word;
from_bits(word, i), the mask of the bits from i on. Operators of C work on vectors of numbers; & and | work on masks.

It is both C and C++. If a rule is constant, the compiler leaves out the branches that it does not take. */
#define V LANE(vec)
#define M LANE(mask)

typedef struct { M below, above, at_min, at_max; } NAME(Places);

INLINE NAME(Places) NAME(places)(V x, V low, V high, int edges) {
    NAME(Places) p = {LANE(less)(x, low), LANE(less)(high, x), LANE(none)(), LANE(none)()};
    if (edges) p.at_min = LANE(equal)(x, low), p.at_max = LANE(equal)(x, high);
    return p;
}

/* The same for bounds that may be crossed, where y is max, or NaN, where y is NaN and x counts as inside. */
INLINE NAME(Places) NAME(places_of_any)(V x, V low, V high) {
    V y = LANE(select)(LANE(less)(x, low), low, x);
    y = LANE(select)(LANE(less)(high, y), high, y);
    M known = LANE(equal)(low, low) & LANE(equal)(high, high), at = known & LANE(equal)(x, y);
    NAME(Places) p = {known & LANE(less)(x, y), known & LANE(less)(y, x), at & LANE(equal)(x, low), at & LANE(equal)(x, high)};
    return p;
}

INLINE M NAME(plane)(NAME(Places) p, unsigned places) {
    M m = LANE(none)();
    if (places & BELOW) m |= p.below;
    if (places & ABOVE) m |= p.above;
    if (places & AT_MIN) m |= p.at_min;
    if (places & AT_MAX) m |= p.at_max;
    return m;
}

/* factor * grad; 0 for a factor of 0, also where grad is infinite or NaN. */
INLINE V NAME(scaled)(V grad, double factor) { return factor == 0.0 ? LANE(all)(0.0) : grad * LANE(all)(factor); }

/* Is x in the first plane and grad > 0, or in the second and grad < 0? */
INLINE M NAME(blocked)(V grad, M first, M second) {
    return (first & LANE(up)(grad)) | (second & LANE(down)(grad));
}

/* `found`, with the share of grad where `there` is true. */
INLINE V NAME(with_share)(V found, V grad, M there, Share share) {
    if (share.kind == NUMBER) return LANE(select)(there, LANE(all)(share.up), found);
    if (share.kind == ALIKE) return LANE(select)(there, NAME(scaled)(grad, share.up), found);
    if (share.up != 1.0) found = LANE(select)(there & LANE(up)(grad), NAME(scaled)(grad, share.up), found);
    if (share.down != 1.0) found = LANE(select)(there & LANE(down)(grad), NAME(scaled)(grad, share.down), found);
    return found;
}

/* The gradient of x, by the planes that it is in. */
INLINE V NAME(pulled)(V grad, M first, M second, Rule rule) {
    V found = grad;
    if (rule.cuts_outward) found = LANE(inward)(grad, first, second);
    else if (rule.first) found = NAME(with_share)(found, grad, first, rule.shares[0]);
    if (rule.second && !rule.cuts_outward) found = NAME(with_share)(found, grad, second, rule.shares[1]);
    if (!rule.shares_both) return found;
    M both = first & second;
    if (rule.shares[2].kind == BY_SIGN) found = LANE(select)(both, grad, found);
    return NAME(with_share)(found, grad, both, rule.shares[2]);
}

INLINE void NAME(encode_block)(const T *x, T *y, uint8_t *first, uint8_t *second, V low, V high, Rule rule) {
    WORD bits[2] = {0, 0};
    UNROLLED for (int i = 0; i < BLOCK; i += LANE(lanes)) {
        V v = LOAD(x + i);
        NAME(Places) p = NAME(places)(v, low, high, rule.edges);
        if (rule.first) bits[0] |= (WORD)LANE(bits)(NAME(plane)(p, rule.first)) << i;
        if (rule.second) bits[1] |= (WORD)LANE(bits)(NAME(plane)(p, rule.second)) << i;
        STORE(y + i, LANE(clamp)(v, low, high));
    }
    if (rule.first) memcpy(first, bits, BLOCK / 8);
    if (rule.second) memcpy(second, bits + 1, BLOCK / 8);
}

/* Clamps between the bounds at `lows` and `highs`, and makes the code. y is NaN where x or a bound is. Where x equals a bound, y is x, also
   for zeros of different signs, for which torch takes x or the bound by the element's place. Returns where such zeros meet. */
INLINE WORD NAME(encode_between_block)(const T *x, const T *lows, const T *highs, T *y, uint8_t *first, uint8_t *second, Rule rule) {
    WORD bits[2] = {0, 0}, zeros = 0;
    V zero = LANE(all)(0.0);
    UNROLLED for (int i = 0; i < BLOCK; i += LANE(lanes)) {
        V v = LOAD(x + i), low = LOAD(lows + i), high = LOAD(highs + i);
        M min_is_zero = LANE(equal)(low, zero), max_is_zero = LANE(equal)(high, zero);
        zeros |= (WORD)LANE(bits)((min_is_zero & max_is_zero) | (LANE(equal)(v, zero) & (min_is_zero | max_is_zero)));
        if (rule.first || rule.second) {
            NAME(Places) p = NAME(places_of_any)(v, low, high);
            bits[0] |= (WORD)LANE(bits)(NAME(plane)(p, rule.first)) << i;
            bits[1] |= (WORD)LANE(bits)(NAME(plane)(p, rule.second)) << i;
        }
        V clamped = LANE(select)(LANE(equal)(high, high), LANE(clamp)(v, low, high), high);
        STORE(y + i, LANE(select)(LANE(equal)(low, low), clamped, low));
    }
    if (rule.first) memcpy(first, bits, BLOCK / 8);
    if (rule.second) memcpy(second, bits + 1, BLOCK / 8);
    return zeros;
}

INLINE void NAME(pull_code_block)(const T *grad, const uint8_t *first, const uint8_t *second, T *out, Rule rule) {
    WORD bits[2] = {0, 0};
    if (rule.first) memcpy(bits, first, BLOCK / 8);
    if (rule.second) memcpy(bits + 1, second, BLOCK / 8);
    EACH_PART for (int part = 0; part < BLOCK; part += PART_OF_BLOCK, bits[0] = LATER(bits[0]), bits[1] = LATER(bits[1]))
        EACH_OF_PART for (int i = 0; i < PART_OF_BLOCK; i += LANE(lanes)) {
            M in_first = rule.first ? LANE(from_bits)(bits[0], i) : LANE(none)();
            M in_second = rule.second ? LANE(from_bits)(bits[1], i) : LANE(none)();
            STORE(out + part + i, NAME(pulled)(LOAD(grad + part + i), in_first, in_second, rule));
        }
}

/* The numbers, rounded to this dtype. */
INLINE V NAME(rounded)(V v) {
    T held[LANE(lanes)];
    STORE(held, v);
    return LOAD(held);
}

/* grad; where it would move x further out, -grad times a share that grows with the distance of x up to 1. Each step is rounded as in the
   formula. */
INLINE V NAME(pulled_back)(V grad, V x, V low, V high, M first, M second, Rule rule) {
    V zero = LANE(all)(0.0), one = LANE(all)(1.0), negative = LANE(all)(-1.0);
    V below = NAME(rounded)(low - x), above = NAME(rounded)(x - high);
    V share = NAME(rounded)(LANE(select)(LANE(less)(above, below), below, above) / LANE(all)(rule.shares[0].up));
    share = LANE(select)(LANE(less)(share, one), share, one);
    V back = LANE(select)(LANE(less)(zero, share), grad, zero) * negative * share;
    return LANE(select)(NAME(blocked)(grad, first, second), back, grad);
}

/* |x|, in widths of the slope of a step. */
INLINE V NAME(widths)(V x, Rule rule) {
    V u = x / LANE(all)(rule.shares[0].up), zero = LANE(all)(0.0);
    return LANE(select)(LANE(less)(u, zero), zero - u, u);
}

/* The slope of a step at x, as in ops/steps.py; 0 where x is NaN or as far away as `farthest`. e: the exponential of BUMP and NORMAL. */
INLINE V NAME(slope_at)(V x, V e, V farthest, Rule rule) {
    V zero = LANE(all)(0.0), one = LANE(all)(1.0), height = LANE(all)(rule.shares[0].down), slope, u = NAME(widths)(x, rule);
    if (rule.kind == TENT) {
        slope = LANE(select)(LANE(less)(u, one), (one - u) * height, zero);
    } else if (rule.kind == WITCH) {
        V turn = u * LANE(all)(3.141592653589793);
        slope = one / (turn * turn + one) * height;
    } else if (rule.kind == NORMAL) {
        slope = e * height;
    } else if (rule.kind == BUMP) {
        V root = one / (e + one);
        slope = e * (root * root) * LANE(all)(rule.shares[0].down * 4.0);
    } else {
        V root = one / (u + one);
        slope = root * root * height;
    }
    return LANE(select)(LANE(less)(u, farthest), slope, zero);
}

/* grad times the slope; 0 where the slope is 0, whatever grad is. */
INLINE V NAME(times_slope)(V grad, V x, V e, V farthest, Rule rule) {
    V zero = LANE(all)(0.0), slope = NAME(slope_at)(x, e, farthest, rule);
    return LANE(select)(LANE(equal)(slope, zero), zero, grad) * slope;
}

/* The gradient of min or max: grad where y is this bound, which is max where the two are crossed; its share where x is at it. Where min
   equals max, min gets the share. */
INLINE V NAME(pulled_to_bound)(V grad, NAME(Places) p, M crossed, Rule rule) {
    V zero = LANE(all)(0.0), of_edge = NAME(scaled)(grad, rule.shares[0].up);
    M swapped = p.below & crossed;
    if (rule.kind == OF_MIN) return LANE(select)(swapped, zero, LANE(select)(p.below, grad, LANE(select)(p.at_min, of_edge, zero)));
    V found = LANE(select)(p.at_max, of_edge, zero);
    if (rule.first) found = LANE(select)(p.at_min, zero, found);
    return LANE(select)(p.above | swapped, grad, found);
}

/* For each region the elements of a block in it, between the bounds at `lows` and at `highs`, or two numbers where there are none. A bound
   that the call has not is an infinity. Where there is a y, x clamped between the numbers. */
INLINE void NAME(stand_block)(const T *x, const T *lows, const T *highs, T *y, V low, V high, int has_low, int has_high, WORD *words) {
    WORD below = 0, at_min = 0, at_max = 0, above = 0, known = 0, apart = 0, point = 0, crossed = 0;
    /* At an infinity in place of a bound x is as it is inside. */
    UNROLLED for (int i = 0; i < BLOCK; i += LANE(lanes)) {
        V v = LOAD(x + i), l = lows ? LOAD(lows + i) : low, h = highs ? LOAD(highs + i) : high;
        if (has_low) below |= (WORD)LANE(bits)(LANE(less)(v, l)) << i, at_min |= (WORD)LANE(bits)(LANE(equal)(v, l)) << i;
        if (has_high) above |= (WORD)LANE(bits)(LANE(less)(h, v)) << i, at_max |= (WORD)LANE(bits)(LANE(equal)(v, h)) << i;
        known |= (WORD)LANE(bits)(LANE(equal)(v, v)) << i;
        if (lows || !i) apart |= (WORD)LANE(bits)(LANE(less)(l, h)) << i, point |= (WORD)LANE(bits)(LANE(equal)(l, h)) << i;
        if (lows) crossed |= (WORD)LANE(bits)(LANE(less)(h, l)) << i;
        if (y) STORE(y + i, LANE(clamp)(v, l, h));
    }
    if (!lows) apart = (apart & 1) ? ~(WORD)0 : 0, point = (point & 1) ? ~(WORD)0 : 0;
    WORD unknown = ~(apart | point | crossed), outside = below | above;
    const WORD by_region[REGIONS] = {
        apart & below, apart & at_min, apart & known & ~(outside | at_min | at_max), apart & at_max, apart & above,
        point & below, point & (at_min | at_max), point & above,
        crossed & known & ~(at_max | above), crossed & at_max, crossed & above,
        unknown & below, unknown & above, unknown & ~outside, (apart | point) & ~known, crossed & ~known};
    memcpy(words, by_region, sizeof(by_region));
}

/* grad times the slope of its code. A slope of 1 leaves grad as it is, and a slope of 0 gives 0, whatever grad is. If there are no other
   slopes, nothing is multiplied: a processor may slow down for the product of wide vectors. */
INLINE void NAME(pull_standing_block)(const T *grad, const WORD *words, T *out, const V *slopes, int planes, int scales) {
    V zero = LANE(all)(0.0), one = LANE(all)(1.0);
    WORD rest[MOST_PLANES];
    EACH_OF_PART for (int plane = 0; plane < planes; plane++) rest[plane] = words[plane];
    EACH_PART for (int part = 0; part < BLOCK; part += PART_OF_BLOCK) {
        EACH_OF_PART for (int i = 0; i < PART_OF_BLOCK; i += LANE(lanes)) {
            V left[1 << MOST_PLANES], g = LOAD(grad + part + i);
            EACH_OF_PART for (int k = 0; k < 1 << planes; k++) left[k] = slopes[k];
            EACH_OF_PART for (int plane = 0; plane < planes; plane++) {
                M is_odd = LANE(from_bits)(rest[plane], i);
                EACH_OF_PART for (int k = 0; k < 1 << (planes - plane - 1); k++) left[k] = LANE(select)(is_odd, left[2 * k + 1], left[2 * k]);
            }
            V some = zero;
            if (scales) some = LANE(select)(LANE(equal)(left[0], zero), zero, g * left[0]);
            STORE(out + part + i, LANE(select)(LANE(equal)(left[0], one), g, some));
        }
        EACH_OF_PART for (int plane = 0; plane < planes; plane++) rest[plane] = LATER(rest[plane]);
    }
}

/* The number of thresholds that x is above, as `bits` planes; NaN is above all. The thresholds ascend. So bit p of the number is 1 if x is
   above the threshold of an odd multiple of 2**p, and not above that of the next even multiple. */
INLINE void NAME(step_block)(const T *x, uint8_t *const *planes, int64_t at, const V *thresholds, int bits) {
    WORD above[7] = {0};
    int count = (1 << bits) - 1;
    UNROLLED for (int i = 0; i < BLOCK; i += LANE(lanes)) {
        V v = LOAD(x + i);
        UNROLLED for (int t = 0; t < count; t++) above[t] |= (WORD)LANE(bits)(LANE(above)(v, thresholds[t])) << i;
    }
    UNROLLED for (int plane = 0; plane < bits; plane++) {
        WORD word = 0;
        UNROLLED for (int t = (1 << plane) - 1; t < count; t += 1 << plane) word ^= above[t];
        memcpy(planes[plane] + at, &word, BLOCK / 8);
    }
}

/* One plane: is x in an interval? has_low, has_high: does the bound belong to the interval? NaN is in no interval. */
INLINE void NAME(inside_block)(const T *x, uint8_t *plane, V low, V high, int has_low, int has_high) {
    WORD word = 0;
    UNROLLED for (int i = 0; i < BLOCK; i += LANE(lanes)) {
        V v = LOAD(x + i);
        M above = LANE(less)(low, v), below = LANE(less)(v, high);
        if (has_low) above |= LANE(equal)(v, low);
        if (has_high) below |= LANE(equal)(v, high);
        word |= (WORD)LANE(bits)(above & below) << i;
    }
    memcpy(plane, &word, BLOCK / 8);
}

#ifndef COMPUTED /* not for lanes that only compare */
/* Rounds x to a grid: its position, clamped, times the step. shares[0] has 1 / step and the position of 0; shares[1] has the step. The
   product is that of float32. NaN stays NaN. */
INLINE void NAME(quantize_block)(const T *x, T *y, V low, V high, Rule rule) {
    V inverse = LANE(all)(rule.shares[0].up), zero = LANE(all)(rule.shares[0].down);
    UNROLLED for (int i = 0; i < BLOCK; i += LANE(lanes)) {
        V place = LANE(whole)(LOAD(x + i) * inverse) + zero;
        STORE(y + i, LANE(times_single)(LANE(clamp)(place, low, high) - zero, (float)rule.shares[1].up));
    }
}

INLINE M NAME(is_infinite)(V v) {
    V most = LANE(all)(sizeof(LANE(number)) == sizeof(float) ? 0x1.fffffep127 : 0x1.fffffffffffffp1023);
    return LANE(less)(most, v) | LANE(less)(v, most * LANE(all)(-1.0));
}

/* The clipped ratio of a loss: the bound that x is beyond, if A has the sign for which it counts or both sides count; for A < 0 at most the
   ceiling. */
INLINE V NAME(clipped_ratio)(V ratio, V x, V a, V low, V high, double on_both_sides, Rule rule) {
    V zero = LANE(all)(0.0), lowest = LANE(all)(rule.slopes[LOWEST]), highest = LANE(all)(rule.slopes[HIGHEST]);
    M is_down = LANE(less)(a, zero);
    if (rule.slopes[CEILING] != 0.0)
        ratio = LANE(select)(LANE(less)(LANE(all)(rule.slopes[TOP]), x) & is_down, LANE(all)(rule.slopes[CEILING]), ratio);
    if (on_both_sides == 0.0) highest = LANE(select)(is_down, ratio, highest), lowest = LANE(select)(LANE(less)(zero, a), ratio, lowest);
    return LANE(select)(LANE(less)(x, low), lowest, LANE(select)(LANE(less)(high, x), highest, ratio));
}

/* The result that `rule.formula` names. An a or b that is absent is the number of the formula. a, b and their gradients have the dtype of a
   lane. Where a rule has shares, low and high are the range that they speak of.

   LOSS               minus A (which is a) times the ratio x; with a b the clip reads x = log(b), and b is the ratio. See clipped_ratio
   LOSS_TO_X          its gradient, not larger than LARGEST unless grad is infinite
   ON_GRID            x on a grid with the step a, where 0 has the position b
   EXPONENT           the exponent of the slope of a step at x - a; for the next two, b is its exponential
   JUMP               x where it is above a, else 0; a gets minus itself times the slope of a step there
   SURROGATE          grad times the slope of a step
   ROOM               grad times the part of the range from a to b that lies ahead of x; an absent a or b is `low` or `high` */
INLINE void NAME(formula_block)(const T *grads, const T *xs, const LANE(number) *as, const LANE(number) *bs, void *out, V low, V high, Rule rule) {
    V zero = LANE(all)(0.0), one = LANE(all)(1.0), negative = LANE(all)(-1.0), number = LANE(all)(rule.slopes[ABSENT]);
    ROLLED for (int i = 0; i < BLOCK; i += LANE(lanes)) {
        V grad = LOAD(grads + i), x = LOAD(xs + i), a = number, b = number, found;
        if (as) memcpy(&a, as + i, sizeof(V));
        if (bs) memcpy(&b, bs + i, sizeof(V));
        if (rule.formula == LOSS || rule.formula == LOSS_TO_A) {
            V ratio = NAME(clipped_ratio)(bs ? b : x, x, a, low, high, rule.slopes[ON_BOTH_SIDES], rule);
            found = ratio * (rule.formula == LOSS ? a : grad) * negative;
        } else if (rule.formula == LOSS_TO_X) {
            NAME(Places) p = NAME(places)(x, low, high, rule.edges);
            V slope = NAME(pulled)(a * negative, NAME(plane)(p, rule.first), NAME(plane)(p, rule.second), rule);
            V ratio = bs ? b : x, weight = bs ? NAME(clipped_ratio)(b, x, a, low, high, rule.slopes[IS_LINEAR], rule) : x;
            if (rule.slopes[CEILING] != 0.0) {
                V top = LANE(all)(rule.slopes[TOP]);
                M is_down = LANE(less)(a, zero);
                slope = LANE(select)(LANE(equal)(x, top) & is_down, slope * LANE(all)(rule.slopes[AT_TOP]), slope);
                slope = LANE(select)(LANE(less)(top, x) & is_down, zero, slope);
            }
            V all = grad * slope * weight, at_rest = LANE(select)(LANE(equal)(a, zero), LANE(select)(NAME(is_infinite)(ratio), zero, all), zero);
            found = LANE(select)(LANE(equal)(slope, zero), at_rest, all);
            if (rule.slopes[LARGEST] != 0.0) {
                V most = LANE(all)(rule.slopes[LARGEST]), least = most * negative;
                V limited = LANE(select)(LANE(less)(most, found), most, LANE(select)(LANE(less)(found, least), least, found));
                found = LANE(select)(NAME(is_infinite)(grad), found, limited);
            }
        } else if (rule.formula <= ON_GRID_TO_B) {
            V origin = bs ? LANE(whole)(b) + zero : b, position = x * (one / a), place = LANE(whole)(position) + origin;
            V clamped = LANE(clamp)(place, low, high);
            NAME(Places) p = NAME(places)(place, low, high, rule.edges);
            V to_x = NAME(pulled)(grad, NAME(plane)(p, rule.first), NAME(plane)(p, rule.second), rule);
            M is_lost = LANE(equal)(to_x, zero) & NAME(is_infinite)(position), is_all = LANE(equal)(to_x, grad) & NAME(is_infinite)(grad);
            if (rule.formula == ON_GRID) found = (clamped - origin) * a;
            else if (rule.formula == ON_GRID_TO_X) found = to_x;
            else if (rule.formula == ON_GRID_TO_A) found = grad * (clamped - origin) - to_x * LANE(select)(is_lost, zero, position);
            else found = (LANE(select)(is_all, zero, to_x) - LANE(select)(is_all, zero, grad)) * a;
        } else if (rule.formula == EXPONENT) {
            V u = NAME(widths)(x - a, rule);
            found = rule.kind == BUMP ? u * negative : u * u * LANE(all)(-0.5);
        } else if (rule.formula == SURROGATE_TO_X) {
            found = NAME(times_slope)(grad, x, b, high, rule);
        } else if (rule.formula <= JUMP_TO_A) {
            M is_off = LANE(less)(x, a) | LANE(equal)(x, a);
            V size = LANE(select)(LANE(less)(x, a), a - x, x - a), inside = LANE(all)(rule.shares[0].up), density;
            M is_inside = LANE(less)(size, inside) | LANE(equal)(size, inside);
            if (rule.kind) density = NAME(slope_at)(x - a, b, high, rule);
            else density = LANE(select)(is_inside, LANE(all)(rule.shares[0].down), zero);
            V jump = LANE(select)(LANE(equal)(density, zero), density, a) * density;
            M is_none = LANE(equal)(density, zero) | (LANE(equal)(jump, zero) & NAME(is_infinite)(grad));
            V to_a = LANE(select)(is_none, zero, grad) * jump * negative, passed = LANE(select)(is_off, zero, grad);
            if (rule.formula == JUMP) found = LANE(select)(is_off, zero, x);
            else if (rule.formula == JUMP_TO_X) found = passed;
            else if (rule.formula == JUMP_TO_A) found = to_a;
            else found = passed - to_a;
        } else {
            V least = as ? a : low, most = bs ? b : high, span = NAME(rounded)(most - least);
            NAME(Places) p = NAME(places_of_any)(x, least, most);
            M are_crossed = LANE(less)(most, least);
            V room = NAME(rounded)(NAME(rounded)(LANE(select)(LANE(less)(grad, zero), most - x, x - least)) / span);
            M is_none = (LANE(equal)(room, zero) & NAME(is_infinite)(grad)) | (LANE(equal)(grad, zero) & NAME(is_infinite)(room));
            V scaled = LANE(select)(is_none, zero, grad) * LANE(select)(is_none, zero, room);
            V inward = as || bs ? LANE(select)(NAME(blocked)(grad, p.below, p.above), zero, grad) : grad;
            if (rule.formula == ROOM_TO_A) found = LANE(select)(are_crossed, zero, LANE(select)(p.below, grad, zero));
            else if (rule.formula == ROOM_TO_B) found = LANE(select)(p.above | (p.below & are_crossed), grad, zero);
            else found = LANE(select)(NAME(is_infinite)(span), inward, LANE(select)(LANE(less)(zero, span) & LANE(equal)(x, x), scaled, inward));
        }
        if (is_to_sum(rule.formula)) memcpy((LANE(number) *)out + i, &found, sizeof(V));
        else STORE((T *)out + i, found);
    }
}
#endif

/* The gradient by a rule that reads x, between two numbers, or between the bounds at `lows` and `highs`. */
INLINE void NAME(pull_x_block)(const T *grad, const T *x, const T *lows, const T *highs, T *out, V low, V high, Rule rule) {
    UNROLLED for (int i = 0; i < BLOCK; i += LANE(lanes)) {
        V at = LOAD(x + i), g = LOAD(grad + i);
        NAME(Places) p = lows ? NAME(places_of_any)(at, LOAD(lows + i), LOAD(highs + i)) : NAME(places)(at, low, high, rule.edges);
        M first = NAME(plane)(p, rule.first), second = NAME(plane)(p, rule.second);
        if (rule.kind == TURNED) STORE(out + i, NAME(pulled_back)(g, at, low, high, first, second, rule));
        else if (lows && rule.kind >= OF_MIN) STORE(out + i, NAME(pulled_to_bound)(g, p, LANE(less)(LOAD(highs + i), LOAD(lows + i)), rule));
        else STORE(out + i, NAME(pulled)(g, first, second, rule));
    }
}
