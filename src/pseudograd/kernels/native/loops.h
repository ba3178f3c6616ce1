/* The loops over elements, written once. What computes for a kind of processor includes this for each dtype; blocks.h says what it has
defined before. Lanes that only compare define COMPUTED(x), too: the function of the same dtype in lanes that compute.

A block is 64 elements: one word of each plane of a code. n is a number of whole blocks: operators.c fills the last one, so every element
of a tensor goes through the same instructions. Loops are made for constant rules, so that the compiler leaves out what a rule does not ask. */
#define LOAD(p) NAME(load)(p)
#define STORE(p, v) NAME(store)(p, v)
#include "blocks.h"

/* The dtypes of half precision have loops of their own for the usual rules in the lanes that only compare. */
#ifdef COMPUTED
#define IS_USUAL(rule_is_same) (rule_is_same)
#else
#define IS_USUAL(rule_is_same) (sizeof(T) > 2 && (rule_is_same))
#endif

INLINE void NAME(encode_by)(const T *x, T *y, uint8_t *first, uint8_t *second, double min, double max, Rule rule, int64_t n) {
    V low = LANE(all)(min), high = LANE(all)(max);
    for (int64_t i = 0; i < n; i += 64) NAME(encode_block)(x + i, y + i, PLANE(rule.first, first, i), PLANE(rule.second, second, i), low, high, rule);
}

static void NAME(encode)(const void *x, void *y, uint8_t *first, uint8_t *second, double min, double max, Rule rule, int64_t n) {
    if (IS_USUAL(!rule.first)) NAME(encode_by)(x, y, first, second, min, max, NO_PLANE, n);
    else if (IS_USUAL(are_same_planes(rule, BELOW_ALONE))) NAME(encode_by)(x, y, first, second, min, max, BELOW_ALONE, n);
    else if (IS_USUAL(are_same_planes(rule, CUT_OUTSIDE))) NAME(encode_by)(x, y, first, second, min, max, CUT_OUTSIDE, n);
    else if (IS_USUAL(are_same_planes(rule, ONLY_INWARD))) NAME(encode_by)(x, y, first, second, min, max, ONLY_INWARD, n);
    else if (IS_USUAL(are_same_planes(rule, ONLY_INWARD_NOT_AT))) NAME(encode_by)(x, y, first, second, min, max, ONLY_INWARD_NOT_AT, n);
    else NAME(encode_by)(x, y, first, second, min, max, rule, n);
}

/* Are any two of x, low and high zeros of different sign? */
static int NAME(zeros_differ)(const T *x, const T *lows, const T *highs) {
    int differ = 0;
    for (int i = 0; i < 64; i++) {
        uint64_t each[3] = {0, 0, 0}, seen = 0;
        memcpy(each, x + i, sizeof(T)), memcpy(each + 1, lows + i, sizeof(T)), memcpy(each + 2, highs + i, sizeof(T));
        for (int k = 0; k < 3; k++)
            if (!(each[k] << (65 - 8 * sizeof(T)))) seen |= each[k] ? 2 : 1;
        differ |= seen == 3;
    }
    return differ;
}

INLINE int NAME(encode_between_by)(const T *x, const T *lows, const T *highs, T *y, uint8_t *first, uint8_t *second, Rule rule, int64_t n) {
    int differ = 0;
    for (int64_t i = 0; i < n; i += 64) {
        uint64_t zeros = NAME(encode_between_block)(x + i, lows + i, highs + i, y + i, PLANE(rule.first, first, i), PLANE(rule.second, second, i), rule);
        differ |= zeros && NAME(zeros_differ)(x + i, lows + i, highs + i);
    }
    return differ;
}

