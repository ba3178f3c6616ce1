/* Runs the operators in C on tensors of exactly the memory they say, under sanitizers or valgrind: whoever reads or writes a byte beside it
is heard. A torch of our own stands in for the real one; values are compared elsewhere, here only between the kinds of processors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rules.h"
#include "torch_stable.h"

typedef struct {
    int64_t dim, sizes[16], strides[16], numel;
    int32_t dtype;
    char *memory;
} Fake;

enum { HALF = 5, BFLOAT = 15, SINGLE = 6, DOUBLE = 7, BYTE = 0 };
static int64_t alive;

static int64_t bytes_of(int32_t dtype) { return dtype == DOUBLE ? 8 : dtype == SINGLE ? 4 : dtype == BYTE ? 1 : 2; }

Status aoti_torch_empty_strided(int64_t dim, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device, int32_t index,
                                Handle *made) {
    (void)device, (void)index;
    Fake *t = calloc(1, sizeof(Fake));
    int64_t last = 0;
    t->dim = dim, t->dtype = dtype, t->numel = 1;
    for (int64_t d = 0; d < dim; d++) {
        t->sizes[d] = sizes[d], t->strides[d] = strides[d], t->numel *= sizes[d];
        last += (sizes[d] - 1) * strides[d];
    }
    t->memory = malloc((size_t)(t->numel ? (last + 1) * bytes_of(dtype) : 0) + !t->numel);
    alive++;
    *made = t;
    return 0;
}
Status aoti_torch_delete_tensor_object(Handle handle) {
    free(((Fake *)handle)->memory), free(handle), alive--;
    return 0;
}
Status aoti_torch_get_data_ptr(Handle h, void **found) { return *found = ((Fake *)h)->memory, 0; }
Status aoti_torch_get_numel(Handle h, int64_t *found) { return *found = ((Fake *)h)->numel, 0; }
Status aoti_torch_get_dim(Handle h, int64_t *found) { return *found = ((Fake *)h)->dim, 0; }
Status aoti_torch_get_sizes(Handle h, int64_t **found) { return *found = ((Fake *)h)->sizes, 0; }
Status aoti_torch_get_strides(Handle h, int64_t **found) { return *found = ((Fake *)h)->strides, 0; }
Status aoti_torch_get_dtype(Handle h, int32_t *found) { return *found = ((Fake *)h)->dtype, 0; }
Status aoti_torch_get_device_type(Handle h, int32_t *found) { return (void)h, *found = 0, 0; }
Status aoti_torch_get_device_index(Handle h, int32_t *found) { return (void)h, *found = 0, 0; }
int32_t aoti_torch_dtype_float16(void) { return HALF; }
int32_t aoti_torch_dtype_bfloat16(void) { return BFLOAT; }
int32_t aoti_torch_dtype_float32(void) { return SINGLE; }
int32_t aoti_torch_dtype_float64(void) { return DOUBLE; }
int32_t aoti_torch_dtype_uint8(void) { return BYTE; }
int32_t aoti_torch_device_type_cpu(void) { return 0; }
Status torch_parallel_for(int64_t from, int64_t to, int64_t grain, void (*part)(int64_t, int64_t, void *), void *argument) {
    for (int64_t start = from; start < to; start += grain) part(start, start + grain < to ? start + grain : to, argument);
    return 0;
}

typedef struct {
    size_t count;
    Value values[4];
} FakeList;
Status torch_list_size(List list, size_t *found) { return *found = ((FakeList *)list)->count, 0; }
Status torch_list_get_item(List list, size_t i, Value *found) { return *found = ((FakeList *)list)->values[i], 0; }
Status torch_delete_list(List list) { return free(list), 0; }
static Value list_of(size_t count, const Value *values) {
    FakeList *list = calloc(1, sizeof(FakeList));
    list->count = count, memcpy(list->values, values, count * sizeof(Value));
    return (Value)list;
}

static struct {
    const char *name;
    void (*run)(Value *, uint64_t, uint64_t);
} known[32];
static int count;
Status aoti_torch_library_init_def(const char *a, const char *b, uint32_t c, Library *d) { return (void)a, (void)b, (void)c, (void)d, 0; }
Status aoti_torch_library_init_impl(const char *a, const char *b, const char *c, uint32_t d, Library *e) {
    return (void)a, (void)b, (void)c, (void)d, (void)e, 0;
}
Status aoti_torch_library_def(Library a, const char *b) { return (void)a, (void)b, 0; }
Status torch_library_impl(Library a, const char *name, void (*run)(Value *, uint64_t, uint64_t), uint64_t b) {
    (void)a, (void)b;
    known[count].name = name, known[count++].run = run;
    return 0;
}

static void run(const char *name, Value *stack) {
    for (int i = 0; i < count; i++)
        if (!strcmp(known[i].name, name)) return known[i].run(stack, 0, 0);
    abort();
}

static uint64_t seed = 1;
static double random_number(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return ((double)(seed >> 33) / (double)(1u << 30) - 1.0) * 3.0;
}

/* Sizes 2 x 3 x 5 x `inner` in some layout, with its numbers; the same ones for the same `start`. */
static Fake *numbers(int32_t dtype, int layout, int64_t inner, uint64_t start) {
    int64_t sizes[4] = {2, 3, 5, inner}, strides[4] = {15 * inner, 5 * inner, inner, 1};
    if (layout == 1) strides[0] = 15 * inner, strides[1] = 1, strides[2] = 3 * inner, strides[3] = 3;      /* channels last */
    if (layout == 2) strides[0] = 30 * inner, strides[1] = 10 * inner, strides[2] = 2 * inner, strides[3] = 2; /* every second */
    if (layout == 3) strides[0] = strides[1] = strides[2] = strides[3] = 0;                                /* one number */
    if (layout == 4) strides[0] = 15, strides[1] = 5, strides[2] = 1, strides[3] = 0;                      /* one for each row */
    Handle made;
    aoti_torch_empty_strided(4, sizes, strides, dtype, 0, 0, &made);
    Fake *t = made;
    seed = start;
    for (int64_t i = 0; i < t->numel; i++) {
        int64_t rest = i, offset = 0;
        for (int d = 3; d >= 0; d--) offset += rest % sizes[d] * strides[d], rest /= sizes[d];
        double number = i % 17 == 3 ? 1.0 : i % 19 == 5 ? -1.0 : i % 23 == 7 ? 0.0 : random_number();
        char *at = t->memory + offset * bytes_of(dtype);
        float single = (float)number;
        uint32_t bits;
        memcpy(&bits, &single, 4);
        uint16_t half = (uint16_t)(bits >> 16); /* any pattern will do for float16 */
        if (dtype == DOUBLE) memcpy(at, &number, 8);
        else if (dtype == SINGLE) memcpy(at, &single, 4);
        else memcpy(at, &half, 2);
    }
    return t;
}

