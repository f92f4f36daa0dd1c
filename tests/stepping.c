/* Preloaded into a redis-server: the time of day, which a test sets by two numbers of microseconds in a file. The first
 * one moves the machine's time. If the second one is not 0, the time is exactly that number, and stands still.
 * Not libfaketime, which does not start under jemalloc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *clock_us;

__attribute__((constructor)) static void find_clock(void)
{
    const char *path = getenv("CLOCK_FILE");
    int file = path ? open(path, O_RDONLY) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED)
        clock_us = found;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME && clock_us) {
        int64_t exact_us = clock_us[1];
        int64_t moved = now->tv_sec * 1000000000LL + now->tv_nsec + clock_us[0] * 1000;
        int64_t all = exact_us ? exact_us * 1000 : moved;
        now->tv_sec = all / 1000000000LL;
        now->tv_nsec = all % 1000000000LL;
    }
    return failed;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

/* Valkey 9 asks for the time of day once in a millisecond, and adds what the processor counts since. It does not if it
 * cannot read what kind of processor that is. */
static FILE *open_file(const char *name, const char *path, const char *mode)
{
    FILE *(*next)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, name);
    return strcmp(path, "/proc/cpuinfo") ? next(path, mode) : NULL;
}

FILE *fopen(const char *path, const char *mode) { return open_file("fopen", path, mode); }

FILE *fopen64(const char *path, const char *mode) { return open_file("fopen64", path, mode); }

time_t time(time_t *out)
{
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    if (out)
        *out = precise.tv_sec;
    return precise.tv_sec;
}
