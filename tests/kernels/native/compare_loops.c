/* Compares the loops of every level that this processor has, bit for bit, with lanes of one number, which number.h has: every rule, dtype
and kind of loop, one to three blocks, every pair of special numbers and random ones. Where one is NaN, any NaN is right. No torch is asked. */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>

#include "number.h"

#include "every_dtype.h"

enum { MOST = 192, PLANES = 4 * MOST / 8 };
static const Loops *const one_number[TABLES] = {&loops_f16, &loops_bf16, &loops_f32, &loops_f64, &loops_bf16};
static const int64_t sizes_of[TABLES] = {2, 2, 4, 8, 2};
static uint64_t seed = 1;
static int wrong;

static uint64_t random_word(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 16 ^ seed << 20;
}

static int random_below(int count) { return (int)(random_word() >> 8 & 0xFFFFFF) % count; }

static void put(void *memory, int dtype, int64_t i, double number) {
    if (dtype == F64) ((double *)memory)[i] = number;
    else if (dtype == F32) ((float *)memory)[i] = (float)number;
    else if (dtype == F16) store_f16((uint16_t *)memory + i, (float)number);
    else store_bf16((uint16_t *)memory + i, (float)number);
}

static double at(const void *memory, int dtype, int64_t i) {
    if (dtype == F64) return ((const double *)memory)[i];
    if (dtype == F32) return ((const float *)memory)[i];
    return dtype == F16 ? load_f16((const uint16_t *)memory + i) : load_bf16((const uint16_t *)memory + i);
}

/* A special number, one near them, or any pattern of bits. */
static void fill(void *memory, int dtype, int64_t n) {
    static const double special[] = {0, -0.0, 1, -1, 0.3, -0.3, INFINITY, -INFINITY, NAN, 3, -3, 6e-8, -6e-8, 1e-41, -1e-41, 65504, -65520, 1e-310};
    for (int64_t i = 0; i < n; i++) {
        uint64_t word = random_word(), way = random_word() >> 7 & 7;
        if (way < 4) put(memory, dtype, i, special[random_below(sizeof(special) / sizeof(*special))]);
        else if (way < 7) put(memory, dtype, i, (double)(int64_t)word * 0x1p-62);
        else memcpy((char *)memory + i * sizes_of[dtype], &word, (size_t)sizes_of[dtype]);
    }
}

static void expect(int right, const char *name, int level, int dtype, int64_t n, const Rule *rule) {
    if (!right && wrong++ < 10)
        printf("%s: level %d dtype %d size %d kind %d planes %x %x\n", name, level, dtype, (int)n, rule->kind, rule->first, rule->second);
}

static int same(const void *ours, const void *right, int dtype, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int64_t place = i * sizes_of[dtype];
        int are_nan = at(ours, dtype, i) != at(ours, dtype, i) && at(right, dtype, i) != at(right, dtype, i);
        if (!are_nan && memcmp((const char *)ours + place, (const char *)right + place, (size_t)sizes_of[dtype])) return 0;
    }
    return 1;
}

/* Lanes of float32 overflow earlier than one number: an infinite sum is near every sum beyond the range of float32. */
static int is_near(double ours, double right) {
    int overflow = ours > FLT_MAX && right > FLT_MAX && (isinf(ours) || isinf(right));
    return ours == right || (ours != ours && right != right) || fabs(ours - right) < 1e-6 * fabs(right) || overflow;
}

static Share random_share(void) {
    static const double factors[] = {0, 1, 0.5, -1, 0.1, 3};
    Share share = {(uint8_t)random_below(3), factors[random_below(6)], factors[random_below(6)]};
    return share;
}

static Rule random_rule(void) {
    const Rule common[] = {NO_PLANE, CUT_OUTSIDE, CUT_OUTSIDE_AND_AT, ONLY_INWARD, ONLY_INWARD_NOT_AT};
    if (random_below(3) == 0) return common[random_below(5)];
    Rule rule = {.first = (uint8_t)random_below(16), .second = (uint8_t)random_below(16), .shares = {random_share(), random_share(), random_share()}};
    if (!rule.first) rule.second = 0;
    for (int k = 1; k < 3; k++) /* NUMBER, then BY_SIGN, then ALIKE */
        if (rule.shares[k].kind > rule.shares[k - 1].kind) rule.shares[k].kind = rule.shares[k - 1].kind;
    rule.edges = ((rule.first | rule.second) & (AT_MIN | AT_MAX)) != 0;
    rule.shares_both = (rule.first & rule.second) != 0;
    return rule;
}