static int NAME(encode_between)(const void *x, const void *lows, const void *highs, void *y, uint8_t *first, uint8_t *second, Rule rule,
                                int64_t n) {
    if (IS_USUAL(!rule.first)) return NAME(encode_between_by)(x, lows, highs, y, first, second, NO_PLANE, n);
    if (IS_USUAL(are_same_planes(rule, CUT_OUTSIDE))) return NAME(encode_between_by)(x, lows, highs, y, first, second, CUT_OUTSIDE, n);
    if (IS_USUAL(are_same_planes(rule, ONLY_INWARD))) return NAME(encode_between_by)(x, lows, highs, y, first, second, ONLY_INWARD, n);
    return NAME(encode_between_by)(x, lows, highs, y, first, second, rule, n);
}

INLINE void NAME(pull_code_by)(const T *grad, const uint8_t *first, const uint8_t *second, T *out, Rule rule, int64_t n) {
    for (int64_t i = 0; i < n; i += 64) NAME(pull_code_block)(grad + i, PLANE(rule.first, first, i), PLANE(rule.second, second, i), out + i, rule);
}

static void NAME(pull_code)(const void *grad, const uint8_t *first, const uint8_t *second, void *out, Rule rule, int64_t n) {
    if (IS_USUAL(is_same(rule, CUT_OUTSIDE))) return NAME(pull_code_by)(grad, first, second, out, CUT_OUTSIDE, n);
    if (IS_USUAL(is_same(rule, ONLY_INWARD))) return NAME(pull_code_by)(grad, first, second, out, ONLY_INWARD, n);
    if (IS_USUAL(is_same(rule, ONLY_INWARD_NOT_AT))) return NAME(pull_code_by)(grad, first, second, out, ONLY_INWARD_NOT_AT, n);
#ifdef COMPUTED
    COMPUTED(pull_code)(grad, first, second, out, rule, n);
#else
    Share *shares = rule.shares; /* sorted by their kinds, NUMBER first */
    if (shares[0].kind == ALIKE) shares[0].kind = shares[1].kind = ALIKE, NAME(pull_code_by)(grad, first, second, out, rule, n);
    else if (shares[0].kind == BY_SIGN) shares[0].kind = BY_SIGN, NAME(pull_code_by)(grad, first, second, out, rule, n);
    else shares[0].kind = NUMBER, NAME(pull_code_by)(grad, first, second, out, rule, n);
#endif
}

INLINE void NAME(pull_slope_by)(const T *grad, const T *x, T *out, double farthest, Rule rule, int64_t n) {
    V far = LANE(all)(farthest);
    for (int64_t i = 0; i < n; i += LANE(lanes)) STORE(out + i, NAME(times_slope)(LOAD(grad + i), LOAD(x + i), far, far, rule));
}

INLINE void NAME(pull_x_by)(const T *grad, const T *x, const T *lows, const T *highs, T *out, double min, double max, Rule rule, int64_t n) {
    V low = LANE(all)(min), high = LANE(all)(max);
    for (int64_t i = 0; i < n; i += 64)
        NAME(pull_x_block)(grad + i, x + i, lows ? lows + i : 0, lows ? highs + i : 0, out + i, low, high, rule);
}

