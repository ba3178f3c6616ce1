/* Stands in for torch's library for CUDA, NVRTC and the driver: memory of a "device" is the computer's, and a kernel runs block after block.
Built as libtorch_cuda.so, with a link beside it of the name of torch's library that names NVRTC and the driver.

`stand_in_mode` COLLECT writes each source to the folder and runs nothing; LOAD runs the functions of kernels.so in the folder, which are named
by the hash of their source. `stand_in_fail` lets a function of a name give a status; `stand_in_log` has the launches. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

enum { COLLECT, LOAD };
#define DEVICES 4

static int mode, architecture = 90, capturing, failing_status, launches;
static char folder[1024], failing[64], log_text[1 << 16];
static __thread void *contexts[16];
static __thread int depth;
static char device_contexts[DEVICES], streams[DEVICES];

void stand_in_open(const char *path, int own_mode) { snprintf(folder, sizeof(folder), "%s", path), mode = own_mode; }
void stand_in_fail(const char *name, int status) { snprintf(failing, sizeof(failing), "%s", name), failing_status = status; }
void stand_in_capture(int is_capturing) { capturing = is_capturing; }
void stand_in_architecture(int own) { architecture = own; }
int stand_in_launches(void) { return launches; }
const char *stand_in_log(void) { return log_text; }
int stand_in_depth(void) { return depth; }

#define FAILS(name)                                                                                                                    \
    if (!strcmp(failing, #name)) return failing_status;

int32_t aoti_torch_get_current_cuda_stream(int32_t device, void **stream) {
    FAILS(aoti_torch_get_current_cuda_stream)
    return *stream = &streams[device], 0;
}

int nvrtcVersion(int *major, int *minor) { return *major = 99, *minor = 1, 0; }
int nvrtcGetNumSupportedArchs(int *count) { return *count = 4, 0; }
int nvrtcGetSupportedArchs(int *known) {
    const int all[] = {70, 75, 80, 90};
    return memcpy(known, all, sizeof(all)), 0;
}
const char *nvrtcGetErrorString(int status) { return status == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }

typedef struct {
    char *source, option[64];
    uint64_t hash;
} Program;

int nvrtcCreateProgram(void **program, const char *source, const char *name, int count, const char *const *headers, const char *const *names) {
    FAILS(nvrtcCreateProgram)
    Program *made = calloc(1, sizeof(Program));
    (void)name;
    made->source = strdup(source), made->hash = 14695981039346656037u;
    for (const char *at = source; *at; at++) made->hash = (made->hash ^ (uint8_t)*at) * 1099511628211u;
    for (int k = 0; k < count; k++)
        if (!headers[k] || !names[k]) return 3;
    *program = made;
    return 0;
}
int nvrtcCompileProgram(void *handle, int count, const char *const *options) {
    FAILS(nvrtcCompileProgram)
    Program *program = handle;
    char path[2048];
    for (int k = 0; k < count; k++)
        if (!strncmp(options[k], "--gpu-architecture=", 19)) snprintf(program->option, sizeof(program->option), "%s", options[k] + 19);
    if (mode != COLLECT) return 0;
    snprintf(path, sizeof(path), "%s/k%016llx.cu", folder, (unsigned long long)program->hash);
    FILE *file = fopen(path, "w");
    if (!file) return 6;
    fputs(program->source, file);
    return fclose(file);
}
static int is_cubin(const Program *program) { return !strncmp(program->option, "sm_", 3); }
int nvrtcGetCUBINSize(void *handle, size_t *size) { return *size = is_cubin(handle) ? 64 : 0, 0; }
int nvrtcGetPTXSize(void *handle, size_t *size) { return *size = 64, (void)handle, 0; }
int nvrtcGetPTX(void *handle, char *image) {
    FAILS(nvrtcGetPTX)
    return snprintf(image, 64, "k%016llx", (unsigned long long)((Program *)handle)->hash), 0;
}
int nvrtcGetCUBIN(void *handle, char *image) {
    FAILS(nvrtcGetCUBIN)
    return nvrtcGetPTX(handle, image);
}
int nvrtcGetProgramLogSize(void *handle, size_t *size) { return (void)handle, *size = 32, 0; }
int nvrtcGetProgramLog(void *handle, char *text) { return (void)handle, snprintf(text, 32, "kernels.cu(1): error: no"), 0; }
int nvrtcDestroyProgram(void **handle) { return free(((Program *)*handle)->source), free(*handle), *handle = 0, 0; }

int cuGetErrorName(int status, const char **name) { return *name = status == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OTHER", 0; }
int cuDeviceGet(int *device, int index) {
    FAILS(cuDeviceGet)
    return *device = index, index < 0 || index >= DEVICES ? 101 : 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    FAILS(cuDeviceGetAttribute)
    return (void)device, *value = attribute == 75 ? architecture / 10 : architecture % 10, attribute == 75 || attribute == 76 ? 0 : 1;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    FAILS(cuDevicePrimaryCtxRetain)
    return *context = &device_contexts[device], 0;
}
int cuCtxGetCurrent(void **context) {
    FAILS(cuCtxGetCurrent)
    return *context = depth ? contexts[depth - 1] : 0, 0;
}
int cuCtxPushCurrent_v2(void *context) {
    FAILS(cuCtxPushCurrent_v2)
    return contexts[depth++] = context, 0;
}
int cuCtxPopCurrent_v2(void **context) {
    FAILS(cuCtxPopCurrent_v2)
    return *context = contexts[--depth], 0;
}
int cuStreamIsCapturing(void *stream, int *found) {
    FAILS(cuStreamIsCapturing)
    return (void)stream, *found = capturing, 0;
}
int cuModuleLoadData(void **module, const void *image) {
    FAILS(cuModuleLoadData)
    return *module = strdup(image), 0;
}
typedef void (*Compute)(const Arguments *, const Walks *, int64_t);
int cuModuleGetFunction(void **function, void *module, const char *name) {
    FAILS(cuModuleGetFunction)
    static void *library;
    char path[2048];
    static char nothing;
    if (strcmp(name, "pseudograd")) return 500;
    snprintf(path, sizeof(path), "%s/kernels.so", folder);
    if (mode == COLLECT) return *function = &nothing, 0;
    if (!library && !(library = dlopen(path, RTLD_NOW))) return 301;
    return (*function = dlsym(library, module)) ? 0 : 500;
}
int cuLaunchKernel(void *function, unsigned groups, unsigned y, unsigned z, unsigned threads, unsigned own_y, unsigned own_z, unsigned shared,
                   void *stream, void **parameters, void **extra) {
    FAILS(cuLaunchKernel)
    const Arguments *arguments = parameters[0];
    int device = (int)((char *)stream - streams);
    if (!depth || contexts[depth - 1] != &device_contexts[device]) return 201;
    if (y * z * own_y * own_z != 1 || shared || extra || threads != THREADS || groups != (arguments->blocks + THREADS - 1) / THREADS) return 1;
    launches++;
    size_t length = strlen(log_text);
    snprintf(log_text + length, sizeof(log_text) - length, "%d:%lld ", device, (long long)arguments->numel);
    if (mode == LOAD)
        for (int64_t block = 0; block < arguments->blocks; block++) ((Compute)function)(arguments, parameters[1], block);
    return 0;
}
