/* The C symbols of torch that we call: its stable interface, from torch 2.10 on. They are written out, so a build needs nothing of torch.

An operator gets its arguments on a stack of 64-bit values, and leaves its results there. A tensor is a handle on this stack; the operator
owns it and deletes it. An optional value is 0 if it is absent, else a pointer that the operator owns. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef uint64_t Value;
typedef void *Handle;
typedef void *Library;
typedef void *List; /* the operator owns the list and its values */
typedef int32_t Status; /* 0 if all went well */

Status aoti_torch_library_init_def(const char *, const char *, uint32_t, Library *);
Status aoti_torch_library_init_impl(const char *, const char *, const char *, uint32_t, Library *);
Status aoti_torch_library_def(Library, const char *);
Status torch_library_impl(Library, const char *, void (*)(Value *, uint64_t, uint64_t), uint64_t version);

Status torch_list_size(List, size_t *);
Status torch_list_get_item(List, size_t, Value *);
Status torch_delete_list(List);

Status aoti_torch_get_data_ptr(Handle, void **);
Status aoti_torch_get_numel(Handle, int64_t *);
Status aoti_torch_get_dim(Handle, int64_t *);
Status aoti_torch_get_sizes(Handle, int64_t **);
Status aoti_torch_get_strides(Handle, int64_t **);
Status aoti_torch_get_dtype(Handle, int32_t *);
Status aoti_torch_get_device_type(Handle, int32_t *);
Status aoti_torch_get_device_index(Handle, int32_t *);
Status aoti_torch_empty_strided(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, Handle *);
Status aoti_torch_delete_tensor_object(Handle);
int32_t aoti_torch_dtype_float16(void);
int32_t aoti_torch_dtype_bfloat16(void);
int32_t aoti_torch_dtype_float32(void);
int32_t aoti_torch_dtype_float64(void);
int32_t aoti_torch_dtype_uint8(void);
int32_t aoti_torch_device_type_cpu(void);

Status torch_parallel_for(int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void *), void *);
