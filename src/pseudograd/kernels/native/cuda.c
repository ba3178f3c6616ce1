/* Kernels on CUDA devices, without the toolkit: NVRTC and the driver are found through torch's library for CUDA, which names them. A kernel
is compiled when its plan first meets a device, and kept as long as the process lives.

Every status is checked. A failure turns all kernels off, and `cuda_status` says why. While a graph is recorded no kernel is compiled; then
a call is declined without a failure. */
#define _GNU_SOURCE /* for dladdr */
#include "cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST_DEVICES 64
#define MOST_TEXT (1 << 16)

/* The sources of a kernel, embedded. */
#define EMBED(name, file)                                                                                                              \
    __asm__(".section .rodata\n.hidden " #name "\n.global " #name "\n" #name ":\n.incbin \"" file "\"\n.byte 0\n.previous\n");          \
    extern const char name[] __attribute__((visibility("hidden")));
EMBED(pseudograd_rules_h, "rules.h")
EMBED(pseudograd_number_h, "number.h")
EMBED(pseudograd_blocks_h, "blocks.h")
EMBED(pseudograd_kernels_h, "kernels.h")
EMBED(pseudograd_kernels_cu, "kernels.cu")
EMBED(pseudograd_measures_cu, "measures.cu")

static const char INTEGERS[] = "typedef signed char int8_t; typedef int int32_t; typedef long long int64_t;\n"
                               "typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;\n"
                               "typedef unsigned long long uint64_t, uintptr_t;\n";

/* --- what is called ----------------------------------------------------------------------------------------------------- */

static int32_t (*stream_of)(int32_t, void **);
static struct {
    int (*nvrtcVersion)(int *, int *);
    int (*nvrtcGetNumSupportedArchs)(int *);
    int (*nvrtcGetSupportedArchs)(int *);
    int (*nvrtcCreateProgram)(void **, const char *, const char *, int, const char *const *, const char *const *);
    int (*nvrtcCompileProgram)(void *, int, const char *const *);
    int (*nvrtcGetCUBINSize)(void *, size_t *);
    int (*nvrtcGetCUBIN)(void *, char *);
    int (*nvrtcGetPTXSize)(void *, size_t *);
    int (*nvrtcGetPTX)(void *, char *);
    int (*nvrtcGetProgramLogSize)(void *, size_t *);
    int (*nvrtcGetProgramLog)(void *, char *);
    int (*nvrtcDestroyProgram)(void **);
    const char *(*nvrtcGetErrorString)(int);
    int (*cuGetErrorName)(int, const char **);
    int (*cuDeviceGet)(int *, int);
    int (*cuDeviceGetAttribute)(int *, int, int);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuCtxGetCurrent)(void **);
    int (*cuCtxPushCurrent_v2)(void *);
    int (*cuCtxPopCurrent_v2)(void **);
    int (*cuStreamIsCapturing)(void *, int *);
    int (*cuModuleLoadData)(void **, const void *);
    int (*cuModuleGetFunction)(void **, void *, const char *);
    int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
} call;
#define NAME_OF(function) {#function, (void **)&call.function}
static const struct {
    const char *name;
    void **address;
} names[] = {NAME_OF(nvrtcVersion), NAME_OF(nvrtcGetNumSupportedArchs), NAME_OF(nvrtcGetSupportedArchs), NAME_OF(nvrtcCreateProgram),
             NAME_OF(nvrtcCompileProgram), NAME_OF(nvrtcGetCUBINSize), NAME_OF(nvrtcGetCUBIN), NAME_OF(nvrtcGetPTXSize), NAME_OF(nvrtcGetPTX),
             NAME_OF(nvrtcGetProgramLogSize), NAME_OF(nvrtcGetProgramLog), NAME_OF(nvrtcDestroyProgram), NAME_OF(nvrtcGetErrorString),
             NAME_OF(cuGetErrorName), NAME_OF(cuDeviceGet), NAME_OF(cuDeviceGetAttribute), NAME_OF(cuDevicePrimaryCtxRetain),
             NAME_OF(cuCtxGetCurrent), NAME_OF(cuCtxPushCurrent_v2), NAME_OF(cuCtxPopCurrent_v2), NAME_OF(cuStreamIsCapturing),
             NAME_OF(cuModuleLoadData), NAME_OF(cuModuleGetFunction), NAME_OF(cuLaunchKernel)};

