/* A backward rule as the loops read it. pseudograd/kernels/native/__init__.py makes it; bits.py says what its fields mean. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#ifdef __CUDACC__
#define UNROLLED _Pragma("unroll") /* without it, arrays that the loop indexes are in memory */
#define ROLLED UNROLLED
#define EACH_PART UNROLLED
#define EACH_OF_PART UNROLLED
#else
#define EACH_PART ROLLED
#define EACH_OF_PART /* all at once, because a mask is made of bits by their place */
#ifdef __clang__
#define UNROLLED _Pragma("clang loop unroll_count(4)") /* more makes the library larger and no loop faster */
#define ROLLED _Pragma("clang loop unroll(disable)") /* keep a long body once, not once for each vector of a block */
#else
#define UNROLLED _Pragma("GCC unroll 4")
#define ROLLED _Pragma("GCC unroll 1")
#endif
#endif

typedef float number_f; /* the number in a lane */
typedef double number_d;

/* A loop computes BLOCK elements at a time. Their bits of a plane are the low bits of a word. A thread of a device has fewer elements. */
#ifndef WORD
#define WORD uint64_t
#define BLOCK 64
#endif
#define PART_OF_BLOCK (BLOCK < 32 ? BLOCK : 32)
#define LATER(word) (WORD)((uint64_t)(word) >> 32) /* the bits of the next part */

/* The version of the operators, of their arguments and of their settings: raise it if one of these changes. __init__.py compares it with
   its own before it calls another operator. */
enum { VERSION = 8 };

enum { FROM_SHARES, TURNED,                              /* kinds of a rule. Shares for each side; a rule that reads x and has no code; */
       TENT, WITCH, CUSP,                                /* slopes of a step, which read x too; */
       STANDING,                                         /* a slope for each code, for more than four regions; */
       OF_MIN, OF_MAX,                                   /* the gradient of a tensor of bounds, which has no code; */
       BUMP, NORMAL };                                   /* slopes of a step with an exponential, for a formula */
enum { BELOW = 1, ABOVE = 2, AT_MIN = 4, AT_MAX = 8 };   /* regions of x */
enum { ALIKE, BY_SIGN, NUMBER };                         /* kinds of a share */
enum { REGIONS = 16, MOST_PLANES = 3, SLOPES = 1 << MOST_PLANES };                 /* of a rule of kind STANDING, in the order of geometry.Pieces */
/* The results of the formulas: see formula_block and geometry.Formula. */
enum { NO_FORMULA, LOSS, LOSS_TO_X, LOSS_TO_A, ON_GRID, ON_GRID_TO_X, ON_GRID_TO_A, ON_GRID_TO_B, EXPONENT,
       JUMP, JUMP_TO_X, JUMP_TO_X_AND_BACK, JUMP_TO_A, SURROGATE_TO_X, ROOM_TO_X, ROOM_TO_A, ROOM_TO_B, FORMULAS };
/* The numbers of a formula, in `slopes`: the number in place of an absent tensor, or those of a loss. CEILING and LARGEST, the largest
   gradient of x, are 0 if there is none. */
enum { ABSENT, ON_BOTH_SIDES = 0, LOWEST, HIGHEST, TOP, CEILING, AT_TOP, IS_LINEAR, LARGEST };

/* Is the result float32 for half precision? The gradients of a and b are summed, and an exponent is read, before they are rounded. */
INLINE int is_to_sum(int formula) { return formula == EXPONENT || formula == ON_GRID_TO_A || formula == ON_GRID_TO_B || formula == JUMP_TO_A; }

/* The gradient of x on a side. BY_SIGN: up * grad where grad > 0, down * grad where grad < 0, and else grad. ALIKE: up * grad. NUMBER: up.
   A factor of 0 gives 0, also where grad is infinite or NaN. */
typedef struct {
    uint8_t kind;
    double up, down;
} Share;

typedef struct {
    uint8_t kind;
    uint8_t first, second; /* the regions of each plane; a code has no plane without regions */
    uint8_t edges;         /* has a plane a region at a bound? */
    uint8_t shares_both;   /* may x be in both planes? */
    uint8_t formula;       /* NO_FORMULA: the loops of `kind` */
    Share shares[3];       /* of the first plane, of the second, of both. For some kinds, the first share has other numbers:
                              up of TURNED: the distance from the range at which all of grad pulls back;
                              up of OF_MIN and OF_MAX: the share of the bound where x is at it; `first` says whether there is a min;
                              up and down of a slope: its width and its height, also in a formula. Of a grid: see quantize_block */
    uint16_t sets[MOST_PLANES];      /* of kind STANDING, which has `first` planes: the regions of each plane, */
    double slopes[SLOPES]; /* and the slope of each code */
    uint8_t cuts_outward;  /* of the last two rules below alone: the first share cuts grad > 0, the second one grad < 0, and they leave the rest */
} Rule;