/* The same numbers one behind the other. */
static Fake *flat(int32_t dtype, int64_t count, uint64_t start) {
    int64_t one = 1;
    Fake *t = numbers(dtype, 0, (count + 29) / 30, start);
    Handle made;
    aoti_torch_empty_strided(1, &count, &one, dtype, 0, 0, &made);
    memcpy(((Fake *)made)->memory, t->memory, (size_t)(count * bytes_of(dtype)));
    aoti_torch_delete_tensor_object(t);
    return made;
}

static Fake *ascending(int64_t count) {
    int64_t one = 1;
    Handle made;
    aoti_torch_empty_strided(1, &count, &one, DOUBLE, 0, 0, &made);
    for (int64_t i = 0; i < count; i++) ((double *)((Fake *)made)->memory)[i] = (double)(i - count / 2) * 0.5;
    return made;
}

/* As native/__init__.py writes them: min, max, plan and six numbers of three shares, or the sets of the planes and the slopes of eight codes. */
static Fake *settings(int plan) {
    const double shared[9] = {-1.0, 1.0, plan, 0.25, 0.5, 0.75, 0.125, 0.0, 0.0};
    const double stood[12] = {-1.0, 1.0, plan, (double)(0xAAA8LL | 0x4CC1LL << REGIONS | 0xB0F2LL << 2 * REGIONS), 0.0, 1.0, 0.5, 0.25, 1.0, 0.0, 0.5, 2.0};
    int stands = (plan >> 8 & 7) == STANDING;
    int64_t size = stands ? 12 : 9, one = 1;
    Handle made;
    aoti_torch_empty_strided(1, &size, &one, DOUBLE, 0, 0, &made);
    memcpy(((Fake *)made)->memory, stands ? stood : shared, (size_t)size * sizeof(double));
    return made;
}

/* With the kind and the number of a formula behind. */
static Fake *settings_of_formula(int plan, int formula) {
    int64_t size = 10 + SLOPES, one = 1;
    Handle made;
    Fake *shared = settings(plan);
    aoti_torch_empty_strided(1, &size, &one, DOUBLE, 0, 0, &made);
    memcpy(((Fake *)made)->memory, shared->memory, 9 * sizeof(double));
    double *numbers = (double *)((Fake *)made)->memory + 9;
    for (int k = 0; k < SLOPES; k++) numbers[k + 1] = 0.5;
    numbers[0] = formula;
    aoti_torch_delete_tensor_object(shared);
    return made;
}