/* --- state: what is written under the lock is published by an atomic store ------------------------------------------------ */

enum { WAITING, OPEN, FAILED };
typedef struct {
    void *context;
    int architecture; /* such as 90 */
    int is_known;     /* by NVRTC; else NVRTC makes PTX, which the driver translates */
} Device;
typedef struct Kernel {
    Plan plan;
    int32_t device;
    void *function;
    struct Kernel *next;
} Kernel;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int state, is_failing;
static char version[64], reason[512];
static const char *declined = "";
static Device devices[MOST_DEVICES];
static Kernel *kernels;

/* Notes the first failure only: later ones follow from it. */
static int fail(const char *what, const char *error) {
    if (__atomic_exchange_n(&is_failing, 1, __ATOMIC_ACQ_REL)) return 0;
    snprintf(reason, sizeof(reason), "%s: %s", what, error);
    for (char *at = reason; *at; at++)
        if (*at == '|' || *at == '\n') *at = ' ';
    __atomic_store_n(&state, FAILED, __ATOMIC_RELEASE);
    return 0;
}

static int driver_succeeds(int status, const char *name) {
    const char *known = 0;
    char error[128];
    if (!status) return 1;
    call.cuGetErrorName(status, &known);
    snprintf(error, sizeof(error), "%s (status %d of the driver)", known ? known : "an unknown error", status);
    return fail(name, error);
}
#define DRIVER(function, ...) driver_succeeds(call.function(__VA_ARGS__), #function)

static int compiler_succeeds(int status, const char *name) { return status ? fail(name, call.nvrtcGetErrorString(status)) : 1; }
#define COMPILER(function, ...) compiler_succeeds(call.function(__VA_ARGS__), #function)

int cuda_is_there(void) {
    void *torch = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    if (torch) dlclose(torch);
    return torch != 0;
}

void cuda_status(char *text, uint64_t size) {
    static const char *const states[] = {"waiting", "active", "failed"};
    int now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    snprintf(text, size, "%s|%s|%s", states[now], now == FAILED ? reason : now == OPEN ? version : "", __atomic_load_n(&declined, __ATOMIC_ACQUIRE));
}

/* --- the libraries and the devices: under the lock ------------------------------------------------------------------------ */

static int open_libraries(void) {
    void *torch = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    char path[4096];
    Dl_info info;
    int major = 0, minor = 0;
    if (!torch) return fail("torch", "its library for CUDA is not loaded");
    stream_of = (int32_t(*)(int32_t, void **))dlsym(torch, "aoti_torch_get_current_cuda_stream");
    if (!stream_of || !dladdr((void *)stream_of, &info)) return fail("torch", "its library for CUDA has no aoti_torch_get_current_cuda_stream");
    const char *end = strrchr(info.dli_fname, '/');
    snprintf(path, sizeof(path), "%.*slibcaffe2_nvrtc.so", end ? (int)(end + 1 - info.dli_fname) : 0, info.dli_fname);
    void *both = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!both) return fail("NVRTC and the driver", dlerror());
    for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (!(*names[i].address = dlsym(both, names[i].name))) return fail("NVRTC and the driver", names[i].name);
    if (!COMPILER(nvrtcVersion, &major, &minor)) return 0;
    snprintf(version, sizeof(version), "NVRTC %d.%d", major, minor);
    __atomic_store_n(&state, OPEN, __ATOMIC_RELEASE);
    return 1;
}

