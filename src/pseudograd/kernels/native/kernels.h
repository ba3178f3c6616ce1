/* What starts a kernel on a device and what the kernel reads: operators.c fills it, cuda.c starts it, kernels.cu is it. */
#pragma once
#include "rules.h"

#define MOST_DIMENSIONS 15
#define THREADS 256 /* of a group of threads, each of which computes a block */

/* Where the elements of a tensor lie, in the order of another tensor's memory. */
typedef struct {
    char *memory;
    int64_t bytes, dim, sizes[MOST_DIMENSIONS + 1], strides[MOST_DIMENSIONS + 1]; /* from the outermost, neighbours joined */
    int is_linear;
} Walk;

enum { ENCODE, ENCODE_BETWEEN, PULL_CODE, PULL_X, STEPS, INSIDE, QUANTIZE, MEASURE, FORMULA }; /* kinds of a kernel */
enum { OF_GRAD, OF_X, OF_LOW, OF_HIGH, INPUTS };
enum { FACTORS = SLOPES + 6 }; /* the slopes of a rule, and the two factors of each share */

/* What is compiled: constants of a kernel. A factor other than 0 and 1 is an argument. */
typedef struct {
    uint8_t kind, dtype, has_low, has_high; /* is there a tensor of bounds? Of an interval: does the bound belong to it? */
    uint8_t has_tensors, has_y, has_walks;  /* is an input not dense, or not where 16 bytes at a time can be read? */
    Rule rule;                              /* of steps: `first` planes */
} Plan;

typedef struct {
    const void *inputs[INPUTS];
    void *out;
    uint8_t *planes;
    int64_t numel, apart, blocks; /* bytes from plane to plane; how many blocks have something to write */
    double min, max, factors[FACTORS];
} Arguments;

typedef struct {
    Walk inputs[INPUTS];
} Walks;

/* Of measures.cu: a gradient, and where its numbers are added. */
enum { CALL, ELSEWHERE, SQUARES };                                  /* kinds of an entry */
enum { MEASURED = 8, PART = 1 << 13, MOST_LEFT = 3, MOST_ENTRIES = 56 }; /* a launch has at most 4,096 bytes of arguments */

typedef struct {
    const void *grad, *left[MOST_LEFT]; /* what leaves in its shape, in the same order of memory */
    double *row;
    int64_t numel;
    int32_t first; /* of its groups of threads, each of which measures a PART */
    uint8_t kind, lefts, dtype, left_dtypes[MOST_LEFT];
} Entry;

typedef struct {
    Arguments all; /* of these `numel` and `blocks`, which are threads here */
    int64_t count;
    Entry entries[MOST_ENTRIES];
} Measures;
