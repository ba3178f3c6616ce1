/* The loops of one kind of processor, for every dtype. Who includes this has defined the lanes _f and _d, and their loads and stores. */

#define T uint16_t
#define NAME(x) x##_f16
#define LANE(x) x##_f
#include "loops.h"

#define T uint16_t
#define NAME(x) x##_bf16
#define LANE(x) x##_f
#include "loops.h"

#define T float
#define NAME(x) x##_f32
#define LANE(x) x##_f
#include "loops.h"

#define T double
#define NAME(x) x##_f64
#define LANE(x) x##_d
#include "loops.h"