/* Chooses the architecture of NVRTC for a device: its own, or the newest one before it. */
static int choose_architecture(Device *device, int own) {
    int count = 0, *known, best = 0;
    char error[128];
    if (!COMPILER(nvrtcGetNumSupportedArchs, &count) || !(known = calloc((size_t)count + 1, sizeof(int)))) return 0;
    int is_read = COMPILER(nvrtcGetSupportedArchs, known);
    for (int i = 0; i < count; i++)
        if (known[i] <= own && known[i] > best) best = known[i];
    free(known);
    device->architecture = best, device->is_known = best == own;
    snprintf(error, sizeof(error), "compiles nothing for a device as old as sm_%d", own);
    return is_read && (best || fail(version, error));
}

static Device *device_at(int32_t index) {
    if (index < 0 || index >= MOST_DEVICES) return fail("CUDA", "the device has no number below 64"), (Device *)0;
    Device *device = &devices[index];
    int own = 0, major = 0, minor = 0;
    void *context = 0;
    enum { MAJOR = 75, MINOR = 76 }; /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_... */
    if (__atomic_load_n(&device->context, __ATOMIC_ACQUIRE)) return device;
    if (!DRIVER(cuDeviceGet, &own, index) || !DRIVER(cuDeviceGetAttribute, &major, MAJOR, own)) return 0;
    if (!DRIVER(cuDeviceGetAttribute, &minor, MINOR, own) || !choose_architecture(device, major * 10 + minor)) return 0;
    if (!DRIVER(cuDevicePrimaryCtxRetain, &context, own)) return 0;
    __atomic_store_n(&device->context, context, __ATOMIC_RELEASE);
    return device;
}

/* --- a kernel: under the lock --------------------------------------------------------------------------------------------- */

typedef struct {
    char *text;
    size_t length;
} Text;

__attribute__((format(printf, 2, 3))) static void add(Text *text, const char *format, ...) {
    __builtin_va_list arguments;
    __builtin_va_start(arguments, format);
    int length = vsnprintf(text->text + text->length, MOST_TEXT - text->length, format, arguments);
    __builtin_va_end(arguments);
    text->length += (size_t)length; /* MOST_TEXT is far more than is ever added */
}

/* Factors 0 and 1 are constants, so that the compiler leaves out their products. */
static int is_constant(double factor) { return factor == 1.0 || (factor == 0.0 && !signbit(factor)); }

static void add_factor(Text *text, double factor, int number) {
    if (is_constant(factor)) add(text, "%.1f", factor);
    else add(text, "FACTOR(%d)", number);
}

static void add_rule(Text *text, const Rule *rule) {
    add(text, "#define RULE {%d, %d, %d, %d, %d, %d, {", rule->kind, rule->first, rule->second, rule->edges, rule->shares_both, rule->formula);
    for (int k = 0; k < 3; k++) {
        add(text, "{%d, ", rule->shares[k].kind), add_factor(text, rule->shares[k].up, SLOPES + 2 * k);
        add(text, ", "), add_factor(text, rule->shares[k].down, SLOPES + 2 * k + 1), add(text, "}%s", k < 2 ? ", " : "}, {");
    }
    for (int plane = 0; plane < MOST_PLANES; plane++) add(text, "%d%s", rule->sets[plane], plane < MOST_PLANES - 1 ? ", " : "}, {");
    for (int k = 0; k < SLOPES; k++) add_factor(text, rule->slopes[k], k), add(text, "%s", k < SLOPES - 1 ? ", " : "}}\n");
}

static int planes_of(const Plan *plan) {
    const Rule *rule = &plan->rule;
    if (plan->kind == INSIDE) return 1;
    return plan->kind == STEPS || rule->kind == STANDING ? rule->first : (rule->first != 0) + (rule->second != 0);
}

