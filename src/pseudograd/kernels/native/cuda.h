/* Kernels on devices of CUDA: see cuda.c. */
#pragma once
#include "kernels.h"

/* Starts the kernel of this plan on the device, on torch's current stream there. Returns 0 if it did not start: then nothing was written,
   and `cuda_status` says why. */
int cuda_start(int32_t device, const Plan *plan, const Arguments *arguments, const Walks *walks);

/* Has torch loaded its library for CUDA? Without it, nothing else is searched for. */
int cuda_is_there(void);

/* "state|why|why the last call was declined that was declined without a failure". The state is "waiting" for a first kernel, "active", or
   "failed" for ever. */
void cuda_status(char *text, uint64_t size);
