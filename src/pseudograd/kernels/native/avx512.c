/* For processors with AVX-512 (F, BW, VL, DQ). */
#define LEVEL 2
#define LOOPS loops_avx512
#include "lanes.h"
