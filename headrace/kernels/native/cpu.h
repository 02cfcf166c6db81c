// Which instruction set computes: the best that this machine has, unless another is asked for.
#pragma once

#include "pool.h"

// By name ("generic", "avx2", "avx512_bf16", "amx_bf16"); 0 if the machine has it not. For tests and measurements.
HEADRACE_API int headrace_use(const char* name);

// The name of the one in use; dtype: 0 float32, 1 bfloat16.
HEADRACE_API const char* headrace_in_use(int dtype);