/* An operator that gives no elements where there are some has read settings that it does not know: then nothing of it was run. */
static void expect(Value handle, int64_t numel, const char *name, int plan) {
    if (((Fake *)handle)->numel == numel) return;
    printf("%s: plan %#x was not served\n", name, plan);
    exit(2);
}

static uint64_t sum_of(Value handle) {
    Fake *t = (Fake *)handle;
    uint64_t sum = 14695981039346656037u;
    int64_t last = 0;
    for (int64_t d = 0; d < t->dim; d++) last += (t->sizes[d] - 1) * t->strides[d];
    for (int64_t i = 0; t->numel && i < (last + 1) * bytes_of(t->dtype); i++) sum = (sum ^ (uint8_t)t->memory[i]) * 1099511628211u;
    aoti_torch_delete_tensor_object(t);
    return sum;
}

/* Counts alone: the magnitudes behind them are summed in another order on each processor. */
static uint64_t counts_of(Value handle) {
    Fake *t = (Fake *)handle;
    uint64_t sum = 0;
    if (t->numel != COUNTS + 2) abort();
    for (int k = 0; k < COUNTS; k++) sum = sum * 1000003 + (uint64_t)((double *)t->memory)[k];
    aoti_torch_delete_tensor_object(t);
    return sum;
}

static uint64_t tally(Fake *grad, Fake *one, Fake *other, Fake *x, int has) {
    Value stack[5] = {(Value)grad, (Value)one, (Value)other, (Value)x, (Value)ascending(3)};
    ((double *)((Fake *)stack[4])->memory)[0] = -1.0;
    ((double *)((Fake *)stack[4])->memory)[1] = 1.0;
    ((double *)((Fake *)stack[4])->memory)[2] = has;
    run("tally", stack);
    return counts_of(stack[0]);
}

/* How many entries never had a gradient: of bytes in the order of memory of one `layout` or another, or of none at all. */
static uint64_t arrive(Fake *grad, int layout) {
    int64_t one = 1, three = 3, none = 0, inner = grad->sizes[3];
    int64_t dense[4] = {15 * inner, 5 * inner, inner, 1}, channels_last[4] = {15 * inner, 1, 3 * inner, 3};
    Handle squares, had;
    aoti_torch_empty_strided(1, &three, &one, DOUBLE, 0, 0, &squares);
    memset(((Fake *)squares)->memory, 0, 3 * sizeof(double));
    if (layout == 2) aoti_torch_empty_strided(1, &none, &one, BYTE, 0, 0, &had);
    else aoti_torch_empty_strided(4, grad->sizes, layout ? channels_last : dense, BYTE, 0, 0, &had);
    for (int64_t i = 0; i < ((Fake *)had)->numel; i++) ((Fake *)had)->memory[i] = i % 3 == 0;
    Value stack[3] = {(Value)grad, (Value)squares, (Value)had};
    run("arrive", stack);
    return (uint64_t)stack[0];
}

static uint64_t add_tally(Fake *grad, Fake *one, Fake *other, Fake *x, int has) {
    Value stack[6] = {(Value)grad, (Value)one, (Value)other, (Value)x, (Value)ascending(3), (Value)ascending(COUNTS + 3)};
    ((double *)((Fake *)stack[4])->memory)[2] = has;
    run("add_tally", stack);
    if ((int64_t)stack[0] < 0) puts("add_tally was not served"), exit(2);
    return (uint64_t)stack[0];
}

static uint64_t count_nonfinite(Fake *one, Fake *other) {
    const Value grads[2] = {(Value)one, (Value)other};
    Value stack[1] = {list_of(2, grads)};
    run("count_nonfinite", stack);
    return stack[0];
}

static uint64_t are_finite(Fake *one, Fake *other) {
    Value stack[2] = {(Value)one, (Value)other};
    run("are_finite", stack);
    return stack[0];
}

static void add_tallies(Fake *grad, Fake *one, Fake *other, int has) {
    const Value grads[3] = {(Value)grad, (Value)one, (Value)other}, sums[1] = {(Value)ascending(COUNTS + 3)};
    Value stack[3] = {list_of(3, grads), list_of(1, sums), (Value)(int64_t)has};
    run("add_tallies", stack);
    if (stack[0]) puts("add_tallies was not served"), exit(2);
}

