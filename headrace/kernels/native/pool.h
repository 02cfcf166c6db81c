// A small thread pool: one job at a time, cut into pieces that whoever is free takes next.
//
// Pieces are taken from one counter, so a thread that is late, or whose core does other work, holds up nobody:
// the others compute its share. Cut a job into some four to sixteen pieces a thread, each of at least some 5 µs.
#pragma once

#include <cstdint>

#define HEADRACE_API extern "C" __attribute__((visibility("default")))

// Calls run(context, 0) .. run(context, pieces - 1), each once, on the caller and the pool's threads; returns when
// all have returned, and what they wrote is visible to the caller. Any thread may call it, also several at once and
// from within a piece: who finds the pool taken computes all pieces alone. `run` must not throw.
HEADRACE_API void headrace_parallel(int64_t pieces, void (*run)(void* context, int64_t piece), void* context);

// How many threads compute a job from now on, the caller included; 1 at first. They start with the first job.
HEADRACE_API void headrace_set_threads(int count);

HEADRACE_API int headrace_get_threads(void);

#ifdef __cplusplus
// The same for a lambda: parallel(pieces, [&](int64_t piece) { ... });
template <typename Body>
inline void parallel(int64_t pieces, const Body& body) {
    headrace_parallel(
        pieces, [](void* context, int64_t piece) { (*static_cast<const Body*>(context))(piece); },
        const_cast<Body*>(&body));
}
#endif
