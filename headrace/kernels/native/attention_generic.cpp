// Attention in float32, in vectors that every machine has.
#include "attention.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define HEADRACE_LANES 4
#include "attention_float.h"

void headrace::attention_generic(int type, const HeadraceAttention& call) { attend(type, call); }
