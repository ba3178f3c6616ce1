/* For processors with AVX2 and F16C. */
#include "rules.h"

#define LOOPS loops_avx2
#ifdef __x86_64__
#define LEVEL 1
#include "lanes.h"
#else
const Loops *const LOOPS[TABLES] = {0};
#endif
