// Attention in float32 with AVX2 and FMA.
#include "attention.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#pragma GCC target("avx2,fma")
#define HEADRACE_LANES 8
#include "attention_float.h"

void headrace::attention_avx2(int type, const HeadraceAttention& call) { attend(type, call); }
#endif
