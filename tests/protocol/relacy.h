#pragma once

// Relacy defines macros with the names of the language and of the standard library. Everything else
// is included before it, and the macros end here.

#include <atomic>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <csetjmp>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <sstream>
#include <stack>
#include <string>
#include <vector>

#include "comm/flight/flight_entry.h"
#include "comm/host/collective_steps.h"
#include "comm/host/message_steps.h"
#include "comm/host/world/block.h"
#include "comm/host/world/rank_end.h"
#include "comm/host/world/wait_record.h"
#include "comm/host/world/wake_flag.h"
#include "comm/waiting.h"

// clang-format off: after all others
#include <relacy/relacy.hpp>
// clang-format on

#undef $
#undef assert
#undef calloc
#undef delete
#undef errno
#undef futex
#undef free
#undef malloc
#undef memory_order_acq_rel
#undef memory_order_acquire
#undef memory_order_consume
#undef memory_order_relaxed
#undef memory_order_release
#undef memory_order_seq_cst
#undef new
#undef realloc