/* run_operators [the best processor: 0 plain, 1 AVX2, 2 AVX-512] [one case in how many] */
int main(int arguments, char **given) {
    const int32_t dtypes[] = {HALF, BFLOAT, SINGLE, DOUBLE};
    const int by_sign = BY_SIGN << 14 | BY_SIGN << 16, number = NUMBER << 14 | BY_SIGN << 16 | NUMBER << 18;
    const int plans[] = {0x003, 0x00F, 0x021 | by_sign, 0x001 | by_sign, 0x0FB | by_sign, 0x0ED | number, 0x0C3,
                         0x021 | TURNED << 8, TENT << 8, WITCH << 8, CUSP << 8, 1 | STANDING << 8, 2 | STANDING << 8, 3 | STANDING << 8};
    const int64_t inners[] = {0, 1, 2, 3, 21, 64, 100, 1500};
    int most = arguments > 1 ? atoi(given[1]) : 2, step = arguments > 2 ? atoi(given[2]) : 1, at = 0, wrong = 0;
    for (unsigned d = 0; d < 4; d++)
        for (unsigned p = 0; p < sizeof(plans) / sizeof(*plans); p++)
            for (unsigned n = 0; n < sizeof(inners) / sizeof(*inners); n++)
                for (int layout = 0; layout < 3; layout++)
                    for (int of_grad = 0; of_grad < 4; of_grad++) {
                        uint64_t first[14] = {0};
                        int64_t numel = 30 * inners[n];
                        int kind = plans[p] >> 8 & 7, reads_numbers = kind >= TURNED && kind <= CUSP; /* which are no tensors */
                        if (at++ % step) continue;
                        for (int level = 0; level <= most; level++) {
                            uint64_t found[14] = {0};
                            Value stack[8] = {(Value)(int64_t)level};
                            run("choose", stack);
                            stack[0] = (Value)numbers(dtypes[d], layout, inners[n], 1), stack[1] = (Value)settings(plans[p]);
                            run("clamp", stack), expect(stack[0], numel, "clamp", plans[p]), found[0] = sum_of(stack[0]);
                            stack[0] = (Value)numbers(dtypes[d], layout, inners[n], 1), stack[1] = (Value)settings(plans[p]);
                            run("encode", stack), expect(stack[0], numel, "encode", plans[p]), found[1] = sum_of(stack[0]);
                            Value code = stack[1], order = stack[2];
                            stack[0] = (Value)numbers(dtypes[d], of_grad, inners[n], 2), stack[1] = code;
                            stack[2] = (Value)settings(plans[p]), stack[3] = order;
                            run("pull_code", stack), expect(stack[0], numel, "pull_code", plans[p]), found[2] = sum_of(stack[0]);
                            stack[0] = (Value)numbers(dtypes[d], of_grad, inners[n], 2);
                            stack[1] = (Value)numbers(dtypes[d], layout, inners[n], 1), stack[2] = (Value)settings(plans[p]);
                            run("pull_x", stack), expect(stack[0], numel, "pull_x", plans[p]), found[3] = sum_of(stack[0]);
                            for (int bound = 0; bound < 3; bound++) {
                                stack[0] = (Value)numbers(dtypes[d], of_grad, inners[n], 2);
                                stack[1] = (Value)numbers(dtypes[d], layout, inners[n], 1);
                                stack[2] = (Value)numbers(dtypes[d], 3 - bound, inners[n], 3);
                                stack[3] = (Value)numbers(dtypes[d], bound, inners[n], 4);
                                stack[4] = (Value)settings(plans[p] | (bound == 1 ? 1 << 12 : bound == 2 ? 1 << 13 : 0));
                                run("pull_bounds", stack), expect(stack[0], reads_numbers ? 0 : numel, "pull_bounds", plans[p]);
                                found[4 + bound] = sum_of(stack[0]);
                            }
                            int formula = 1 + (int)(p + n) % (FORMULAS - 1), wide = dtypes[bytes_of(dtypes[d]) > 2 ? d : 2];
                            stack[0] = (Value)numbers(dtypes[d], of_grad, inners[n], 2);
                            stack[1] = (Value)numbers(dtypes[d], layout, inners[n], 1);
                            stack[2] = (Value)numbers(wide, 4 - p % 2, inners[n], 3), stack[3] = (Value)numbers(wide, 3, inners[n], 4);
                            stack[4] = (Value)settings_of_formula(plans[p] | (int)(n % 2) << 12, formula);
                            run("formula", stack), expect(stack[0], kind == STANDING ? 0 : numel, "formula", plans[p]), found[13] = sum_of(stack[0]);
                            stack[0] = (Value)numbers(dtypes[d], layout, inners[n], 1), stack[1] = (Value)settings(plans[p]);
                            run("encode_", stack), found[7] = sum_of(stack[0]);
                            stack[0] = (Value)numbers(dtypes[d], layout, inners[n], 1);
                            stack[1] = (Value)numbers(dtypes[d], 4, inners[n], 3), stack[2] = (Value)numbers(dtypes[d], 3 + p % 2, inners[n], 4);
                            run("clamp_between", stack), expect(stack[0], !layout && inners[n] > 1 ? numel : 0, "clamp_between", plans[p]);
                            found[8] = sum_of(stack[0]);
                            stack[0] = (Value)numbers(dtypes[d], layout, inners[n], 1), stack[1] = (Value)numbers(dtypes[d], of_grad, inners[n], 3);
                            stack[2] = (Value)numbers(dtypes[d], 4 - p % 2, inners[n], 4), stack[3] = (Value)settings(plans[p]);
                            run("encode_between", stack), expect(stack[0], layout < 2 ? numel : 0, "encode_between", plans[p]);
                            found[9] = sum_of(stack[0]) ^ 3 * sum_of(stack[1]);
                            stack[0] = (Value)numbers(dtypes[d], layout, inners[n], 1), stack[1] = (Value)ascending(3);
                            run("steps", stack), found[10] = sum_of(stack[0]);
                            found[11] = tally(numbers(dtypes[d], of_grad, inners[n], 2), numbers(dtypes[d], layout, inners[n], 3),
                                              numbers(dtypes[d], 4 - p % 2, inners[n], 4), numbers(dtypes[d], layout, inners[n], 1), (int)p * 7 % 64);
                            found[12] = arrive(numbers(dtypes[d], of_grad, inners[n], 2), layout);
                            found[12] ^= 3 * add_tally(numbers(dtypes[d], of_grad, inners[n], 2), numbers(dtypes[d], layout, inners[n], 3),
                                                       numbers(dtypes[d], 4 - p % 2, inners[n], 4),
                                                       numbers(dtypes[d], layout, inners[n], 1), (int)p * 7 % 64);
                            add_tallies(numbers(dtypes[d], of_grad, inners[n], 2), numbers(dtypes[d], layout, inners[n], 3),
                                        numbers(dtypes[d], 4 - p % 2, inners[n], 4), p % 2 ? IS_FULL : 0);
                            found[12] ^= 5 * count_nonfinite(numbers(dtypes[d], of_grad, inners[n], 2), numbers(dtypes[d], layout, inners[n], 3));
                            found[12] ^= 7 * are_finite(numbers(dtypes[d], of_grad, inners[n], 2), numbers(dtypes[d], layout, inners[n], 3));
                            if (!level) memcpy(first, found, sizeof(found));
                            for (int i = 0; i < 14; i++)
                                if (found[i] != first[i]) {
                                    wrong++;
                                    if (wrong < 10)
                                        printf("dtype %u plan %#x inner %ld layout %d grad %d: result %d of level %d differs\n", d, plans[p],
                                               (long)inners[n], layout, of_grad, i, level);
                                }
                        }
                    }
    for (unsigned d = 0; d < 4; d++)
        for (int64_t size = 0; size < 400; size = size < 70 ? size + 1 : size + 101)
            for (int bits = 1; bits <= 3; bits++) {
                uint64_t first[1] = {0};
                for (int level = 0; level <= most; level++) {
                    Value stack[4] = {(Value)(int64_t)level};
                    run("choose", stack);
                    stack[0] = (Value)flat(dtypes[d], size, 5), stack[1] = (Value)ascending((1 << bits) - 1);
                    run("steps", stack);
                    Value planes = stack[0];
                    stack[0] = (Value)flat(dtypes[d], size, 6), stack[1] = planes, stack[2] = (Value)settings(STANDING << 8 | bits), stack[3] = 0;
                    run("pull_code", stack), expect(stack[0], size, "pull_code", STANDING << 8 | bits);
                    uint64_t found = sum_of(stack[0]);
                    stack[0] = (Value)flat(dtypes[d], size, 7), stack[1] = (Value)ascending(4);
                    run("steps", stack), found ^= sum_of(stack[0]) * (uint64_t)bits;
                    for (int has = bits * 20; has < bits * 20 + 20; has++)
                        found ^= (uint64_t)has * tally(flat(dtypes[d], size, 5), flat(dtypes[d], size, 6), flat(dtypes[d], size, 7), flat(dtypes[d], size, 8), has);
                    if (!level) first[0] = found;
                    if (found != first[0]) wrong++, printf("steps: dtype %u size %ld bits %d level %d differs\n", d, (long)size, bits, level);
                }
            }
    if (alive) printf("%ld tensors were not released\n", (long)alive);
    if (!wrong && !alive) puts("right");
    return wrong || alive;
}
