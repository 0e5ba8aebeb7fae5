// The rules of the border to Python: who may call what, and with which numbers.
//
// Kernels allocate nothing: the caller gives them memory, whose size a function here says, so that
// memory which is refused is refused in one place, by torch. A function that Python calls returns 0,
// or the number of the line whose requirement its arguments do not meet; then nothing was written.
// The structures and signatures are declared once more in interface.py, which compares their sizes.

#pragma once

#include <stdint.h>

#define INTERFACE_VERSION 5  // as in interface.py: one more when a structure or signature changes

// The largest number of rows, columns, keys and so on. The bytes of a padded matrix of such sides
// can be counted in 64 bits, with room for a few such matrices.
#define MOST_SIZE ((int64_t)1 << 28)

#define REQUIRE(condition)                 \
    do {                                   \
        if (!(condition)) return __LINE__; \
    } while (0)

static inline int is_size(int64_t count) { return 0 <= count && count <= MOST_SIZE; }

static inline int are_threads(int64_t count) { return 0 < count && count <= 1024; }

// Whether there is memory for `count` numbers; a count of 0 needs none.
static inline int is_there(const void *memory, int64_t count) { return memory || count == 0; }

// For interface.py.
#define EXPORT_SIZE(type) \
    int64_t size_of_##type(void) { return (int64_t)sizeof(type); }
