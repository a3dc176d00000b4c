// SPDX-License-Identifier: Apache-2.0
// Stand-in for libcuda and libcufile over host memory: the calls that penstock.bench.storage.cuda and the feed's core make.
// Without a GPU, tests use it to check that every block arrives and that everything is freed. It shows nothing about speed.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int held;
static __thread int entered;

// The registered memory ranges, as a driver would track them.
enum { MOST = 1024 };
static struct { char *start; size_t size; } registered[MOST];

static void log_bytes(const void *bytes, size_t size) {
    int fd = open(getenv("STANDIN_LOG"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size) abort();
    close(fd);
}

static void count(int by) {
    int now = __atomic_add_fetch(&held, by, __ATOMIC_SEQ_CST);
    FILE *file = fopen(getenv("STANDIN_HELD"), "w");
    fprintf(file, "%d", now);
    fclose(file);
}

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGetCount(int *found) { *found = 1; return 0; }
int cuDeviceGet(int *found, int number) { *found = number; return number ? 101 : 0; }
int cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, "stand-in %d", device); return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &held; count(1); return device; }
int cuDevicePrimaryCtxRelease_v2(int device) { count(-1); return device; }
int cuCtxSetCurrent(void *context) { return context == &held ? 0 : 201; }
int cuCtxPushCurrent_v2(void *context) { entered += context == &held; return context == &held ? 0 : 201; }
int cuCtxPopCurrent_v2(void **context) { *context = &held; return entered-- > 0 ? 0 : 201; }
int cuMemHostRegister_v2(void *start, size_t size, unsigned flags) {
    if (getenv("STANDIN_REFUSES")) return 304;
    if (!entered || flags != 1 || (uintptr_t)start % 4096 || !size || size % 4096) return 1;
    int free = -1;
    for (int at = 0; at < MOST; at++) {
        if (!registered[at].size) free = at;
        else if ((char *)start < registered[at].start + registered[at].size && registered[at].start < (char *)start + size) return 712;
    }
    if (free < 0) return 2;
    registered[free].start = start;
    registered[free].size = size;
    log_bytes("+", 1);
    count(1);
    return 0;
}
int cuMemHostUnregister(void *start) {
    if (!entered) return 201;
    for (int at = 0; at < MOST; at++)
        if (registered[at].start == start && registered[at].size) {
            // Memory that is already freed crashes the test here.
            for (size_t byte = 0; byte < registered[at].size; byte += 4096) (void)*(volatile char *)((char *)start + byte);
            registered[at].size = 0;
            log_bytes("-", 1);
            count(-1);
            return 0;
        }
    return 713;
}
int standin_is_registered(const void *start, size_t size) {
    for (int at = 0; at < MOST; at++)
        if ((char *)start >= registered[at].start && (char *)start + size <= registered[at].start + registered[at].size) return 1;
    return 0;
}
int cuMemHostAlloc(void **found, size_t size, unsigned flags) { count(1); return posix_memalign(found, 4096, size) ? 2 : (int)flags; }
int cuMemFreeHost(void *memory) { count(-1); free(memory); return 0; }
int cuMemAlloc_v2(uint64_t *found, size_t size) {
    if (size > 1 << 24) return 2;
    void *memory;
    if (posix_memalign(&memory, 4096, size)) return 2;
    count(1);
    *found = (uint64_t)memory;
    return 0;
}
int cuMemFree_v2(uint64_t memory) { count(-1); free((void *)memory); return 0; }
int cuMemcpyHtoD_v2(uint64_t there, const void *here, size_t size) { memcpy((void *)there, here, size); log_bytes(here, size); return 0; }
int cuMemcpyDtoH_v2(void *here, uint64_t there, size_t size) { memcpy(here, (void *)there, size); return 0; }
int cuGetErrorString(int code, const char **text) { (void)code; *text = "what a stand-in says"; return 0; }

typedef struct { int code, driver; } status;
typedef struct { int kind; union { int fd; void *handle; } of; const void *operations; } description;
status cuFileDriverOpen(void) { return (status){0, 0}; }
status cuFileHandleRegister(void **handle, description *asked) {
    *handle = (void *)(intptr_t)(asked->of.fd + 1);
    count(1);
    return (status){asked->kind == 1 ? 0 : 5022, 0};
}
void cuFileHandleDeregister(void *handle) { (void)handle; count(-1); }
ssize_t cuFileRead(void *handle, void *there, size_t size, off_t offset, off_t at) {
    ssize_t done = pread((int)(intptr_t)handle - 1, (char *)there + at, size, offset);
    if (done > 0) log_bytes((char *)there + at, done);
    return done;
}
ssize_t cuFileWrite(void *handle, const void *there, size_t size, off_t offset, off_t at) {
    return pwrite((int)(intptr_t)handle - 1, (const char *)there + at, size, offset);
}