static void NAME(pull_x)(const void *grad, const void *x, const void *lows, const void *highs, void *out, double min, double max,
                         Rule rule, int64_t n) {
    if (lows && IS_USUAL(is_same(rule, CUT_OUTSIDE_AND_AT))) NAME(pull_x_by)(grad, x, lows, highs, out, 0, 0, CUT_OUTSIDE_AND_AT, n);
    else if (lows && IS_USUAL(is_same(rule, ONLY_INWARD))) NAME(pull_x_by)(grad, x, lows, highs, out, 0, 0, ONLY_INWARD, n);
    else if (!lows && IS_USUAL(is_same(rule, CUT_OUTSIDE))) NAME(pull_x_by)(grad, x, 0, 0, out, min, max, CUT_OUTSIDE, n);
    else if (!lows && IS_USUAL(is_same(rule, CUT_OUTSIDE_AND_AT))) NAME(pull_x_by)(grad, x, 0, 0, out, min, max, CUT_OUTSIDE_AND_AT, n);
    else if (!lows && IS_USUAL(is_same(rule, ONLY_INWARD))) NAME(pull_x_by)(grad, x, 0, 0, out, min, max, ONLY_INWARD, n);
#ifdef COMPUTED
    else COMPUTED(pull_x)(grad, x, lows, highs, out, min, max, rule, n);
#else
    else if (lows && rule.kind == OF_MIN) rule.kind = OF_MIN, NAME(pull_x_by)(grad, x, lows, highs, out, 0, 0, rule, n);
    else if (lows && rule.kind == OF_MAX) rule.kind = OF_MAX, NAME(pull_x_by)(grad, x, lows, highs, out, 0, 0, rule, n);
    else if (lows && !rule.second && rule.shares[0].kind == BY_SIGN)
        rule.kind = FROM_SHARES, rule.second = 0, rule.shares_both = 0, rule.shares[0].kind = BY_SIGN,
        NAME(pull_x_by)(grad, x, lows, highs, out, 0, 0, rule, n);
    else if (lows) NAME(pull_x_by)(grad, x, lows, highs, out, 0, 0, rule, n);
    else if (rule.kind == TURNED) rule.kind = TURNED, NAME(pull_x_by)(grad, x, 0, 0, out, min, max, rule, n);
    else if (rule.kind == TENT) rule.kind = TENT, NAME(pull_slope_by)(grad, x, out, max, rule, n);
    else if (rule.kind == WITCH) rule.kind = WITCH, NAME(pull_slope_by)(grad, x, out, max, rule, n);
    else if (rule.kind == CUSP) rule.kind = CUSP, NAME(pull_slope_by)(grad, x, out, max, rule, n);
    else NAME(pull_x_by)(grad, x, 0, 0, out, min, max, rule, n);
#endif
}

/* --- of kind STANDING: 64 elements at a time, because a word is quicker to combine than masks are -------------------- */

/* The regions that have the bit of each plane, one after the other, so that nothing is asked of the others. */
typedef struct {
    uint8_t count, regions[REGIONS];
} NAME(Set);

INLINE void NAME(read_sets)(Rule rule, int planes, NAME(Set) *sets) {
    for (int plane = 0; plane < planes; plane++) {
        sets[plane].count = 0;
        for (uint8_t region = 0; region < REGIONS; region++)
            if (rule.sets[plane] >> region & 1) sets[plane].regions[sets[plane].count++] = region;
    }
}

INLINE void NAME(stand_by)(const T *x, const T *lows, const T *highs, T *y, uint8_t *planes, int64_t apart, double min, double max, Rule rule,
                           int has_tensors, int64_t n) {
    V low = LANE(all)(min), high = LANE(all)(max);
    int count = rule.first & MOST_PLANES; /* all it may be, as the compiler should know */
    NAME(Set) sets[MOST_PLANES];
    T absent[2][64]; /* in place of a bound that is not there */
    NAME(read_sets)(rule, count, sets);
    for (int i = 0; has_tensors && i < 64; i += LANE(lanes)) STORE(absent[0] + i, LANE(all)(-INFINITY)), STORE(absent[1] + i, LANE(all)(INFINITY));
    for (int64_t i = 0; i < n; i += 64) {
        uint64_t words[REGIONS];
        const T *l = !has_tensors ? 0 : lows ? lows + i : absent[0], *h = !has_tensors ? 0 : highs ? highs + i : absent[1];
        NAME(stand_block)(x + i, l, h, y ? y + i : 0, low, high, !has_tensors || lows, !has_tensors || highs, words);
        for (int plane = 0; plane < count; plane++) {
            uint64_t word = 0;
            for (int k = 0; k < sets[plane].count; k++) word |= words[sets[plane].regions[k]];
            memcpy(planes + plane * apart + i / 8, &word, 8);
        }
    }
}

