#include "cpu.h"

#include <atomic>
#include <cstring>
#include <initializer_list>

#include "kernels.h"

namespace headrace {
namespace {

const InstructionSet* const kBestFirst[] = {&kAmxBf16, &kAvx512Bf16, &kAvx2, &kGeneric};

const Kernels* best_for(Dtype dtype) {
    for (const InstructionSet* set : kBestFirst) {
        if (set->kernels[dtype] && set->is_here()) return set->kernels[dtype];
    }
    return nullptr;
}

std::atomic<const Kernels*> chosen[2];

}  // namespace

const Kernels& kernels_for(Dtype dtype) {
    const Kernels* kernels = chosen[dtype].load(std::memory_order_relaxed);
    if (!kernels) chosen[dtype].store(kernels = best_for(dtype), std::memory_order_relaxed);
    return *kernels;
}

}  // namespace headrace

int headrace_use(const char* name) {
    using namespace headrace;
    for (const InstructionSet* set : kBestFirst) {
        if (std::strcmp(name, set->name) != 0 || !set->is_here()) continue;
        for (const Dtype dtype : {kFloat32, kBfloat16}) {
            chosen[dtype].store(set->kernels[dtype] ? set->kernels[dtype] : best_for(dtype));
        }
        return 1;
    }
    return 0;
}

const char* headrace_in_use(int dtype) {
    using namespace headrace;
    const Kernels* kernels = &kernels_for(static_cast<Dtype>(dtype));
    for (const InstructionSet* set : kBestFirst) {
        if (set->kernels[dtype] == kernels) return set->name;
    }
    return "";
}
