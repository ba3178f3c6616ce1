/* For every x86-64 (SSE2) and every ARM of 64 bits (NEON). */
#define LEVEL 0
#define LOOPS loops_baseline
#include "lanes.h"
