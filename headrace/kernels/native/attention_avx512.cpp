// Attention in float32 with AVX-512 (F, BW, DQ, VL).
#include "attention.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#define HEADRACE_LANES 16
#include "attention_float.h"

void headrace::attention_avx512(int type, const HeadraceAttention& call) { attend(type, call); }
#endif
