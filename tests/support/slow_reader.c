// Preloaded into a process, sleeps for SLOW_READER_MS milliseconds when a file whose name ends in SLOW_READER_FILE is
// first opened, by whichever of the C library's functions.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int delayed;

static void delay(const char* path) {
  const char* ending = getenv("SLOW_READER_FILE");
  const size_t length = strlen(path), expected = strlen(ending);
  if (length >= expected && strcmp(path + length - expected, ending) == 0 &&
      !__atomic_exchange_n(&delayed, 1, __ATOMIC_RELAXED)) {
    usleep((useconds_t)atoi(getenv("SLOW_READER_MS")) * 1000);
  }
}

#define OPEN(name)                                                                       \
  int name(const char* path, int flags, ...) {                                           \
    va_list arguments;                                                                   \
    va_start(arguments, flags);                                                          \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;   \
    va_end(arguments);                                                                   \
    delay(path);                                                                         \
    return ((int (*)(const char*, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define OPEN_AT(name)                                                                                 \
  int name(int folder, const char* path, int flags, ...) {                                            \
    va_list arguments;                                                                                \
    va_start(arguments, flags);                                                                       \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;                \
    va_end(arguments);                                                                                \
    delay(path);                                                                                      \
    return ((int (*)(int, const char*, int, ...))dlsym(RTLD_NEXT, #name))(folder, path, flags, mode); \
  }
OPEN_AT(openat)
OPEN_AT(openat64)