static void compare(int level, int dtype, const Loops *ours, const Loops *right) {
    static double x[MOST], grad[MOST], lows[MOST], highs[MOST], behind_x[2][MOST], y[2][MOST];
    static uint8_t planes[2][PLANES], had[2][MOST];
    int64_t n = 64 + 64 * random_below(MOST / 64);
    Rule rule = random_rule();
    double low[1], high[1];
    int wide = dtype == F64 ? F64 : F32, made = dtype;
    fill(x, dtype, n), fill(grad, dtype, n), fill(lows, dtype, n), fill(highs, dtype, n);
    fill(low, dtype, 1), fill(high, dtype, 1), fill(behind_x[0], wide, n), fill(behind_x[1], wide, n);
    double min = at(low, dtype, 0), max = at(high, dtype, 0);
#define BOTH(name, call)                                                                                                               \
    {                                                                                                                                  \
        for (int k = 0; k < 2; k++) {                                                                                                  \
            const Loops *l = k ? right : ours;                                                                                         \
            memset(y[k], 7, sizeof(*y)), memset(planes[k], 7, sizeof(*planes));                                                        \
            call;                                                                                                                      \
        }                                                                                                                              \
        expect(same(y[0], y[1], made, n) && !memcmp(planes[0], planes[1], sizeof(*planes)), name, level, dtype, n, &rule);            \
    }
    int64_t apart = (n + 63) / 64 * 8;
    uint8_t code[PLANES];
    for (int i = 0; i < PLANES; i++) code[i] = (uint8_t)random_word();
    BOTH("encode", l->encode(x, y[k], planes[k], planes[k] + apart, min, max, rule, n))
    BOTH("pull_code", l->pull_code(grad, code, code + apart, y[k], rule, n))
    BOTH("pull_x", l->pull_x(grad, x, 0, 0, y[k], min, max, rule, n))
    BOTH("pull_x between tensors", l->pull_x(grad, x, lows, highs, y[k], 0, 0, rule, n))
    int differ[2];
    BOTH("encode_between", differ[k] = l->encode_between(x, lows, highs, y[k], planes[k], planes[k] + apart, rule, n))
    expect(differ[0] == differ[1], "zeros of encode_between", level, dtype, n, &rule);
    for (uint8_t kind = TURNED; kind <= OF_MAX; kind++) {
        Rule other = {.kind = kind, .first = (uint8_t)random_below(16), .second = (uint8_t)random_below(16), .shares = {{0, 0.25, 0.5}}};
        if (kind >= OF_MIN) other.first &= 1, other.second = 0, other.edges = 1, other.shares[0] = random_share();
        if (kind >= OF_MIN) BOTH("pull to a bound", l->pull_x(grad, x, lows, highs, y[k], 0, 0, other, n))
        if (kind < STANDING) BOTH("pull from x", l->pull_x(grad, x, 0, 0, y[k], min, kind == TURNED ? max : 1e18, other, n))
    }
    for (uint8_t formula = LOSS; formula < FORMULAS && level < 2; formula++) { /* AVX-512 has none */
        Rule other = random_rule();
        const uint8_t kinds[] = {FROM_SHARES, TENT, WITCH, CUSP, BUMP, NORMAL};
        if (formula >= EXPONENT) other.kind = kinds[random_below(6)];
        other.formula = formula;
        for (int k = 0; k < SLOPES; k++) other.slopes[k] = random_share().up;
        const void *a = random_below(2) ? behind_x[0] : 0, *b = random_below(2) ? behind_x[1] : 0;
        made = is_to_sum(formula) ? wide : dtype;
        BOTH("formula", l->formula(grad, x, a, b, y[k], min, max, other, n))
    }
    made = dtype;
    rule = (Rule){.kind = STANDING, .first = (uint8_t)(1 + random_below(MOST_PLANES))};
    for (int plane = 0; plane < rule.first; plane++) rule.sets[plane] = (uint16_t)random_word();
    int scales = random_below(2);
    for (int k = 0; k < 1 << rule.first; k++) rule.slopes[k] = scales ? random_share().up : random_below(2);
    for (int which = 0; which < 4; which++) {
        const void *l_or_none = which & 1 ? lows : 0, *h_or_none = which & 2 ? highs : 0;
        BOTH("stand", l->stand(x, l_or_none, h_or_none, which ? 0 : y[k], planes[k], apart, min, max, rule, n))
    }
    BOTH("pull_standing", l->pull_standing(grad, code, apart, y[k], rule, n))
    const double thresholds[7] = {-1.5, -1, -0.3, 0, 0.1, 1, 2}, interval[4] = {-1, 0.3, random_below(2), random_below(2)};
    int bits = 1 + random_below(3);
    uint8_t *each[2][3] = {{planes[0], planes[0] + apart, planes[0] + 2 * apart}, {planes[1], planes[1] + apart, planes[1] + 2 * apart}};
    BOTH("steps", l->steps(x, each[k], thresholds, bits, n))
    BOTH("inside", l->inside(x, planes[k], interval, n))
    for (int has = random_below(4); has < 64; has += 5) {
        Tally tally[2] = {{{0}, 0, 0}};
        for (int k = 0; k < 2; k++) (k ? right : ours)->tally(grad, lows, highs, x, min, max, has, tally + k, n);
        int are_near = is_near(tally[0].magnitude, tally[1].magnitude) && is_near(tally[0].cut_magnitude, tally[1].cut_magnitude);
        expect(are_near && !memcmp(tally[0].counts, tally[1].counts, sizeof(tally[0].counts)), "tally", level, dtype, n, &rule);
    }
    Arrival arrival[2] = {{0, 0, 0}};
    for (int64_t i = 0; i < n; i++) had[0][i] = had[1][i] = (uint8_t)random_below(2);
    for (int k = 0; k < 2; k++) (k ? right : ours)->arrive(grad, had[k], arrival + k, n);
    expect(is_near(arrival[0].squares, arrival[1].squares) && arrival[0].zeros == arrival[1].zeros && arrival[0].missing == arrival[1].missing &&
               !memcmp(had[0], had[1], sizeof(*had)),
           "arrive", level, dtype, n, &rule);
}

/* compare_loops [how many times] */
int main(int arguments, char **given) {
    const Loops *const *const levels[] = {loops_baseline, loops_avx2, loops_avx512};
    int times = arguments > 1 ? atoi(given[1]) : 1000, most = 0;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) most = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") ? 2 : 1;
#endif
    for (int level = 0; level <= most; level++)
        for (int dtype = 0; dtype < TABLES; dtype++)
            for (int time = 0; levels[level][dtype] && time < times; time++) compare(level, dtype, levels[level][dtype], one_number[dtype]);
    if (!wrong) puts("right");
    return wrong != 0;
}
