/* For processors with AVX2 and F16C. */
#define LEVEL 1
#define LOOPS loops_avx2
#include "lanes.h"
