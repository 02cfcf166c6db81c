// HEADRACE_TARGET("avx2,fma") compiles what follows, up to HEADRACE_TARGET_END, for these instructions. Headers come
// before it: a shared inline function that is compiled for them could be the one that the linker keeps for all.
#pragma once

#define HEADRACE_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define HEADRACE_TARGET(names) \
    HEADRACE_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define HEADRACE_TARGET_END HEADRACE_PRAGMA(clang attribute pop)
#else
#define HEADRACE_TARGET(names) HEADRACE_PRAGMA(GCC push_options) HEADRACE_PRAGMA(GCC target(names))
#define HEADRACE_TARGET_END HEADRACE_PRAGMA(GCC pop_options)
#endif
