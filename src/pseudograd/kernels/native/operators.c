/* What torch calls: operators of the namespace `pseudograd_native` for strided tensors on CPU and on devices of CUDA, registered when the
library is loaded.

They cannot raise errors. So they serve every strided layout. If arguments do not fit each other, which `pseudograd.kernels.native` avoids,
they return a tensor without elements. For a device, such a tensor also means that no kernel was started.
They read only the sizes, strides, dtype, memory and device of a tensor: the caller sees to it that it is an ordinary one. */
#define _DEFAULT_SOURCE /* for madvise */
#include <stdlib.h>
#include <sys/mman.h>

#include "cuda.h"
#include "torch_stable.h"
#ifdef __x86_64__
#include <cpuid.h>
#include <xmmintrin.h>
#endif

#define CHUNK 1024          /* elements that are gathered at a time if their memory is in another order */
#define GRAIN (1 << 15)     /* elements that are worth a thread */
#define FEW 512             /* elements */
#define HUGE_PAGE (1 << 21) /* bytes */
#define MOST_HUGE (1 << 27) /* bytes of the largest tensor in such pages */
/* In a plan: y is made too, as clamps make it with one bound; there is no min, or no max; from here, two bits for the kind of each share. */
enum { WITH_Y = 1 << 4, NO_MIN = 1 << 12, NO_MAX = 1 << 13, KINDS_OF_SHARES = 14 };
#define UNSURE ((int64_t)1 << 60) /* a flag of an order: y is right but for the sign of zeros */
#define DECLINED -1               /* in place of an order: no kernel was started on the device */

static int32_t dtypes[DTYPES], bytes, cpu;
static const int64_t sizes_of[DTYPES] = {2, 2, 4, 8};
static const Loops *const *loops;

/* --- tensors ------------------------------------------------------------------------------------------------------ */

typedef struct {
    Handle handle;
    char *memory;
    int64_t *sizes, *strides, dim, numel;
    int dtype; /* one of F16 to F64; DTYPES for another dtype */
    int is_of_bytes;
    int is_on_device;      /* does an operator for devices see it? */
    int32_t device, index; /* the device, if it is not the CPU */
} Tensor;

static Tensor tensor(Handle handle) {
    Tensor t = {.handle = handle, .dtype = 0};
    if (!handle) return t;
    int32_t dtype = -1;
    void *memory = 0;
    aoti_torch_get_data_ptr(handle, &memory);
    aoti_torch_get_sizes(handle, &t.sizes);
    aoti_torch_get_strides(handle, &t.strides);
    aoti_torch_get_dim(handle, &t.dim);
    aoti_torch_get_numel(handle, &t.numel);
    aoti_torch_get_dtype(handle, &dtype);
    t.memory = memory, t.is_of_bytes = dtype == bytes;
    while (t.dtype < DTYPES && dtypes[t.dtype] != dtype) t.dtype++;
    return t;
}

/* A tensor argument. is_on_device: of the operator for devices? */
static Tensor tensor_of(Value handle, int is_on_device) {
    Tensor t = tensor((Handle)handle);
    t.is_on_device = is_on_device;
    if (is_on_device) aoti_torch_get_device_type(t.handle, &t.device), aoti_torch_get_device_index(t.handle, &t.index);
    return t;
}

static int are_together(const Tensor *a, const Tensor *b) { return a->device == b->device && a->index == b->index; }

/* Ask Linux for huge pages, as numpy does for its arrays. Memory that is new to a process arrives a page at a time, at the first write to
   it, which takes several times as long as the write. A huge page is 512 pages at once, if Linux is set to "madvise" or "always". Not for
   the largest tensors, between whose uses seconds pass: the host of a virtual machine may take back huge pages that were free for two
   seconds (free page reporting), and to get them again costs three times as much as small pages. */