static char *write_source(const Plan *plan) {
    static const struct {
        const char *type, *lane, *name;
    } dtypes[DTYPES] = {{"uint16_t", "f", "f16"}, {"uint16_t", "f", "bf16"}, {"float", "f", "f32"}, {"double", "d", "f64"}};
    Text text = {malloc(MOST_TEXT), 0};
    if (!text.text) return 0;
    if (plan->kind == MEASURE) return add(&text, "%s", pseudograd_measures_cu), text.text;
    add(&text, "#define T %s\n#define NAME(x) x\n#define LANE(x) x##_%s\n", dtypes[plan->dtype].type, dtypes[plan->dtype].lane);
    add(&text, "#define LOAD(p) load_%s(p)\n#define STORE(p, v) store_%s(p, v)\n", dtypes[plan->dtype].name, dtypes[plan->dtype].name);
    add(&text, "#define KIND %d\n#define HAS_LOW %d\n#define HAS_HIGH %d\n", plan->kind, plan->has_low, plan->has_high);
    add(&text, "#define HAS_TENSORS %d\n#define HAS_Y %d\n#define WALKS %d\n", plan->has_tensors, plan->has_y, plan->has_walks);
    add(&text, "#define PLANES %d\n#define SCALES %d\n", planes_of(plan), scales_grad(plan->rule));
    add_rule(&text, &plan->rule);
    add(&text, "%s", pseudograd_kernels_cu);
    return text.text;
}

static void fail_to_compile(void *program, int status) {
    size_t size = 0;
    char *log = 0;
    if (!call.nvrtcGetProgramLogSize(program, &size) && size > 1 && (log = calloc(1, size + 1))) call.nvrtcGetProgramLog(program, log);
    fail("nvrtcCompileProgram", log && *log ? log : call.nvrtcGetErrorString(status));
    free(log);
}

/* The compiled kernel, which the driver loads; null if it cannot be made. */
static char *compile(const Plan *plan, const Device *device) {
    const char *headers[] = {pseudograd_rules_h, pseudograd_number_h, pseudograd_blocks_h, pseudograd_kernels_h, INTEGERS, "", ""};
    const char *includes[] = {"rules.h", "number.h", "blocks.h", "kernels.h", "stdint.h", "math.h", "string.h"};
    char architecture[64], *source = write_source(plan), *image = 0;
    snprintf(architecture, sizeof(architecture), "--gpu-architecture=%s_%d", device->is_known ? "sm" : "compute", device->architecture);
    /* Products and sums are rounded one by one, as they are on a CPU. */
    const char *options[] = {architecture, "--std=c++20", "--fmad=false", "--device-as-default-execution-space"};
    void *program = 0;
    size_t size = 0;
    if (!source) return fail("CUDA", "no memory for the source of a kernel"), (char *)0;
    if (COMPILER(nvrtcCreateProgram, &program, source, "kernels.cu", sizeof(headers) / sizeof(*headers), headers, includes)) {
        int status = call.nvrtcCompileProgram(program, sizeof(options) / sizeof(*options), options);
        if (status) fail_to_compile(program, status);
        else if (device->is_known ? COMPILER(nvrtcGetCUBINSize, program, &size) : COMPILER(nvrtcGetPTXSize, program, &size)) {
            image = calloc(1, size + 1);
            if (!image || !(device->is_known ? COMPILER(nvrtcGetCUBIN, program, image) : COMPILER(nvrtcGetPTX, program, image)))
                fail("CUDA", "no memory for a kernel"), free(image), image = 0;
        }
        call.nvrtcDestroyProgram(&program);
    }
    free(source);
    return image;
}

static Kernel *find(const Plan *plan, int32_t device) {
    for (Kernel *kernel = __atomic_load_n(&kernels, __ATOMIC_ACQUIRE); kernel; kernel = kernel->next)
        if (kernel->device == device && !memcmp(&kernel->plan, plan, sizeof(Plan))) return kernel;
    return 0;
}

