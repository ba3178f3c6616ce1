/* The plan and the arguments of a kernel on a device: operators.c fills them, cuda.c starts the kernel, kernels.cu is the kernel. */
#pragma once
#include "rules.h"

#define MOST_DIMENSIONS 15
#define THREADS 256 /* in a group; each computes a block */

/* Where the elements of a tensor lie, in the order of another tensor's memory. */
typedef struct {
    char *memory;
    int64_t bytes, dim, sizes[MOST_DIMENSIONS + 1], strides[MOST_DIMENSIONS + 1]; /* from the outermost, neighbours joined */
    int is_linear;
} Walk;

enum { ENCODE, ENCODE_BETWEEN, PULL_CODE, PULL_X, STEPS, INSIDE, QUANTIZE, MEASURE, FORMULA }; /* kinds of a kernel */
enum { OF_GRAD, OF_X, OF_LOW, OF_HIGH, INPUTS };
enum { FACTORS = SLOPES + 6 }; /* the slopes of a rule, and the two factors of each share */

/* The constants that a kernel is compiled with. A factor other than 0 and 1 is an argument. */
typedef struct {
    uint8_t kind, dtype, has_low, has_high; /* has_low: is there a tensor of mins? For an interval: does its lower bound belong to it? */
    uint8_t has_tensors, has_y, has_walks;  /* has_walks: is an input not dense, or not aligned to 16 bytes? */
    Rule rule;                              /* for steps, `first` is the number of planes */
} Plan;

typedef struct {
    const void *inputs[INPUTS];
    void *out;
    uint8_t *planes;
    int64_t numel, apart, blocks; /* apart: bytes from plane to plane. blocks: how many write something */
    double min, max, factors[FACTORS];
} Arguments;

typedef struct {
    Walk inputs[INPUTS];
} Walks;

/* For measures.cu: a gradient, and the row to which its counts are added. */
enum { CALL, ELSEWHERE, SQUARES };                                  /* kinds of an entry */
enum { MEASURED = 8, PART = 1 << 13, MOST_LEFT = 3, MOST_ENTRIES = 56 }; /* a launch has at most 4,096 bytes of arguments */

typedef struct {
    const void *grad, *left[MOST_LEFT]; /* the gradients that leave, with its shape and its order of memory */
    double *row;
    int64_t numel;
    int32_t first; /* its first group of threads; each group measures a PART */
    uint8_t kind, lefts, dtype, left_dtypes[MOST_LEFT];
} Entry;

typedef struct {
    Arguments all; /* of these `numel` and `blocks`, which are threads here */
    int64_t count;
    Entry entries[MOST_ENTRIES];
} Measures;