static void ask_for_huge_pages(const Tensor *t) {
#ifdef MADV_HUGEPAGE
    uintptr_t memory = (uintptr_t)t->memory, size = (uintptr_t)t->numel * (t->dtype < DTYPES ? (uintptr_t)sizes_of[t->dtype] : 1);
    uintptr_t first = (memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE, end = (memory + size) / HUGE_PAGE * HUGE_PAGE;
    if (first < end && size <= MOST_HUGE) madvise((void *)first, end - first, MADV_HUGEPAGE);
#endif
}

/* A new tensor on the device of another tensor; without a handle if there is no memory. */
static Tensor empty(int64_t dim, const int64_t *sizes, const int64_t *strides, int32_t dtype, const Tensor *beside) {
    Handle made = 0;
    int is_on_device = beside && beside->is_on_device;
    int32_t device = is_on_device ? beside->device : cpu, index = is_on_device ? beside->index : 0;
    aoti_torch_empty_strided(dim, sizes, strides, dtype, device, index, &made);
    Tensor t = tensor(made);
    t.is_on_device = is_on_device, t.device = device, t.index = index;
    if (!is_on_device) ask_for_huge_pages(&t);
    return t;
}

static Tensor nothing(void) {
    const int64_t none = 0, one = 1;
    return empty(1, &none, &one, bytes, 0);
}

static void release(Tensor *t) {
    if (t->handle) aoti_torch_delete_tensor_object(t->handle);
}

/* The dimensions of a tensor from the outermost to the innermost in memory: four bits for each, the outermost in the lowest; 0 if they are
   in their own order. As in torch, dimensions of size 1 or of stride 0 keep their places. */
static int64_t order_of(const Tensor *t) {
    int64_t at[MOST_DIMENSIONS], places[MOST_DIMENSIONS], order = 0, count = 0;
    int sorted = 1;
    for (int64_t d = 0; d < t->dim; d++) {
        at[d] = d;
        if (t->sizes[d] == 1 || !t->strides[d]) continue;
        int64_t k = count++;
        places[k] = d;
        for (; k > 0 && t->strides[at[places[k - 1]]] < t->strides[d]; k--) at[places[k]] = at[places[k - 1]], sorted = 0;
        at[places[k]] = d;
    }
    for (int64_t d = 0; !sorted && d < t->dim; d++) order |= at[d] << (4 * d);
    return order;
}

/* Is it a tensor of so many bytes without gaps? Only then may `memory` be read as the planes of a code. A hook of saved tensors may have
   returned the values with other strides or another dtype. */
static int is_bytes(const Tensor *t, int64_t count) {
    int64_t stride = 1;
    if (!t->is_of_bytes || t->numel != count) return 0;
    for (int64_t d = t->dim - 1; d >= 0; d--) {
        if (t->sizes[d] != 1 && t->strides[d] != stride) return 0;
        stride *= t->sizes[d];
    }
    return 1;
}

static int64_t dimension(int64_t order, int64_t d) { return order ? (order >> (4 * d)) & 15 : d; }

/* The strides of a dense tensor of these sizes whose dimensions have this order. Returns 0 if it is no order of them. */
static int strides_in(int64_t order, int64_t dim, const int64_t *sizes, int64_t *strides) {
    int64_t stride = 1, seen = 0;
    for (int64_t d = dim - 1; d >= 0; d--) {
        int64_t own = dimension(order, d);
        if (own >= dim || seen >> own & 1) return 0;
        seen |= (int64_t)1 << own;
        strides[own] = stride;
        stride *= sizes[own] > 1 ? sizes[own] : 1;
    }
    return 1;
}

/* --- elements in the order of another tensor's memory --------------------------------------------------------------- */

/* A walk over `t`, broadcast to these sizes, with its dimensions in this order. Returns 0 if `t` does not broadcast. */
static int walk(const Tensor *t, int64_t dim, const int64_t *sizes, int64_t order, Walk *w) {
    w->memory = t->memory, w->bytes = sizes_of[t->dtype], w->dim = 0;
    for (int64_t d = 0; d < dim; d++) {
        int64_t of_all = dimension(order, d), own = of_all - (dim - t->dim), size = sizes[of_all], stride = 0;
        if (own >= 0 && t->sizes[own] != 1) {
            if (t->sizes[own] != size) return 0;
            stride = t->strides[own];
        }
        if (size == 1) continue;
        if (w->dim && w->strides[w->dim - 1] == stride * size) w->sizes[w->dim - 1] *= size, w->strides[w->dim - 1] = stride;
        else w->sizes[w->dim] = size, w->strides[w->dim] = stride, w->dim++;
    }
    if (t->dim > dim) return 0;
    if (!w->dim) w->sizes[0] = 1, w->strides[0] = 1, w->dim = 1;
    w->is_linear = w->dim == 1 && w->strides[0] == 1;
    return 1;
}

#define COPY_RUN(type)                                                                                                                 \
    if (stride == 0) {                                                                                                                 \
        type same = *(const type *)from;                                                                                               \
        for (int64_t i = 0; i < run; i++) ((type *)to)[i] = same;                                                                      \
    } else if (stride == 1) {                                                                                                          \
        memcpy(to, from, (size_t)run * sizeof(type));                                                                                  \
    } else if (stride == 2) {                                                                                                          \
        for (int64_t i = 0; i < run; i++) ((type *)to)[i] = ((const type *)from)[i * 2];                                               \
    } else {                                                                                                                           \
        for (int64_t i = 0; i < run; i++) ((type *)to)[i] = ((const type *)from)[i * stride];                                          \
    }

/* Elements `start` to `start + count` as whole blocks: where they are, if they follow each other there; else copied to `buffer`, as the rest
   behind the last whole block is, too, with zeros behind it. */
static const void *elements(const Walk *w, int64_t start, int64_t count, void *buffer) {
    if (w->is_linear && count % 64 == 0) return w->memory + start * w->bytes;
    if (count % 64) memset((char *)buffer + count / 64 * 64 * w->bytes, 0, (size_t)(64 * w->bytes));
    if (w->is_linear) return memcpy(buffer, w->memory + start * w->bytes, (size_t)(count * w->bytes));
    int64_t index[MOST_DIMENSIONS + 1], offset = 0, rest = start, inner = w->dim - 1, stride = w->strides[inner];
    for (int64_t d = inner; d >= 0; d--) index[d] = rest % w->sizes[d], rest /= w->sizes[d], offset += index[d] * w->strides[d];
    char *to = buffer;
    while (count > 0) {
        int64_t run = w->sizes[inner] - index[inner];
        if (run > count) run = count;
        const char *from = w->memory + offset * w->bytes;
        if (w->bytes == 4) {
            COPY_RUN(uint32_t)
        } else if (w->bytes == 2) {
            COPY_RUN(uint16_t)
        } else {
            COPY_RUN(uint64_t)
        }
        to += run * w->bytes, count -= run, offset += run * stride, index[inner] += run;
        for (int64_t d = inner; d > 0 && index[d] == w->sizes[d]; d--)
            offset += w->strides[d - 1] - index[d] * w->strides[d], index[d] = 0, index[d - 1]++;
    }
    return buffer;
}

/* --- the work of one thread ----------------------------------------------------------------------------------------- */

typedef struct {
    const Loops *loops;
    Rule rule;
    double min, max;
    int64_t numel;
    char *out;
    uint8_t *first, *second;
    int dtype, made_dtype, planes, has_low, has_high, has_tensors, has_y; /* planes: how many are made */
    int *zeros_differ; /* set if zeros of both signs meet: only torch knows which of them is y */
    Walk grad, x, low, high;
} Work;

/* Does the processor take subnormals for zeros, as after torch.set_flush_denormal? */
static int flushes_subnormals(void) {
#ifdef __x86_64__
    return (_mm_getcsr() & 0x8040) != 0;
#else
    uint64_t settings;
    __asm__ volatile("mrs %0, fpcr" : "=r"(settings));
    return settings >> 24 & 1;
#endif
}

/* For few elements, the loops without products of 512 bits: the first such product may stop a processor for longer than all of the loop.
   For formulas too, because they wait for memory. */
static const Loops *loops_for(int dtype, Rule rule, int64_t numel) {
    int is_few = loops == loops_avx512 && (rule.formula || (rule.kind == STANDING && numel <= FEW && scales_grad(rule)));
    if (dtype == BF16 && flushes_subnormals()) return loops_baseline[FLUSHED_BF16];
    return (is_few ? loops_avx2 : loops)[dtype];
}

static void share(const Work *work, void (*part)(int64_t, int64_t, void *)) {
    int64_t blocks = (work->numel + 63) / 64;
    if (work->numel <= GRAIN) part(0, blocks, (void *)work);
    else torch_parallel_for(0, blocks, GRAIN / 64, part, (void *)work);
}

static int64_t end_of(const Work *work, int64_t block) { return block * 64 < work->numel ? block * 64 : work->numel; }

/* How many elements to compute next: all whole blocks where nothing is gathered, else as many of them as a buffer holds; the rest behind
   them alone. */
static int64_t next_count(int64_t left, int is_gathered) {
    return left < 64 ? left : is_gathered && left > CHUNK ? CHUNK : left / 64 * 64;
}

static int64_t in_blocks(int64_t count) { return (count + 63) / 64 * 64; }

/* Where to make this many elements from `start` on, and how they get from there to their place. Bits behind the last one are 0. */
static char *place(const Work *work, int64_t start, int64_t count, char *made) {
    return work->out && count % 64 == 0 ? work->out + start * sizes_of[work->made_dtype] : made;
}

static void put(const Work *work, int64_t start, int64_t count, const char *made) {
    int64_t size = sizes_of[work->made_dtype], apart = work->second - work->first;
    uint64_t word;
    if (count % 64 == 0) return;
    if (work->out) memcpy(work->out + start * size, made, (size_t)(count * size));
    for (int plane = 0; plane < work->planes; plane++) {
        uint8_t *last = work->first + plane * apart + start / 8;
        memcpy(&word, last, 8);
        word &= ~(uint64_t)0 >> (64 - count);
        memcpy(last, &word, 8);
    }
}

#define MADE (64 * sizeof(double)) /* bytes of a block, at most */

static void encode_part(int64_t from, int64_t to, void *argument) {
    const Work *work = argument;
    double buffer[CHUNK];
    char made[MADE];
    for (int64_t start = from * 64, end = end_of(work, to), count; start < end; start += count) {
        count = next_count(end - start, !work->x.is_linear);
        const void *x = elements(&work->x, start, count, buffer);
        char *y = place(work, start, count, made);
        int64_t n = in_blocks(count);
        if (work->rule.kind == STANDING)
            work->loops->stand(x, 0, 0, y, work->first + start / 8, work->second - work->first, work->min, work->max, work->rule, n);
        else
            work->loops->encode(x, y, PLANE(work->rule.first, work->first, start), PLANE(work->rule.second, work->second, start), work->min,
                                work->max, work->rule, n);
        put(work, start, count, y);
    }
}

static void pull_code_part(int64_t from, int64_t to, void *argument) {
    const Work *work = argument;
    double buffer[CHUNK];
    char made[MADE];
    for (int64_t start = from * 64, end = end_of(work, to), count; start < end; start += count) {
        count = next_count(end - start, !work->grad.is_linear);
        const void *grad = elements(&work->grad, start, count, buffer);
        char *out = place(work, start, count, made);
        int64_t n = in_blocks(count);
        if (work->rule.kind == STANDING)
            work->loops->pull_standing(grad, work->first + start / 8, work->second - work->first, out, work->rule, n);
        else
            work->loops->pull_code(grad, PLANE(work->rule.first, work->first, start), PLANE(work->rule.second, work->second, start), out,
                                   work->rule, n);
        put(work, start, count, out);
    }
}

static void quantize_part(int64_t from, int64_t to, void *argument) {
    const Work *work = argument;
    double buffer[CHUNK];
    char made[MADE];
    for (int64_t start = from * 64, end = end_of(work, to), count; start < end; start += count) {
        count = next_count(end - start, !work->x.is_linear);
        char *y = place(work, start, count, made);
        work->loops->quantize(elements(&work->x, start, count, buffer), y, work->min, work->max, work->rule, in_blocks(count));
        put(work, start, count, y);
    }
}

static void filled(void *buffer, int dtype_bytes, int is_bfloat, int is_high, int64_t count) {
    const uint16_t half = (is_bfloat ? 0x7F80 : 0x7C00) | (is_high ? 0 : 0x8000);
    const uint32_t single = 0x7F800000u | (is_high ? 0 : 0x80000000u);
    const uint64_t wide = 0x7FF0000000000000u | (is_high ? 0 : 0x8000000000000000u);
    for (int64_t i = 0; i < count; i++)
        if (dtype_bytes == 2) ((uint16_t *)buffer)[i] = half;
        else if (dtype_bytes == 4) ((uint32_t *)buffer)[i] = single;
        else ((uint64_t *)buffer)[i] = wide;
}

/* A bound that is absent is no bound for the code, and infinite for y. */
static void encode_between_part(int64_t from, int64_t to, void *argument) {
    const Work *work = argument;
    double buffers[2][CHUNK], rest[64];
    char made[MADE];
    if (!work->has_low) filled(buffers[0], (int)work->x.bytes, work->dtype == BF16, 0, CHUNK);
    if (!work->has_high) filled(buffers[1], (int)work->x.bytes, work->dtype == BF16, 1, CHUNK);
    for (int64_t start = from * 64, end = end_of(work, to), count; start < end; start += count) {
        count = next_count(end - start, 1);
        const void *x = elements(&work->x, start, count, rest); /* is never gathered */
        const void *lows = work->has_low ? elements(&work->low, start, count, buffers[0]) : 0;
        const void *highs = work->has_high ? elements(&work->high, start, count, buffers[1]) : 0;
        char *y = place(work, start, count, made);
        int64_t n = in_blocks(count);
        int differ = 0, stands = work->rule.kind == STANDING;
        if (stands) work->loops->stand(x, lows, highs, 0, work->first + start / 8, work->second - work->first, 0, 0, work->rule, n);
        if (work->out)
            differ = work->loops->encode_between(x, lows ? lows : buffers[0], highs ? highs : buffers[1], y,
                                                 PLANE(work->rule.first, work->first, start), PLANE(work->rule.second, work->second, start),
                                                 stands ? NO_PLANE : work->rule, n);
        put(work, start, count, y);
        if (differ) __atomic_store_n(work->zeros_differ, 1, __ATOMIC_RELAXED);
    }
}

/* A bound that is absent is no bound for a rule of kind STANDING, and infinite for others. */
static void pull_x_part(int64_t from, int64_t to, void *argument) {
    const Work *work = argument;
    double buffers[4][CHUNK];
    char made[MADE];
    uint8_t code[MOST_PLANES * CHUNK / 8];
    int stands = work->rule.kind == STANDING;
    int is_whole = work->grad.is_linear && work->x.is_linear && !work->has_tensors && !work->has_low && !work->has_high && !stands;
    int is_filled = work->has_tensors && !stands;
    if (is_filled && !work->has_low) filled(buffers[2], (int)work->x.bytes, work->dtype == BF16, 0, CHUNK);
    if (is_filled && !work->has_high) filled(buffers[3], (int)work->x.bytes, work->dtype == BF16, 1, CHUNK);
    for (int64_t start = from * 64, end = end_of(work, to), count; start < end; start += count) {
        count = next_count(end - start, !is_whole);
        const void *lows = is_filled ? buffers[2] : 0, *highs = is_filled ? buffers[3] : 0;
        if (work->has_low) lows = elements(&work->low, start, count, buffers[2]);
        if (work->has_high) highs = elements(&work->high, start, count, buffers[3]);
        const void *grad = elements(&work->grad, start, count, buffers[0]), *x = elements(&work->x, start, count, buffers[1]);
        char *out = place(work, start, count, made);
        int64_t n = in_blocks(count);
        if (stands) {
            work->loops->stand(x, lows, highs, 0, code, CHUNK / 8, work->min, work->max, work->rule, n);
            work->loops->pull_standing(grad, code, CHUNK / 8, out, work->rule, n);
        } else {
            (work->rule.formula ? work->loops->formula : work->loops->pull_x)(grad, x, lows, highs, out, work->min, work->max, work->rule, n);
        }
        put(work, start, count, out);
    }
}

/* --- on a device ---------------------------------------------------------------------------------------------------- */

static int64_t plane_bytes(int64_t numel) { return (numel + 63) / 64 * 8; }

static int can_read_sixteen(const Walk *walk) { return walk->is_linear && (uintptr_t)walk->memory % 16 == 0; }

/* Starts a kernel on the device; returns 0 if it did not start. */
static int start(const Work *work, int kind, const Tensor *beside) {
    const Share *shares = work->rule.shares;
    Plan plan = {.kind = (uint8_t)kind, .dtype = (uint8_t)work->dtype, .rule = work->rule, .has_y = kind == ENCODE || kind == FORMULA || work->has_y};
    Arguments arguments = {.out = work->out, .planes = work->first, .numel = work->numel, .apart = plane_bytes(work->numel)};
    Walks walks = {{work->grad, work->x, work->low, work->high}};
    plan.has_low = work->has_low != 0, plan.has_high = work->has_high != 0, plan.has_tensors = work->has_tensors || kind == ENCODE_BETWEEN;
    plan.has_walks = (uintptr_t)work->out % 16 != 0;
    for (int k = 0; k < INPUTS; k++) {
        Walk *walk = &walks.inputs[k];
        arguments.inputs[k] = walk->memory;
        if (walk->memory && !can_read_sixteen(walk)) plan.has_walks = 1, walk->is_linear = 0;
    }
    /* A bound that is absent is infinite. */
    arguments.min = !plan.has_tensors ? work->min : plan.has_low ? 0 : -INFINITY;
    arguments.max = !plan.has_tensors ? work->max : plan.has_high ? 0 : INFINITY;
    for (int k = 0; k < 3; k++) arguments.factors[SLOPES + 2 * k] = shares[k].up, arguments.factors[SLOPES + 2 * k + 1] = shares[k].down;
    memcpy(arguments.factors, work->rule.slopes, sizeof(work->rule.slopes));
    /* Every byte of a plane is written. */
    arguments.blocks = kind == PULL_CODE || kind == PULL_X || !work->first ? (work->numel + 7) / 8 : arguments.apart;
    return !work->numel || cuda_start(beside->index < 0 ? 0 : beside->index, &plan, &arguments, &walks);
}

/* Does the work, on the CPU or on the device of `beside`. */
static int run(const Work *work, int kind, const Tensor *beside) {
    static void (*const parts[])(int64_t, int64_t, void *) = {
        [ENCODE] = encode_part, [ENCODE_BETWEEN] = encode_between_part, [PULL_CODE] = pull_code_part, [PULL_X] = pull_x_part, [QUANTIZE] = quantize_part,
        [FORMULA] = pull_x_part};
    if (beside->is_on_device) return start(work, kind, beside);
    share(work, parts[kind]);
    return 1;
}

/* --- the operators -------------------------------------------------------------------------------------------------- */

enum { SHARED = 9, STOOD = 4 + SLOPES, FORMED = SHARED + 1 + SLOPES }; /* numbers in the settings of a rule, by its kind */

/* The settings of kind STANDING: min, max, plan, the sets of all planes, and the slopes. */
static int read_standing(const double *found, Work *work, int plan) {
    Rule rule = {.kind = STANDING, .first = plan & 15};
    int64_t sets = (int64_t)found[3];
    if (plan >> 8 != STANDING && plan >> 8 != (STANDING | NO_MIN >> 8) && plan >> 8 != (STANDING | NO_MAX >> 8)) return 0;
    if (rule.first < 1 || rule.first > MOST_PLANES) return 0;
    for (int plane = 0; plane < MOST_PLANES; plane++) rule.sets[plane] = (uint16_t)(sets >> (plane * REGIONS));
    memcpy(rule.slopes, found + 4, sizeof(rule.slopes));
    work->rule = rule, work->min = found[0], work->max = found[1];
    return 1;
}

/* The settings of a rule: min, max, plan and the six numbers of its shares. They are in a tensor of float64, because torch passes a tensor
   in less time than numbers. bits.py says what they mean; native/__init__.py makes them. */
static int read_settings_of(Value handle, Work *work, int *plan, int formula) {
    Tensor t = tensor((Handle)handle);
    double found[FORMED];
    if (t.dtype != F64 || t.dim != 1 || (formula ? t.numel != FORMED : t.numel != SHARED && t.numel != STOOD) || t.strides[0] != 1) return 0;
    memcpy(found, t.memory, (size_t)t.numel * sizeof(*found));
    *plan = (int)found[2];
    if (t.numel == STOOD) return read_standing(found, work, *plan);
    if ((*plan >> 8 & 15) == STANDING) return 0;
    Rule rule = {0};
    if (formula) rule.formula = (uint8_t)found[SHARED], memcpy(rule.slopes, found + SHARED + 1, sizeof(rule.slopes));
    if (formula && (found[SHARED] <= NO_FORMULA || found[SHARED] >= FORMULAS)) return 0;
    rule.first = *plan & 15, rule.second = *plan >> 4 & 15, rule.kind = *plan >> 8 & 15;
    rule.edges = ((rule.first | rule.second) & (AT_MIN | AT_MAX)) != 0;
    rule.shares_both = (rule.first & rule.second) != 0;
    for (int k = 0; k < 3; k++) {
        Share share = {(uint8_t)(*plan >> (KINDS_OF_SHARES + 2 * k) & 3), found[3 + 2 * k], found[4 + 2 * k]};
        rule.shares[k] = share;
    }
    work->rule = rule, work->min = found[0], work->max = found[1];
    return 1;
}

static int read_settings(Value handle, Work *work, int *plan) { return read_settings_of(handle, work, plan, 0); }

static int is_served(const Tensor *t) { return t->dtype < DTYPES && t->dim <= MOST_DIMENSIONS; }

static int planes_of(Rule rule) { return rule.kind == STANDING ? rule.first : (rule.first != 0) + (rule.second != 0); }

static int64_t code_bytes(Rule rule, int64_t numel) { return plane_bytes(numel) * planes_of(rule); }

static void set_planes(Work *work, const Tensor *code) {
    work->first = (uint8_t *)code->memory;
    work->second = work->first + (work->rule.first ? plane_bytes(work->numel) : 0);
}

/* Clamps x, in place if `in_place`; and makes its code, if one is asked for, in the order of x's memory. */
static int clamp(const Tensor *x, Value settings, int in_place, Tensor *y, Tensor *code, int64_t *order) {
    int64_t strides[MOST_DIMENSIONS], one = 1;
    int plan;
    Work work = {.numel = x->numel};
    if (!is_served(x) || !read_settings(settings, &work, &plan)) return 0;
    *order = order_of(x);
    if (!strides_in(*order, x->dim, x->sizes, strides) || !walk(x, x->dim, x->sizes, *order, &work.x)) return 0;
    if (in_place && x->numel && !work.x.is_linear) return 0;
    if (!code) work.rule = (Rule){0};
    int64_t size = code_bytes(work.rule, x->numel);
    if (code) *code = empty(1, &size, &one, bytes, x), set_planes(&work, code), work.planes = planes_of(work.rule);
    if (!in_place) *y = empty(x->dim, x->sizes, strides, dtypes[x->dtype], x);
    work.loops = loops_for(x->dtype, work.rule, x->numel), work.dtype = work.made_dtype = x->dtype, work.out = in_place ? x->memory : y->memory;
    if ((in_place || y->handle) && (!code || code->handle) && run(&work, ENCODE, x)) return 1;
    if (code) release(code);
    if (!in_place) release(y);
    return 0;
}

static void release_arguments(Value *stack, int count) {
    for (int i = 0; i < count; i++) aoti_torch_delete_tensor_object((Handle)stack[i]);
}

#define OPERATOR(name) static void name(Value *stack, __attribute__((unused)) uint64_t inputs, __attribute__((unused)) uint64_t outputs)
/* Defines an operator for the CPU, and name_on_device for devices. */
#define OPERATOR_ANYWHERE(name)                                                                                                        \
    static void name##_anywhere(Value *stack, int is_on_device);                                                                       \
    OPERATOR(name) { name##_anywhere(stack, 0); }                                                                                      \
    OPERATOR(name##_on_device) { name##_anywhere(stack, 1); }                                                                          \
    static void name##_anywhere(Value *stack, int is_on_device)

OPERATOR_ANYWHERE(clamp_operator) {
    Tensor x = tensor_of(stack[0], is_on_device), y;
    int64_t order;
    if (!clamp(&x, stack[1], 0, &y, 0, &order)) y = nothing();
    release_arguments(stack, 2);
    stack[0] = (Value)y.handle;
}

static int is_same_along_rows(const Walk *w) { return w->strides[w->dim - 1] == 0; }

/* Clamps x between tensors, and makes its code, if one is asked for. Only for a dense x with the shape of the result: for others, the bounds
   too decide torch's order of memory. Without a code, only if a run of elements shares its bounds: otherwise torch's own loop is as fast.
   Where zeros of both signs meet, torch takes the one or the other by the element's place in memory: then `order` is UNSURE. */
static int clamp_between(const Tensor *x, const Tensor *low, const Tensor *high, Work *work, Tensor *y, Tensor *code, int64_t *order) {
    int64_t strides[MOST_DIMENSIONS], one = 1;
    if (!is_served(x) || low->dtype != x->dtype || high->dtype != x->dtype || !are_together(x, low) || !are_together(x, high)) return 0;
    *order = order_of(x);
    if (!strides_in(*order, x->dim, x->sizes, strides) || !walk(x, x->dim, x->sizes, *order, &work->x) || !work->x.is_linear) return 0;
    if (!walk(low, x->dim, x->sizes, *order, &work->low) || !walk(high, x->dim, x->sizes, *order, &work->high)) return 0;
    if (!code && !x->is_on_device && !(is_same_along_rows(&work->low) && is_same_along_rows(&work->high))) return 0;
    int64_t size = code_bytes(work->rule, x->numel);
    if (code) *code = empty(1, &size, &one, bytes, x), set_planes(work, code), work->planes = planes_of(work->rule);
    if (work->has_y) *y = empty(x->dim, x->sizes, strides, dtypes[x->dtype], x), work->out = y->memory;
    else *y = nothing();
    int zeros_differ = 0;
    work->loops = loops_for(x->dtype, work->rule, x->numel), work->dtype = work->made_dtype = x->dtype, work->zeros_differ = &zeros_differ;
    int is_done = y->handle && (!code || code->handle) && run(work, ENCODE_BETWEEN, x);
    if (zeros_differ) *order |= UNSURE;
    work->zeros_differ = 0;
    if (is_done) return 1;
    release(y);
    if (code) release(code);
    return 0;
}

OPERATOR_ANYWHERE(clamp_between_operator) {
    Tensor x = tensor_of(stack[0], is_on_device), low = tensor_of(stack[1], is_on_device), high = tensor_of(stack[2], is_on_device), y;
    int64_t order;
    Work work = {.numel = x.numel, .has_low = 1, .has_high = 1, .has_y = 1};
    int is_done = clamp_between(&x, &low, &high, &work, &y, 0, &order);
    if (is_done && order & UNSURE) release(&y);
    if (!is_done || order & UNSURE) y = nothing();
    release_arguments(stack, 3);
    stack[0] = (Value)y.handle;
}

OPERATOR_ANYWHERE(encode_between_operator) {
    Tensor x = tensor_of(stack[0], is_on_device), low = tensor_of(stack[1], is_on_device), high = tensor_of(stack[2], is_on_device), y, code;
    int64_t order = 0;
    int plan = 0;
    Work work = {.numel = x.numel};
    int is_read = read_settings(stack[3], &work, &plan);
    work.has_low = !(plan & NO_MIN), work.has_high = !(plan & NO_MAX);
    work.has_y = (work.has_low && work.has_high) || plan & WITH_Y;
    if (!is_read || (work.rule.kind != STANDING && !(work.has_low && work.has_high)) || !clamp_between(&x, &low, &high, &work, &y, &code, &order)) y = nothing(), code = nothing(), order = is_on_device ? DECLINED : 0;
    release_arguments(stack, 4);
    stack[0] = (Value)y.handle, stack[1] = (Value)code.handle, stack[2] = (Value)order;
}

OPERATOR_ANYWHERE(encode_operator) {
    Tensor x = tensor_of(stack[0], is_on_device), y, code;
    int64_t order = 0;
    if (!clamp(&x, stack[1], 0, &y, &code, &order)) y = nothing(), code = nothing(), order = is_on_device ? DECLINED : 0;
    release_arguments(stack, 2);
    stack[0] = (Value)y.handle, stack[1] = (Value)code.handle, stack[2] = (Value)order;
}

OPERATOR_ANYWHERE(encode_in_place_operator) {
    Tensor x = tensor_of(stack[0], is_on_device), code;
    int64_t order = 0;
    if (!clamp(&x, stack[1], 1, 0, &code, &order)) code = nothing(), order = is_on_device ? DECLINED : 0;
    release_arguments(stack, 2);
    stack[0] = (Value)code.handle, stack[1] = (Value)order;
}

/* The numbers of a grid: 1 / step, the position of 0, min, max and step. */
OPERATOR_ANYWHERE(quantize_operator) {
    Tensor x = tensor_of(stack[0], is_on_device), grid = tensor((Handle)stack[1]), y = {0};
    int64_t strides[MOST_DIMENSIONS], order = is_served(&x) ? order_of(&x) : 0;
    Work work = {.numel = x.numel, .has_y = 1, .dtype = x.dtype, .made_dtype = x.dtype};
    int fits = is_served(&x) && grid.dtype == F64 && grid.dim == 1 && grid.numel == 5 && grid.strides[0] == 1;
    if (fits && strides_in(order, x.dim, x.sizes, strides) && walk(&x, x.dim, x.sizes, order, &work.x)) {
        const double *numbers = (const double *)grid.memory;
        work.rule.shares[0] = (Share){ALIKE, numbers[0], numbers[1]}, work.rule.shares[1] = (Share){ALIKE, numbers[4], 0};
        work.min = numbers[2], work.max = numbers[3], work.loops = loops_for(x.dtype, work.rule, x.numel);
        y = empty(x.dim, x.sizes, strides, dtypes[x.dtype], &x), work.out = y.memory;
        if (y.handle && !run(&work, QUANTIZE, &x)) release(&y), y.handle = 0;
    }
    if (!y.handle) y = nothing();
    release_arguments(stack, 2);
    stack[0] = (Value)y.handle;
}

/* The dtype in which a formula is computed: float32 for half precision. */
static int wide(int dtype) { return dtype < F32 ? F32 : dtype; }

/* The gradient of x or of a bound, as `work` says, with these strides. */
static Tensor pulled(Work *work, int kind, const Tensor *grad, const int64_t *strides) {
    work->dtype = grad->dtype, work->made_dtype = is_to_sum(work->rule.formula) ? wide(grad->dtype) : grad->dtype;
    Tensor made = empty(grad->dim, grad->sizes, strides, dtypes[work->made_dtype], grad);
    work->loops = loops_for(grad->dtype, work->rule, work->numel), work->out = made.memory;
    if (made.handle && run(work, kind, grad)) return made;
    release(&made);
    return nothing();
}

OPERATOR_ANYWHERE(pull_code_operator) {
    Tensor grad = tensor_of(stack[0], is_on_device), code = tensor_of(stack[1], is_on_device), made;
    int64_t order = (int64_t)stack[3], strides[MOST_DIMENSIONS];
    int plan;
    Work work = {.numel = grad.numel};
    int fits = is_served(&grad) && read_settings(stack[2], &work, &plan) && is_bytes(&code, code_bytes(work.rule, grad.numel)) &&
               are_together(&grad, &code) && strides_in(order, grad.dim, grad.sizes, strides) &&
               walk(&grad, grad.dim, grad.sizes, order, &work.grad);
    if (fits) set_planes(&work, &code);
    made = fits ? pulled(&work, PULL_CODE, &grad, strides) : nothing();
    release_arguments(stack, 3);
    stack[0] = (Value)made.handle;
}

/* The gradient by a rule that reads x, between the numbers of the settings or between the tensors `low` and `high`, which are x if there is
   no bound. For a formula, `low` and `high` are its a and b, in the dtype in which it is computed; its settings end with its result's kind
   and its numbers. */
static Tensor pull(const Tensor *grad, const Tensor *x, const Tensor *low, const Tensor *high, Value settings, int formula) {
    int64_t strides[MOST_DIMENSIONS], dim = grad->dim, *sizes = grad->sizes, order;
    int plan;
    Work work = {.numel = grad->numel, .has_tensors = low && !formula};
    if (!is_served(grad) || grad->dtype != x->dtype || !are_together(grad, x) || x->dim > MOST_DIMENSIONS) return nothing();
    if (!read_settings_of(settings, &work, &plan, formula)) return nothing();
    if (!formula && (work.rule.kind >= (low ? BUMP : OF_MIN) || (low && work.rule.kind >= TURNED && work.rule.kind <= CUSP))) return nothing();
    order = order_of(dim == x->dim && grad->numel == x->numel ? x : grad);
    if (!strides_in(order, dim, sizes, strides) || !walk(grad, dim, sizes, order, &work.grad) || !walk(x, dim, sizes, order, &work.x))
        return nothing();
    int dtype = formula ? wide(x->dtype) : x->dtype;
    work.has_low = low && !(plan & NO_MIN), work.has_high = high && !(plan & NO_MAX);
    if (work.has_low && !(low->dtype == dtype && are_together(grad, low) && walk(low, dim, sizes, order, &work.low))) return nothing();
    if (work.has_high && !(high->dtype == dtype && are_together(grad, high) && walk(high, dim, sizes, order, &work.high))) return nothing();
    return pulled(&work, formula ? FORMULA : PULL_X, grad, strides);
}

OPERATOR_ANYWHERE(pull_x_operator) {
    Tensor grad = tensor_of(stack[0], is_on_device), x = tensor_of(stack[1], is_on_device), made = pull(&grad, &x, 0, 0, stack[2], 0);
    release_arguments(stack, 3);
    stack[0] = (Value)made.handle;
}

OPERATOR_ANYWHERE(pull_bounds_operator) {
    Tensor grad = tensor_of(stack[0], is_on_device), x = tensor_of(stack[1], is_on_device), low = tensor_of(stack[2], is_on_device), high = tensor_of(stack[3], is_on_device);
    Tensor made = pull(&grad, &x, &low, &high, stack[4], 0);
    release_arguments(stack, 5);
    stack[0] = (Value)made.handle;
}

OPERATOR_ANYWHERE(formula_operator) {
    Tensor grad = tensor_of(stack[0], is_on_device), x = tensor_of(stack[1], is_on_device), a = tensor_of(stack[2], is_on_device), b = tensor_of(stack[3], is_on_device);
    Tensor made = pull(&grad, &x, &a, &b, stack[4], 1);
    release_arguments(stack, 5);
    stack[0] = (Value)made.handle;
}

/* --- steps: planes of a dense tensor, in the order of its memory ------------------------------------------------------- */

typedef struct {
    const Loops *loops;
    const char *x;
    uint8_t *planes;
    const double *numbers; /* thresholds, or the four of an interval */
    int64_t bytes, numel;
    int bits, is_interval;
} Steps;

static void steps_part(int64_t from, int64_t to, void *argument) {
    const Steps *steps = argument;
    uint8_t *planes[MOST_PLANES];
    double rest[64];
    int64_t start = from * 64, end = to * 64 < steps->numel ? to * 64 : steps->numel;
    for (int64_t count; start < end; start += count) {
        const char *x = steps->x + start * steps->bytes;
        count = next_count(end - start, 0);
        if (count < 64) x = memcpy(memset(rest, 0, sizeof(rest)), x, (size_t)(count * steps->bytes));
        int64_t n = in_blocks(count);
        for (int plane = 0; plane < steps->bits; plane++) planes[plane] = steps->planes + plane * plane_bytes(steps->numel) + start / 8;
        if (steps->is_interval) steps->loops->inside(x, planes[0], steps->numbers, n);
        else steps->loops->steps(x, planes, steps->numbers, steps->bits, n);
    }
}

static int start_steps(const Steps *steps, const Tensor *x, const Walk *walk) {
    Work work = {.numel = x->numel, .dtype = x->dtype, .first = steps->planes};
    if (!x->numel) return 1;
    work.x = *walk;
    if (steps->is_interval) {
        work.min = steps->numbers[0], work.max = steps->numbers[1], work.has_low = steps->numbers[2] != 0, work.has_high = steps->numbers[3] != 0;
    } else {
        work.rule.kind = STANDING, work.rule.first = (uint8_t)steps->bits;
        memcpy(work.rule.slopes, steps->numbers, ((1u << steps->bits) - 1) * sizeof(double));
    }
    return start(&work, steps->is_interval ? INSIDE : STEPS, x);
}

/* The numbers are 1, 3 or 7 thresholds, or the four of an interval. */
OPERATOR_ANYWHERE(steps_operator) {
    Tensor x = tensor_of(stack[0], is_on_device), numbers = tensor((Handle)stack[1]), planes;
    Walk all;
    Steps steps = {.numel = x.numel, .bits = 1, .is_interval = numbers.numel == 4};
    while (!steps.is_interval && steps.bits < MOST_PLANES && (1 << steps.bits) - 1 < numbers.numel) steps.bits++;
    int is_done = 0, is_dense = is_served(&x) && (!x.numel || (walk(&x, x.dim, x.sizes, order_of(&x), &all) && all.is_linear));
    if (is_dense && numbers.dtype == F64 && numbers.dim == 1 && numbers.strides[0] == 1 && (steps.is_interval || (1 << steps.bits) - 1 == numbers.numel)) {
        int64_t size = steps.bits * plane_bytes(x.numel), one = 1, blocks = (x.numel + 63) / 64;
        planes = empty(1, &size, &one, bytes, &x);
        steps.loops = loops[x.dtype], steps.x = x.memory, steps.bytes = sizes_of[x.dtype];
        steps.planes = (uint8_t *)planes.memory, steps.numbers = (const double *)numbers.memory;
        is_done = planes.handle && (!is_on_device || start_steps(&steps, &x, &all));
        if (is_done && !is_on_device && x.numel <= GRAIN) steps_part(0, blocks, &steps);
        else if (is_done && !is_on_device) torch_parallel_for(0, blocks, GRAIN / 64, steps_part, &steps);
        if (!is_done) release(&planes);
    }
    if (!is_done) planes = nothing();
    release_arguments(stack, 2);
    stack[0] = (Value)planes.handle;
}

/* --- counts of a backward, for a diagnosis --------------------------------------------------------------------------- */

typedef struct {
    const Loops *loops;
    double min, max;
    int has;
    int64_t numel;
    Walk tensors[4]; /* grad, the gradients that leave to one input and to another, x */
    Tally *parts;    /* one for each GRAIN elements, so that the sum does not depend on the number of threads */
} Counting;

static void tally_part(int64_t from, int64_t to, void *argument) {
    const Counting *work = argument;
    double buffers[4][CHUNK];
    for (int64_t part = from; part < to; part++) {
        int64_t start = part * GRAIN, end = start + GRAIN < work->numel ? start + GRAIN : work->numel;
        for (int64_t count; start < end; start += count) {
            const void *found[4];
            count = next_count(end - start, 1);
            for (int k = 0; k < 4; k++) found[k] = elements(&work->tensors[k], start, count, buffers[k]);
            work->loops->tally(found[0], found[1], found[2], found[3], work->min, work->max, work->has, &work->parts[part],
                               in_blocks(count)); /* zeros count nowhere */
        }
    }
}

/* Returns 0 if the tensors do not have one dtype, or do not broadcast to grad. A tensor that is absent is grad. found: min, max, and the
   flags HAS_... of what is there. */
static int count_all(const Tensor *tensors, const double *found, Tally *total) {
    Counting work = {0};
    const Tensor *grad = tensors;
    int fits = is_served(grad);
    int64_t order = fits ? order_of(grad) : 0, parts = (grad->numel + GRAIN - 1) / GRAIN;
    for (int k = 0; fits && k < 4; k++)
        fits = tensors[k].dtype == grad->dtype && walk(&tensors[k], grad->dim, grad->sizes, order, &work.tensors[k]);
    if (!fits) return 0;
    Tally one = {0};
    work.parts = parts <= 1 ? &one : calloc((size_t)parts, sizeof(Tally));
    if (!work.parts) return 0;
    work.loops = loops[grad->dtype], work.min = found[0], work.max = found[1], work.has = (int)found[2], work.numel = grad->numel;
    if (parts <= 1) tally_part(0, parts, &work);
    else torch_parallel_for(0, parts, 1, tally_part, &work);
    *total = work.parts[0];
    for (int64_t part = 1; part < parts; part++) {
        for (int k = 0; k < COUNTS; k++) total->counts[k] += work.parts[part].counts[k];
        total->magnitude += work.parts[part].magnitude, total->cut_magnitude += work.parts[part].cut_magnitude;
    }
    if (parts > 1) free(work.parts);
    return 1;
}

static int is_row(const Tensor *t, int64_t count) { return t->dtype == F64 && t->dim == 1 && t->numel == count && (count == 1 || t->strides[0] == 1); }

/* The counts and both magnitudes; no elements if the tensors do not fit. */
OPERATOR(tally_operator) {
    Tensor tensors[5], made;
    Tally total;
    int64_t size = COUNTS + 2, one = 1;
    for (int k = 0; k < 5; k++) tensors[k] = tensor((Handle)stack[k]);
    if (is_row(&tensors[4], 3) && count_all(tensors, (const double *)tensors[4].memory, &total)) {
        made = empty(1, &size, &one, dtypes[F64], 0);
        double *to = (double *)made.memory;
        for (int k = 0; k < COUNTS; k++) to[k] = (double)total.counts[k];
        to[COUNTS] = total.magnitude, to[COUNTS + 1] = total.cut_magnitude;
    } else {
        made = nothing();
    }
    release_arguments(stack, 5);
    stack[0] = (Value)made.handle;
}

/* Adds the counts to sums, whose last entry is the number of elements. Returns how many gradients were cut; -1 if nothing was added. */
static int64_t add_tally(const Tensor *tensors, const double *found, const Tensor *sums) {
    Tally total;
    double *to = (double *)sums->memory;
    if (!is_row(sums, COUNTS + 3) || !count_all(tensors, found, &total)) return -1;
    for (int k = 0; k < COUNTS; k++) to[k] += (double)total.counts[k];
    to[COUNTS] += total.magnitude, to[COUNTS + 1] += total.cut_magnitude, to[COUNTS + 2] += (double)tensors[0].numel;
    return total.counts[CUT];
}

OPERATOR(add_tally_operator) {
    Tensor tensors[6];
    for (int k = 0; k < 6; k++) tensors[k] = tensor((Handle)stack[k]);
    int64_t cut = is_row(&tensors[4], 3) ? add_tally(tensors, (const double *)tensors[4].memory, &tensors[5]) : -1;
    release_arguments(stack, 6);
    stack[0] = (Value)cut;
}

static int is_alike(const Tensor *a, const Tensor *b) {
    return a->dim == b->dim && !memcmp(a->sizes, b->sizes, (size_t)a->dim * sizeof(*a->sizes));
}

/* Adds the counts of several backward calls, each with three gradients and its sums: the one that arrives, and two that leave, which are the
   same if only one leaves. `has` is IS_FULL or 0. Returns a bit for each of at most 63 calls: was nothing added? */
OPERATOR(add_tallies_operator) {
    List grads = (List)stack[0], sums = (List)stack[1];
    size_t count = 0;
    int64_t missed = 0;
    torch_list_size(sums, &count);
    for (size_t call = 0; call < count; call++) {
        Value values[4];
        Tensor tensors[5];
        for (size_t k = 0; k < 3; k++) torch_list_get_item(grads, 3 * call + k, &values[k]);
        torch_list_get_item(sums, call, &values[3]);
        for (int k = 0; k < 4; k++) tensors[k < 3 ? k : 4] = tensor((Handle)values[k]);
        tensors[3] = tensors[0];
        int is_one = tensors[1].sizes == tensors[2].sizes; /* torch has one array of sizes for each tensor */
        const double found[3] = {0, 0, (int)(int64_t)stack[2] | HAS_LEFT | (is_one ? 0 : HAS_OTHER)};
        int are_alike = is_alike(&tensors[0], &tensors[1]) && is_alike(&tensors[0], &tensors[2]);
        if (!are_alike || add_tally(tensors, found, &tensors[4]) < 0) missed |= (int64_t)1 << call;
        release_arguments(values, 4);
    }
    torch_delete_list(grads), torch_delete_list(sums);
    stack[0] = (Value)missed;
}

/* How many entries of these tensors are not finite? */
OPERATOR(count_nonfinite_operator) {
    List grads = (List)stack[0];
    const double found[3] = {0, 0, IS_FULL};
    size_t count = 0;
    int64_t nonfinite = 0;
    torch_list_size(grads, &count);
    for (size_t k = 0; k < count; k++) {
        Value value;
        Tally tally;
        torch_list_get_item(grads, k, &value);
        Tensor t = tensor((Handle)value), same[4] = {t, t, t, t};
        if (count_all(same, found, &tally)) nonfinite += tally.counts[NONFINITE];
        release_arguments(&value, 1);
    }
    torch_delete_list(grads);
    stack[0] = (Value)nonfinite;
}

/* Are all entries of both tensors finite? Without a list, this takes half of the time. */
OPERATOR(are_finite_operator) {
    const double found[3] = {0, 0, IS_FULL};
    int64_t nonfinite = 0;
    for (int k = 0; k < 2; k++) {
        Tensor t = tensor((Handle)stack[k]), same[4] = {t, t, t, t};
        Tally tally;
        if (count_all(same, found, &tally)) nonfinite += tally.counts[NONFINITE];
    }
    release_arguments(stack, 2);
    stack[0] = (Value)!nonfinite;
}

/* Adds an entry to a launch: a gradient that arrives, and those that leave. Returns 0 if they do not have one order of memory, without gaps. */
static int fill_entry(Measures *m, const Tensor *tensors, int lefts, int kind, double *row) {
    const Tensor *grad = tensors;
    Entry *entry = &m->entries[m->count];
    int64_t order = is_served(grad) ? order_of(grad) : 0;
    for (int k = 0; k <= lefts; k++) {
        Walk w;
        if (!is_served(&tensors[k]) || !are_together(grad, &tensors[k]) || grad->numel != tensors[k].numel) return 0;
        if (!walk(&tensors[k], grad->dim, grad->sizes, order, &w) || !w.is_linear) return 0;
        if (k) entry->left[k - 1] = w.memory, entry->left_dtypes[k - 1] = (uint8_t)tensors[k].dtype;
        else entry->grad = w.memory;
    }
    entry->kind = (uint8_t)kind, entry->lefts = (uint8_t)lefts, entry->dtype = (uint8_t)grad->dtype;
    entry->row = row, entry->numel = grad->numel, entry->first = (int32_t)(m->all.blocks / THREADS);
    m->all.numel += grad->numel, m->all.blocks += (grad->numel + PART - 1) / PART * THREADS, m->count += grad->numel > 0;
    return 1;
}

/* Adds the counts of several gradients to rows on their device. `entries` has for each its kind, two bits for how many leave, and its row.
   `tensors` has the gradients that arrive and leave, one entry after the other. Returns a bit for each entry that no kernel serves; -1 if
   no kernel was started. */
OPERATOR_ANYWHERE(measure_operator) {
    List tensors = (List)stack[0], entries = (List)stack[1];
    Tensor rows = tensor_of(stack[2], is_on_device);
    Measures m = {.count = 0};
    Plan plan = {.kind = MEASURE};
    size_t count = 0, next = 0, size = 0;
    int64_t missed = 0;
    torch_list_size(entries, &count), torch_list_size(tensors, &size);
    int fits = is_on_device && count <= MOST_ENTRIES && rows.dtype == F64 && rows.dim == 2 && rows.strides[1] == 1;
    for (size_t k = 0; fits && k < count; k++) {
        Value entry = 0, values[1 + MOST_LEFT];
        Tensor each[1 + MOST_LEFT];
        torch_list_get_item(entries, k, &entry);
        int lefts = (int)(entry >> 2 & 3);
        int64_t row = (int64_t)(entry >> 4);
        if (!(fits = next + (size_t)lefts < size)) break;
        for (int i = 0; i <= lefts; i++) torch_list_get_item(tensors, next++, &values[i]), each[i] = tensor_of(values[i], 1);
        int is_there = row < rows.sizes[0] && are_together(&rows, &each[0]);
        if (!is_there || !fill_entry(&m, each, lefts, (int)(entry & 3), (double *)rows.memory + row * rows.strides[0])) missed |= (int64_t)1 << k;
        release_arguments(values, 1 + lefts);
    }
    if (!fits || (m.count && !cuda_start(rows.index < 0 ? 0 : rows.index, &plan, &m.all, 0))) missed = -1;
    release_arguments(stack + 2, 1);
    torch_delete_list(tensors), torch_delete_list(entries);
    stack[0] = (Value)missed;
}

typedef struct {
    const Loops *loops;
    int64_t numel;
    Walk grad;
    uint8_t *had;
    Arrival *parts; /* one for each GRAIN elements, as above */
} Arriving;

static void arrive_part(int64_t from, int64_t to, void *argument) {
    const Arriving *work = argument;
    double buffer[CHUNK];
    for (int64_t part = from; part < to; part++) {
        int64_t start = part * GRAIN, end = start + GRAIN < work->numel ? start + GRAIN : work->numel;
        for (int64_t count; start < end; start += count) {
            uint8_t rest[64], *had = work->had ? work->had + start : 0;
            count = next_count(end - start, !work->grad.is_linear);
            int is_rest = count < 64;
            if (is_rest && had) had = memcpy(memset(rest, 1, sizeof(rest)), had, (size_t)count);
            work->loops->arrive(elements(&work->grad, start, count, buffer), had, &work->parts[part], in_blocks(count));
            if (is_rest && had) memcpy(work->had + start, rest, (size_t)count);
            if (is_rest) work->parts[part].zeros -= 64 - count;
        }
    }
}

/* Do these bytes have the shape and the order of memory of another tensor? */
static int lies_as(const Tensor *bytes_of_it, const Tensor *other, int64_t order) {
    int64_t strides[MOST_DIMENSIONS];
    if (!bytes_of_it->is_of_bytes || bytes_of_it->dim != other->dim || !strides_in(order, other->dim, other->sizes, strides)) return 0;
    for (int64_t d = 0; d < other->dim; d++)
        if (bytes_of_it->sizes[d] != other->sizes[d] || (other->sizes[d] > 1 && bytes_of_it->strides[d] != strides[d])) return 0;
    return 1;
}

/* Counts a gradient that arrives at a parameter. The sum gets three numbers: it grows by the squares of this gradient; then these squares
   alone; then how many entries are 0. `had`, a byte for each entry or no bytes at all, says which entries ever had a gradient other than 0.
   Returns how many entries never had one; -1 if nothing was added. */
OPERATOR(arrive_operator) {
    Tensor grad = tensor((Handle)stack[0]), squares = tensor((Handle)stack[1]), had = tensor((Handle)stack[2]);
    int64_t parts = (grad.numel + GRAIN - 1) / GRAIN, order = 0, missing = -1;
    Arriving work = {.numel = grad.numel};
    Arrival one = {0};
    int fits = is_served(&grad) && is_row(&squares, 3);
    if (fits) order = order_of(&grad), fits = walk(&grad, grad.dim, grad.sizes, order, &work.grad);
    if (fits && had.numel) work.had = (uint8_t *)had.memory, fits = lies_as(&had, &grad, order);
    if (fits) work.parts = parts <= 1 ? &one : calloc((size_t)parts, sizeof(Arrival));
    if (work.parts) {
        work.loops = loops[grad.dtype];
        if (parts <= 1) arrive_part(0, parts, &work);
        else torch_parallel_for(0, parts, 1, arrive_part, &work);
        double sum = 0, *to = (double *)squares.memory;
        int64_t zeros = 0;
        missing = 0;
        for (int64_t part = 0; part < (parts > 1 ? parts : 1); part++) sum += work.parts[part].squares, zeros += work.parts[part].zeros, missing += work.parts[part].missing;
        to[0] += sum, to[1] = sum, to[2] = (double)zeros;
        if (parts > 1) free(work.parts);
    }
    release_arguments(stack, 3);
    stack[0] = (Value)missing;
}

/* --- registration --------------------------------------------------------------------------------------------------- */

/* Chooses the best loops for this processor, up to `most`: 0 SSE2 or NEON, 1 AVX2, 2 AVX-512. */
static int choose(int most) {
    loops = loops_baseline;
    int level = 0;
#ifdef __x86_64__
    __builtin_cpu_init();
    unsigned a, b, features = 0, d; /* because clang 14 does not know the name f16c */
    int has_avx2 = __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &features, &d) && features & bit_F16C;
    if (most >= 1 && has_avx2) loops = loops_avx2, level = 1;
    if (most >= 2 && has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        loops = loops_avx512, level = 2;
#endif
    return level;
}

OPERATOR(version_operator) { stack[0] = (Value)(int64_t)VERSION; }

/* The bytes of the text of cuda_status, see cuda.h. None if torch has no CUDA. */
OPERATOR(cuda_status_operator) {
    char text[1024] = "";
    if (cuda_is_there()) cuda_status(text, sizeof(text));
    int64_t size = (int64_t)strlen(text), one = 1;
    Tensor made = empty(1, &size, &one, bytes, 0);
    memcpy(made.memory, text, (size_t)size);
    stack[0] = (Value)made.handle;
}

OPERATOR(choose_operator) { stack[0] = (Value)(int64_t)choose((int)(int64_t)stack[0]); }

static const struct {
    const char *name, *schema, *key;
    void (*run)(Value *, uint64_t, uint64_t), (*run_on_device)(Value *, uint64_t, uint64_t);
} operators[] = {
    {"clamp", "clamp(Tensor x, Tensor settings) -> Tensor", "CPU", clamp_operator, clamp_operator_on_device},
    {"clamp_between", "clamp_between(Tensor x, Tensor min, Tensor max) -> Tensor", "CPU", clamp_between_operator, clamp_between_operator_on_device},
    {"encode_between", "encode_between(Tensor x, Tensor min, Tensor max, Tensor settings) -> (Tensor, Tensor, int)", "CPU",
     encode_between_operator, encode_between_operator_on_device},
    {"encode", "encode(Tensor x, Tensor settings) -> (Tensor, Tensor, int)", "CPU", encode_operator, encode_operator_on_device},
    {"encode_", "encode_(Tensor(a!) x, Tensor settings) -> (Tensor, int)", "CPU", encode_in_place_operator, encode_in_place_operator_on_device},
    {"pull_code", "pull_code(Tensor grad, Tensor code, Tensor settings, int order) -> Tensor", "CPU", pull_code_operator, pull_code_operator_on_device},
    {"pull_x", "pull_x(Tensor grad, Tensor x, Tensor settings) -> Tensor", "CPU", pull_x_operator, pull_x_operator_on_device},
    {"pull_bounds", "pull_bounds(Tensor grad, Tensor x, Tensor min, Tensor max, Tensor settings) -> Tensor", "CPU", pull_bounds_operator, pull_bounds_operator_on_device},
    {"formula", "formula(Tensor grad, Tensor x, Tensor a, Tensor b, Tensor settings) -> Tensor", "CPU", formula_operator, formula_operator_on_device},
    {"steps", "steps(Tensor x, Tensor numbers) -> Tensor", "CPU", steps_operator, steps_operator_on_device},
    {"quantize", "quantize(Tensor x, Tensor grid) -> Tensor", "CPU", quantize_operator, quantize_operator_on_device},
    {"tally", "tally(Tensor grad, Tensor one, Tensor other, Tensor x, Tensor settings) -> Tensor", "CPU", tally_operator, 0},
    {"add_tally", "add_tally(Tensor grad, Tensor one, Tensor other, Tensor x, Tensor settings, Tensor(a!) sums) -> int", "CPU", add_tally_operator, 0},
    {"add_tallies", "add_tallies(Tensor[] grads, Tensor(a!)[] sums, int has) -> int", "CPU", add_tallies_operator, 0},
    {"count_nonfinite", "count_nonfinite(Tensor[] grads) -> int", "CPU", count_nonfinite_operator, 0},
    {"are_finite", "are_finite(Tensor one, Tensor other) -> bool", "CPU", are_finite_operator, 0},
    {"arrive", "arrive(Tensor grad, Tensor(a!) squares, Tensor(b!) had) -> int", "CPU", arrive_operator, 0},
    {"measure", "measure(Tensor[] tensors, int[] entries, Tensor(a!) rows) -> int", "CPU", measure_operator, measure_operator_on_device},
    {"choose", "choose(int most) -> int", "CompositeExplicitAutograd", choose_operator, 0},
    {"version", "version() -> int", "CompositeExplicitAutograd", version_operator, 0},
    {"cuda_status", "cuda_status() -> Tensor", "CompositeExplicitAutograd", cuda_status_operator, 0},
};

__attribute__((constructor)) static void arrive(void) {
    const uint64_t torch_2_10 = (uint64_t)2 << 56 | (uint64_t)10 << 48;
    Library all = 0, cpu_only = 0, any = 0, cuda = 0;
    int has_cuda = cuda_is_there();
    dtypes[F16] = aoti_torch_dtype_float16(), dtypes[BF16] = aoti_torch_dtype_bfloat16();
    dtypes[F32] = aoti_torch_dtype_float32(), dtypes[F64] = aoti_torch_dtype_float64();
    bytes = aoti_torch_dtype_uint8(), cpu = aoti_torch_device_type_cpu();
    choose(2);
    aoti_torch_library_init_def("pseudograd_native", __FILE__, __LINE__, &all);
    aoti_torch_library_init_impl("pseudograd_native", "CPU", __FILE__, __LINE__, &cpu_only);
    aoti_torch_library_init_impl("pseudograd_native", "CompositeExplicitAutograd", __FILE__, __LINE__, &any);
    if (has_cuda) aoti_torch_library_init_impl("pseudograd_native", "CUDA", __FILE__, __LINE__, &cuda);
    for (unsigned i = 0; i < sizeof(operators) / sizeof(*operators); i++) {
        aoti_torch_library_def(all, operators[i].schema);
        torch_library_impl(*operators[i].key == 'C' && operators[i].key[1] == 'P' ? cpu_only : any, operators[i].name, operators[i].run,
                           torch_2_10);
        if (has_cuda && operators[i].run_on_device) torch_library_impl(cuda, operators[i].name, operators[i].run_on_device, torch_2_10);
    }
}
