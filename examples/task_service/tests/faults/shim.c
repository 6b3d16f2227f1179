/* What a test wants a process to see of its disk and its clock; loaded with LD_PRELOAD, see shim.py.
 *
 * The orders lie in a shared file, so that a test changes them while the process runs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct orders {
    int64_t clock_shift; /* seconds added to the time of day; clocks that only measure stay as they are */
    int64_t fsync_fails; /* nothing reaches the disk, and the kernel says so */
};

static volatile struct orders *orders;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTS_ORDERS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(struct orders), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        orders = mapped;
    close(file);
}

static int sync_file(long call, int file) {
    if (orders && orders->fsync_fails) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(call, file);
}

int fsync(int file) { return sync_file(SYS_fsync, file); }

int fdatasync(int file) { return sync_file(SYS_fdatasync, file); }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && orders && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += orders->clock_shift;
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where)
        *where = now.tv_sec;
    return now.tv_sec;
}