/* The rules that most programs use have loops of their own. */
static const Rule NO_PLANE = {0};
static const Rule BELOW_ALONE = {.first = BELOW}; /* of these planes: what lower_bound and relu save */
static const Rule CUT_OUTSIDE = {.first = BELOW | ABOVE, .shares = {{ALIKE, 0, 0}}};
static const Rule CUT_OUTSIDE_AND_AT = {.first = BELOW | ABOVE | AT_MIN | AT_MAX, .edges = 1, .shares = {{ALIKE, 0, 0}}};
static const Rule ONLY_INWARD = {.first = BELOW, .second = ABOVE, .shares = {{BY_SIGN, 0, 1}, {BY_SIGN, 1, 0}}, .cuts_outward = 1};
static const Rule ONLY_INWARD_NOT_AT = {.first = BELOW | AT_MIN | AT_MAX, .second = ABOVE | AT_MIN | AT_MAX, .edges = 1, .shares_both = 1,
                                        .shares = {{BY_SIGN, 0, 1}, {BY_SIGN, 1, 0}, {ALIKE, 0, 0}}, .cuts_outward = 1};

/* Of kind STANDING: has a code a slope other than 0 and 1? */
INLINE int scales_grad(Rule rule) {
    int found = 0;
    for (int code = 0; code < 1 << MOST_PLANES; code++) found |= rule.slopes[code] != 0.0 && rule.slopes[code] != 1.0;
    return found;
}

INLINE int are_same_shares(Share a, Share b) { return a.kind == b.kind && a.up == b.up && a.down == b.down; }

INLINE int are_same_planes(Rule a, Rule b) { return a.first == b.first && a.second == b.second; }

INLINE int is_same(Rule a, Rule b) {
    return a.kind == b.kind && are_same_planes(a, b) && are_same_shares(a.shares[0], b.shares[0]) &&
           are_same_shares(a.shares[1], b.shares[1]) && are_same_shares(a.shares[2], b.shares[2]);
}

/* The plane of these regions from element n on; 0 if the code has no such plane. */
#define PLANE(regions, plane, n) ((regions) ? (plane) + (n) / 8 : 0)

/* What a diagnosis counts of the gradients that arrive at an op and leave it, and of the region of x. counts.py reads it. */
enum { ARRIVED, CUT, NONFINITE, LEFT, RECOVERABLE, AT_BOUND, BELOW_UP, BELOW_DOWN, AT_UP, AT_DOWN, ABOVE_UP, ABOVE_DOWN, UP, DOWN, COUNTS };
enum { HAS_LEFT = 1, HAS_OTHER = 2, HAS_X = 4, HAS_MIN = 8, HAS_MAX = 16, IS_FULL = 32 };

typedef struct {
    int64_t counts[COUNTS];
    double magnitude, cut_magnitude;
} Tally;

/* A gradient of a parameter: the sum of its squares, how many of its entries are 0, and how many entries were 0 in every gradient so far. */
typedef struct {
    double squares;
    int64_t zeros, missing;
} Arrival;

/* n is a number of whole blocks. */
typedef struct {
    void (*encode)(const void *x, void *y, uint8_t *first, uint8_t *second, double min, double max, Rule rule, int64_t n);
    void (*pull_code)(const void *grad, const uint8_t *first, const uint8_t *second, void *out, Rule rule, int64_t n);
    void (*pull_x)(const void *grad, const void *x, const void *lows, const void *highs, void *out, double min, double max, Rule rule,
                   int64_t n);
    int (*encode_between)(const void *x, const void *lows, const void *highs, void *y, uint8_t *first, uint8_t *second, Rule rule,
                          int64_t n); /* do zeros of both signs meet? */
    void (*stand)(const void *x, const void *lows, const void *highs, void *y, uint8_t *planes, int64_t apart, double min, double max,
                  Rule rule, int64_t n);
    void (*pull_standing)(const void *grad, const uint8_t *planes, int64_t apart, void *out, Rule rule, int64_t n);
    void (*steps)(const void *x, uint8_t *const *planes, const double *thresholds, int bits, int64_t n);
    void (*inside)(const void *x, uint8_t *plane, const double *interval, int64_t n);
    void (*quantize)(const void *x, void *y, double min, double max, Rule rule, int64_t n);
    void (*tally)(const void *grad, const void *one, const void *other, const void *x, double min, double max, int has, Tally *tally,
                  int64_t n);
    void (*formula)(const void *grad, const void *x, const void *a, const void *b, void *out, double min, double max, Rule rule, int64_t n);
    void (*arrive)(const void *grad, uint8_t *had, Arrival *arrival, int64_t n); /* had: for each entry, 1 if a gradient was ever not 0 */
} Loops;

/* Beside the loops of each dtype those of bfloat16 that compare in float32, for where the processor flushes subnormals: at the first level
   alone, because this is seldom. */
enum { F16, BF16, F32, F64, DTYPES, FLUSHED_BF16 = DTYPES, TABLES };

#ifndef __cplusplus
/* The loops of each level of processors; null if this build has none. */
extern const Loops *const loops_baseline[TABLES], *const loops_avx2[TABLES], *const loops_avx512[TABLES];
#endif
