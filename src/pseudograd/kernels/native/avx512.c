/* For processors with AVX-512 (F, BW, VL, DQ). */
#include "rules.h"

#define LOOPS loops_avx512
#ifdef __x86_64__
#define LEVEL 2
#include "lanes.h"
#else
const Loops *const LOOPS[TABLES] = {0};
#endif
