/* Kernels on devices of CUDA: see cuda.c. */
#pragma once
#include "kernels.h"

/* Starts the kernel of this plan on the device, on the stream that torch works on there. 0 where it did not start: then nothing was written,
   and `cuda_status` says why. Of a plan the fields and the rule are read, nothing between them. */
int cuda_start(int32_t device, const Plan *plan, const Arguments *arguments, const Walks *walks);

/* Has torch loaded its library for CUDA? Nothing is looked for where it has not. */
int cuda_is_there(void);

/* "state|why|the last call that was declined alone": a state is "active", "waiting" for a first kernel, or "failed" for ever. */
void cuda_status(char *text, uint64_t size);