static void NAME(stand)(const void *x, const void *lows, const void *highs, void *y, uint8_t *planes, int64_t apart, double min, double max,
                        Rule rule, int64_t n) {
    if (lows || highs) NAME(stand_by)(x, lows, highs, 0, planes, apart, 0, 0, rule, 1, n);
    else NAME(stand_by)(x, 0, 0, y, planes, apart, min, max, rule, 0, n);
}

INLINE void NAME(pull_standing_by)(const T *grad, const uint8_t *code, int64_t apart, T *out, Rule rule, int planes, int scales, int64_t n) {
    V slopes[1 << MOST_PLANES];
    for (int k = 0; k < 1 << planes; k++) slopes[k] = LANE(all)(rule.slopes[k]);
    for (int64_t i = 0; i < n; i += 64) {
        uint64_t words[MOST_PLANES];
        for (int plane = 0; plane < planes; plane++) memcpy(words + plane, code + plane * apart + i / 8, 8);
        NAME(pull_standing_block)(grad + i, words, out + i, slopes, planes, scales);
    }
}

static void NAME(pull_standing)(const void *grad, const uint8_t *planes, int64_t apart, void *out, Rule rule, int64_t n) {
    int scales = scales_grad(rule);
#ifdef COMPUTED
    if (scales) return COMPUTED(pull_standing)(grad, planes, apart, out, rule, n);
    scales = 0;
#endif
    if (rule.first == 1 && !scales) NAME(pull_standing_by)(grad, planes, apart, out, rule, 1, 0, n);
    else if (rule.first == 1) NAME(pull_standing_by)(grad, planes, apart, out, rule, 1, 1, n);
    else if (rule.first == 2) NAME(pull_standing_by)(grad, planes, apart, out, rule, 2, scales, n);
    else NAME(pull_standing_by)(grad, planes, apart, out, rule, 3, scales, n);
}

#ifndef COMPUTED /* numbers here may be none of the dtype */
INLINE void NAME(steps_by)(const T *x, uint8_t *const *planes, const double *thresholds, int bits, int64_t n) {
    V each[7];
    for (int t = 0; t < (1 << bits) - 1; t++) each[t] = LANE(all)(thresholds[t]);
    for (int64_t i = 0; i < n; i += 64) NAME(step_block)(x + i, planes, i / 8, each, bits);
}

static void NAME(steps)(const void *x, uint8_t *const *planes, const double *thresholds, int bits, int64_t n) {
    if (bits == 1) NAME(steps_by)(x, planes, thresholds, 1, n);
    else if (bits == 2) NAME(steps_by)(x, planes, thresholds, 2, n);
    else NAME(steps_by)(x, planes, thresholds, 3, n);
}

INLINE void NAME(inside_by)(const T *x, uint8_t *plane, const double *interval, int has_low, int has_high, int64_t n) {
    V low = LANE(all)(interval[0]), high = LANE(all)(interval[1]);
    for (int64_t i = 0; i < n; i += 64) NAME(inside_block)(x + i, plane + i / 8, low, high, has_low, has_high);
}

static void NAME(inside)(const void *x, uint8_t *plane, const double *interval, int64_t n) {
    if (interval[2] != 0) NAME(inside_by)(x, plane, interval, 1, interval[3] != 0, n);
    else NAME(inside_by)(x, plane, interval, 0, interval[3] != 0, n);
}

static void NAME(quantize)(const void *x, void *y, double min, double max, Rule rule, int64_t n) {
    V low = LANE(all)(min), high = LANE(all)(max);
    for (int64_t i = 0; i < n; i += 64) NAME(quantize_block)((const T *)x + i, (T *)y + i, low, high, rule);
}

