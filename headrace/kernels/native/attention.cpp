#include "attention.h"
#include "kernels.h"

namespace {

int fastest() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (headrace::kAmxBf16.is_here()) return kAmx;  // and all that it goes with
    if (avx512) return kAvx512;
    if (avx2) return kAvx2;
#endif
    return kGeneric;
}

}  // namespace

int headrace_attention_fastest(int type) {
    static const int way = fastest();
    return type == kBFloat16 || way < kAmx ? way : int(kAvx512);
}

void headrace_attention(int way, int type, const HeadraceAttention* call) {
    const int fastest = headrace_attention_fastest(type);  // AMX is in no thread's reach before it was asked for
    switch (way < fastest ? way : fastest) {
#if defined(__x86_64__)
        case kAmx: return headrace::attention_amx(*call);
        case kAvx512: return headrace::attention_avx512(type, *call);
        case kAvx2: return headrace::attention_avx2(type, *call);
#endif
        default: return headrace::attention_generic(type, *call);
    }
}
