/* For any processor: one number at a time. */
#include "number.h"
#include "every_dtype.h"

const Loops *const loops_plain[DTYPES] = {&loops_f16, &loops_bf16, &loops_f32, &loops_f64};