/* What arrives at an op, what leaves it towards one input and another, and where x stands; see Tally. NaN leaves, and stands inside. */
INLINE void NAME(tally_block)(const T *grad, const T *one, const T *other, const T *x, V low, V high, int has, Tally *tally) {
    uint64_t none = 0, up = 0, down = 0, finite = 0, stays = ~(uint64_t)0, below = 0, above = 0, at = 0, to_min = 0, to_max = 0;
    V sizes[64 / LANE(lanes)], zero = LANE(all)(0.0), infinite = LANE(all)(INFINITY);
    for (int i = 0; i < 64; i += LANE(lanes)) {
        V g = LOAD(grad + i);
        M is_up = LANE(less)(g, zero);
        V magnitude = LANE(select)(is_up, zero - g, g);
        sizes[i / LANE(lanes)] = magnitude;
        none |= LANE(bits)(LANE(equal)(g, zero)) << i;
        up |= LANE(bits)(is_up) << i;
        down |= LANE(bits)(LANE(less)(zero, g)) << i;
        finite |= LANE(bits)(LANE(less)(magnitude, infinite)) << i;
    }
    if (has & HAS_LEFT)
        for (int i = 0; i < 64; i += LANE(lanes)) {
            uint64_t lanes = ~(uint64_t)0 >> (64 - LANE(lanes)), still = LANE(bits)(LANE(equal)(LOAD(one + i), zero));
            if (has & HAS_OTHER) still &= LANE(bits)(LANE(equal)(LOAD(other + i), zero));
            stays &= ~((~still & lanes) << i);
        }
    if (has & HAS_X)
        for (int i = 0; i < 64; i += LANE(lanes)) {
            V v = LOAD(x + i);
            if (has & HAS_MIN) {
                uint64_t same = LANE(bits)(LANE(equal)(v, low)) << i, outside = LANE(bits)(LANE(less)(v, low)) << i;
                below |= outside, at |= same, to_min |= outside | same;
            }
            if (has & HAS_MAX) {
                uint64_t same = LANE(bits)(LANE(equal)(v, high)) << i, outside = LANE(bits)(LANE(less)(high, v)) << i;
                above |= outside, at |= same, to_max |= outside | same;
            }
        }
    uint64_t cut = ~none & stays;
    const uint64_t words[COUNTS] = {~none, cut, ~finite, ~stays, ((to_min & up) | (to_max & down)) & cut, at & ~none, below & up, below & down,
                                    at & up, at & down, above & up, above & down, up, down};
    for (int k = 0; k < (has & HAS_X ? COUNTS : RECOVERABLE); k++) tally->counts[k] += __builtin_popcountll(words[k]);
    if (!(has & IS_FULL)) return;
    V all = zero, of_cut = zero; /* at most 64 numbers in the dtype of a lane, then in float64 */
    for (int i = 0; i < 64; i += LANE(lanes)) {
        V magnitude = sizes[i / LANE(lanes)];
        all += magnitude;
        of_cut += LANE(select)(LANE(from_bits)(cut, i), magnitude, zero);
    }
    LANE(number) each[2][LANE(lanes)];
    memcpy(each[0], &all, sizeof(V)), memcpy(each[1], &of_cut, sizeof(V));
    for (int j = 0; j < LANE(lanes); j++) tally->magnitude += (double)each[0][j], tally->cut_magnitude += (double)each[1][j];
}

static void NAME(tally)(const void *grad, const void *one, const void *other, const void *x, double min, double max, int has, Tally *tally,
                        int64_t n) {
    V low = LANE(all)(min), high = LANE(all)(max);
    const T *g = grad, *left = one, *right = other, *v = x;
    for (int64_t i = 0; i < n; i += 64) NAME(tally_block)(g + i, left + i, right + i, v + i, low, high, has, tally);
}