/* In the context of the device. */
static Kernel *make(const Plan *plan, int32_t index, const Device *device, void *stream) {
    int is_recorded = 0;
    void *module = 0;
    if (!DRIVER(cuStreamIsCapturing, stream, &is_recorded)) return 0;
    if (is_recorded) {
        __atomic_store_n(&declined, "a CUDA graph is being recorded, and its kernel is not compiled yet: run the call once before", __ATOMIC_RELEASE);
        return 0;
    }
    char *image = compile(plan, device);
    Kernel *kernel = image ? calloc(1, sizeof(Kernel)) : 0;
    if (kernel && DRIVER(cuModuleLoadData, &module, image) && DRIVER(cuModuleGetFunction, &kernel->function, module, "pseudograd")) {
        memcpy(&kernel->plan, plan, sizeof(Plan)), kernel->device = index, kernel->next = kernels;
        __atomic_store_n(&kernels, kernel, __ATOMIC_RELEASE);
    } else {
        if (image && !kernel) fail("CUDA", "no memory for a kernel");
        free(kernel), kernel = 0;
    }
    free(image);
    return kernel;
}

/* --- a call --------------------------------------------------------------------------------------------------------------- */

/* A plan without the values that differ between calls of one kernel, as bytes that can be compared. */
static void normalise(const Plan *plan, Plan *own) {
    const Rule *rule = &plan->rule;
    const double other = 2.0; /* for every factor that is an argument */
    memset(own, 0, sizeof(Plan));
    own->kind = plan->kind, own->dtype = plan->dtype, own->has_low = plan->has_low, own->has_high = plan->has_high;
    own->has_tensors = plan->has_tensors, own->has_y = plan->has_y, own->has_walks = plan->has_walks;
    own->rule.kind = rule->kind, own->rule.first = rule->first, own->rule.second = rule->second;
    own->rule.edges = rule->edges, own->rule.shares_both = rule->shares_both, own->rule.formula = rule->formula;
    memcpy(own->rule.sets, rule->sets, sizeof(rule->sets));
    for (int k = 0; k < 3; k++) {
        own->rule.shares[k].kind = rule->shares[k].kind;
        own->rule.shares[k].up = is_constant(rule->shares[k].up) ? rule->shares[k].up : other;
        own->rule.shares[k].down = is_constant(rule->shares[k].down) ? rule->shares[k].down : other;
    }
    for (int k = 0; k < SLOPES; k++) own->rule.slopes[k] = is_constant(rule->slopes[k]) ? rule->slopes[k] : other;
}

/* In the context of the device, which is current. */
static int start_there(int32_t index, const Device *device, const Plan *plan, const Arguments *arguments, const Walks *walks) {
    void *stream = 0, *parameters[] = {(void *)arguments, (void *)walks};
    if (stream_of(index, &stream)) return fail("torch", "it does not name the current stream");
    Kernel *kernel = find(plan, index);
    if (!kernel) {
        pthread_mutex_lock(&lock);
        kernel = find(plan, index);
        if (!kernel && state == OPEN) kernel = make(plan, index, device, stream);
        pthread_mutex_unlock(&lock);
    }
    if (!kernel) return 0;
    unsigned groups = (unsigned)((arguments->blocks + THREADS - 1) / THREADS);
    return DRIVER(cuLaunchKernel, kernel->function, groups, 1, 1, THREADS, 1, 1, 0, stream, parameters, 0);
}

static Device *ready_device(int32_t index) {
    if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == OPEN && index >= 0 && index < MOST_DEVICES &&
        __atomic_load_n(&devices[index].context, __ATOMIC_ACQUIRE))
        return &devices[index];
    pthread_mutex_lock(&lock);
    Device *device = state == OPEN || (state == WAITING && open_libraries()) ? device_at(index) : 0;
    pthread_mutex_unlock(&lock);
    return device;
}

int cuda_start(int32_t index, const Plan *plan, const Arguments *arguments, const Walks *walks) {
    Plan own;
    void *current = 0;
    Device *device = ready_device(index);
    if (!device) return 0;
    normalise(plan, &own);
    /* Autograd's thread has no context until it calls something of CUDA's runtime, and another device may be current. */
    if (!DRIVER(cuCtxGetCurrent, &current)) return 0;
    if (current == device->context) return start_there(index, device, &own, arguments, walks);
    if (!DRIVER(cuCtxPushCurrent_v2, device->context)) return 0;
    int is_started = start_there(index, device, &own, arguments, walks);
    return DRIVER(cuCtxPopCurrent_v2, &current) && is_started;
}