/* The squares of a gradient in float64, and which entries have had one that is not 0; see Arrival. NaN is none. `had` may be absent. */
INLINE void NAME(arrive_block)(const T *grad, uint8_t *had, Arrival *arrival) {
    LANE(number) each[64];
    double sums[8] = {0};
    uint64_t none = 0;
    for (int i = 0; i < 64; i += LANE(lanes)) {
        V g = LOAD(grad + i);
        none |= LANE(bits)(LANE(equal)(g, LANE(all)(0.0))) << i;
        memcpy(each + i, &g, sizeof(V));
    }
    for (int i = 0; i < 64; i += 8)
        for (int k = 0; k < 8; k++) sums[k] += (double)each[i + k] * (double)each[i + k];
    for (int k = 0; k < 8; k++) arrival->squares += sums[k];
    arrival->zeros += __builtin_popcountll(none);
    if (!had) return;
    const uint64_t ones = 0x0101010101010101u;
    for (int i = 0; i < 64; i += 8) {
        uint64_t before, now = 0;
        memcpy(&before, had + i, 8);
        if (before == ones) continue;
        for (int k = 0; k < 8; k++) now |= (uint64_t)(~none >> (i + k) & 1) << (8 * k);
        before |= now;
        memcpy(had + i, &before, 8);
        arrival->missing += 8 - __builtin_popcountll(before & ones);
    }
}

static void NAME(arrive)(const void *grad, uint8_t *had, Arrival *arrival, int64_t n) {
    for (int64_t i = 0; i < n; i += 64) NAME(arrive_block)((const T *)grad + i, had ? had + i : 0, arrival);
}

INLINE void NAME(formula_by)(const T *grad, const T *x, const LANE(number) *a, const LANE(number) *b, char *out, double min, double max,
                             Rule rule, int64_t n) {
    const size_t size = is_to_sum(rule.formula) ? sizeof(*a) : sizeof(T);
    V low = LANE(all)(min), high = LANE(all)(max);
    for (int64_t i = 0; i < n; i += 64, out += 64 * size)
        NAME(formula_block)(grad + i, x + i, a ? a + i : 0, b ? b + i : 0, out, low, high, rule);
}

/* Not in lanes of 512 bits: operators.c takes those of 256. */
static void NAME(formula)(const void *grad, const void *x, const void *a, const void *b, void *out, double min, double max, Rule rule,
                          int64_t n) {
#if defined(LEVEL) && LEVEL == 2
    (void)grad, (void)x, (void)a, (void)b, (void)out, (void)min, (void)max, (void)rule, (void)n, (void)NAME(formula_by);
#else
#define COMPUTE(k, a, b) rule.formula = k, NAME(formula_by)(grad, x, a, b, out, min, max, rule, n)
#define CASE(k) case k: COMPUTE(k, a, b); break;
    /* What most programs ask has a loop of its own; losses are never of half precision. */
    int is_plain = !b && rule.slopes[CEILING] == 0.0 && (rule.formula > LOSS_TO_A || (sizeof(T) > 2 && rule.slopes[LARGEST] == 0.0));
    if (is_plain && rule.formula <= LOSS_TO_A) rule.slopes[CEILING] = rule.slopes[LARGEST] = 0.0;
    if (is_plain && rule.formula == LOSS) COMPUTE(LOSS, a, 0);
    else if (is_plain && rule.formula == LOSS_TO_X) COMPUTE(LOSS_TO_X, a, 0);
    else if (is_plain && rule.formula == ROOM_TO_X && !a) COMPUTE(ROOM_TO_X, 0, 0);
    else switch (rule.formula) {
        CASE(ON_GRID) CASE(JUMP) CASE(JUMP_TO_X)
        default: /* The others share two long bodies: gcc leaves out of each call what its condition excludes. */
            if (rule.formula < JUMP) COMPUTE(rule.formula, a, b);
            else COMPUTE(rule.formula, a, b);
    }
#undef COMPUTE
#undef CASE
#endif
}

#define COMPUTED(x) NAME(x)
#endif

__attribute__((unused)) static const Loops NAME(loops) = {
    NAME(encode),        NAME(pull_code),       NAME(pull_x),    NAME(encode_between), NAME(stand),    NAME(pull_standing),
    COMPUTED(steps), COMPUTED(inside), COMPUTED(quantize), COMPUTED(tally), COMPUTED(formula), COMPUTED(arrive)};

#undef V
#undef M
#undef T
#undef NAME
#undef LANE
#undef LOAD
#undef STORE
#undef COMPUTED
#undef IS_USUAL
