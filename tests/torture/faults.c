/* File-system calls below one folder: counted, recorded, and made to fail, to tear or to kill at the N-th.

   Loaded with LD_PRELOAD, quiet until `faults_arm`. Every call below the folder has a number: opening for reading or
   for writing, write, fsync, rename, link, mkdir, unlink, rmdir, truncate, and close of what was open for writing.
   fsync is recorded and not done: what it promises is checked from the record (crashes.py), and a disk would take
   longer than all the rest. Linux only: the calls themselves are made by syscall(2). */

#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 65536
#define LONGEST 4096

enum { NONE, KILL, EIO_ONCE, EIO_ALWAYS, FULL, SHORT, TORN }; /* as KINDS in faults.py */

struct record { /* followed by the first path, then the second path or the data */
    uint32_t op;
    int32_t fd;
    int64_t offset; /* of a write; flags of an open; length of a truncation */
    int32_t error;
    uint32_t first, second;
} __attribute__((packed));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char below[LONGEST];
static size_t below_length;
static int64_t counted = -1, moment;
static int kind, log_fd = -1, fired, unseen;
static struct { char tracked, writable; } files[FILES];

void faults_arm(const char *folder, int64_t at, int what, int log) {
    snprintf(below, sizeof below, "%s", folder);
    below_length = strlen(below);
    memset(files, 0, sizeof files);
    moment = at, kind = what, log_fd = log, fired = unseen = 0, counted = 0;
}

int64_t faults_disarm(void) {
    int64_t calls = counted;
    counted = -1;
    return calls;
}

int faults_fired(void) { return fired; }

/* Writing that goes past this file: shared mappings, and copies of handles. Must be 0 for the record to be whole. */
int faults_unseen(void) { return unseen; }

static int known(int fd) { return counted >= 0 && fd >= 0 && fd < FILES && files[fd].tracked; }
static int writable(int fd) { return known(fd) && files[fd].writable; }

/* Make a path absolute; whether it is watched. */
static int watched(int folder, const char *path, char *whole) {
    if (counted < 0 || !path) return 0;
    if (path[0] == '/') {
        snprintf(whole, LONGEST, "%s", path);
    } else {
        char base[LONGEST], link[64];
        ssize_t length;
        snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
        if ((length = readlink(link, base, sizeof base - 1)) < 0) return 0;
        base[length] = 0;
        if (snprintf(whole, LONGEST, "%s/%s", base, path) >= LONGEST) return 0;
    }
    return !strncmp(whole, below, below_length) && (whole[below_length] == '/' || !whole[below_length]);
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static void note(char op, int fd, int64_t offset, int error, const char *first, const void *second, size_t length) {
    struct record record = {op, fd, offset, error, first ? strlen(first) : 0, length};
    struct iovec parts[3] = {{&record, sizeof record}, {(void *)first, record.first}, {(void *)second, length}};
    int before = errno;
    if (log_fd >= 0 && syscall(SYS_writev, log_fd, parts, 3) != (long)(sizeof record + record.first + length)) {
        fprintf(stderr, "faults.c: the record cannot be written\n");
        die();
    }
    errno = before;
}

static int changes(char op) { return op != 'r' && op != 'c'; }
static int needs_room(char op) { return strchr("owlm", op) != NULL; }

/* What happens at this call: 0, an error number, or -1 where half of a write is done first. Never returns from a
   kill. `room`: whether the call would take room on the disk. */
static int fate(char op, int room, size_t length) {
    int64_t number = counted++;
    if (number < moment || kind == NONE) return 0;
    if (number > moment) {
        if (kind == EIO_ALWAYS && changes(op)) return EIO;
        if ((kind == FULL || kind == SHORT) && room) return ENOSPC;
        return 0;
    }
    fired = 1;
    switch (kind) {
    case KILL: die(); return 0;
    case FULL: return ENOSPC;
    case SHORT:
    case TORN: return length > 1 ? -1 : ENOSPC;
    default: return EIO;
    }
}

#define ENTER pthread_mutex_lock(&lock)
#define LEAVE pthread_mutex_unlock(&lock)

/* A call on names: `real` is done unless it is to fail. */
#define NAMES(op, first, second, length, real)                                                                         \
    do {                                                                                                               \
        ENTER;                                                                                                         \
        int error = fate(op, needs_room(op), 0);                                                                       \
        long result = error ? (errno = error, -1) : (real);                                                            \
        note(op, -1, 0, result < 0 ? errno : 0, first, second, length);                                                \
        LEAVE;                                                                                                         \
        return result;                                                                                                 \
    } while (0)

static int opened(int folder, const char *path, int flags, mode_t mode) {
    char whole[LONGEST];
    if (!watched(folder, path, whole)) return syscall(SYS_openat, folder, path, flags, mode);
    ENTER;
    int writes = (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC);
    int creates = flags & O_CREAT && syscall(SYS_faccessat, AT_FDCWD, whole, F_OK) < 0;
    int error = fate(writes ? 'o' : 'r', creates, 0);
    int fd = error ? (errno = error, -1) : (int)syscall(SYS_openat, folder, path, flags, mode);
    if (fd >= FILES) unseen++;
    if (fd >= 0 && fd < FILES) files[fd].tracked = 1, files[fd].writable = writes;
    note(writes ? 'o' : 'r', fd, flags, fd < 0 ? errno : 0, whole, NULL, 0);
    LEAVE;
    return fd;
}

#define MODE(flags)                                                                                                    \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                                             \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode = va_arg(more, mode_t);                                                                                   \
        va_end(more);                                                                                                  \
    }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return opened(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return opened(folder, path, flags, mode); }
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __openat_2(int folder, const char *path, int flags) { return opened(folder, path, flags, 0); }
int __openat64_2(int folder, const char *path, int flags) { return opened(folder, path, flags, 0); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

/* `at` < 0: where the file stands. */
static ssize_t written(int fd, const void *data, size_t length, off_t at) {
    if (!writable(fd))
        return at < 0 ? syscall(SYS_write, fd, data, length) : syscall(SYS_pwrite64, fd, data, length, at);
    ENTER;
    int error = fate('w', 1, length);
    size_t much = error < 0 ? length / 2 : length;
    int appends = syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND;
    int64_t offset = appends ? -1 : at >= 0 ? at : syscall(SYS_lseek, fd, 0, SEEK_CUR);
    ssize_t done = error > 0 ? (errno = error, -1)
                   : at < 0  ? syscall(SYS_write, fd, data, much)
                             : syscall(SYS_pwrite64, fd, data, much, at);
    note('w', fd, offset, done < 0 ? errno : 0, NULL, data, done < 0 ? 0 : done);
    if (error < 0 && kind == TORN) die();
    LEAVE;
    return done;
}

ssize_t write(int fd, const void *data, size_t length) { return written(fd, data, length, -1); }
ssize_t pwrite(int fd, const void *data, size_t length, off_t at) { return written(fd, data, length, at); }
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t at) { return written(fd, data, length, at); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (!writable(fd)) return syscall(SYS_writev, fd, parts, count);
    ssize_t sum = 0;
    for (int i = 0; i < count; i++) { /* one after another: what a reader of the disk may see */
        ssize_t done = written(fd, parts[i].iov_base, parts[i].iov_len, -1);
        if (done < 0) return sum ? sum : -1;
        sum += done;
        if ((size_t)done < parts[i].iov_len) break;
    }
    return sum;
}

/* Whoever uses these has another way that is seen. */
ssize_t sendfile(int out, int in, off_t *offset, size_t count) {
    if (writable(out)) return errno = ENOTSOCK, -1;
    return syscall(SYS_sendfile, out, in, offset, count);
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t count) { return sendfile(out, in, offset, count); }
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t count, unsigned flags) {
    if (writable(out)) return errno = EOPNOTSUPP, -1;
    return syscall(SYS_copy_file_range, in, from, out, to, count, flags);
}

void *mmap(void *where, size_t length, int protection, int flags, int fd, off_t offset) {
    if (writable(fd) && protection & PROT_WRITE && flags & MAP_SHARED) unseen++;
    return (void *)syscall(SYS_mmap, where, length, protection, flags, fd, offset);
}
void *mmap64(void *where, size_t length, int protection, int flags, int fd, off64_t offset) {
    return mmap(where, length, protection, flags, fd, offset);
}

#define ON_FILE(op, condition, offset, real)                                                                           \
    do {                                                                                                               \
        if (!(condition)) return real;                                                                                 \
        ENTER;                                                                                                         \
        int error = fate(op, 0, 0);                                                                                    \
        long result = error ? (errno = error, -1) : (real);                                                            \
        note(op, fd, offset, result < 0 ? errno : 0, NULL, NULL, 0);                                                   \
        LEAVE;                                                                                                         \
        return result;                                                                                                 \
    } while (0)

static long nothing(void) { return 0; }
static int synced(int fd) {
    if (!known(fd)) return syscall(SYS_fsync, fd);
    ON_FILE('s', 1, 0, nothing());
}
int fsync(int fd) { return synced(fd); }
int fdatasync(int fd) { return synced(fd); }
int ftruncate(int fd, off_t length) { ON_FILE('t', writable(fd), length, syscall(SYS_ftruncate, fd, length)); }
int ftruncate64(int fd, off64_t length) { return ftruncate(fd, length); }
int truncate(const char *path, off_t length) {
    char whole[LONGEST];
    unseen += watched(AT_FDCWD, path, whole);
    return syscall(SYS_truncate, path, length);
}

/* Also where an error is told, the file is closed: what close(2) says. */
int close(int fd) {
    int writes = writable(fd), seen = known(fd);
    if (fd >= 0 && fd < FILES) files[fd].tracked = 0;
    if (!seen) return syscall(SYS_close, fd);
    ENTER;
    int error = writes ? fate('c', 0, 0) : 0, result = syscall(SYS_close, fd);
    if (error) errno = error, result = -1;
    note(writes ? 'c' : 'q', fd, 0, 0, NULL, NULL, 0);
    LEAVE;
    return result;
}

int dup(int fd) {
    unseen += writable(fd);
    return syscall(SYS_dup, fd);
}
int dup2(int fd, int to) {
    unseen += writable(fd) || writable(to);
    return syscall(SYS_dup3, fd, to, 0);
}
int dup3(int fd, int to, int flags) {
    unseen += writable(fd) || writable(to);
    return syscall(SYS_dup3, fd, to, flags);
}

static int renamed(int from, const char *path, int to, const char *target, unsigned flags) {
    char first[LONGEST], second[LONGEST];
    int here = watched(from, path, first), there = watched(to, target, second);
    if (!here && !there) return syscall(SYS_renameat2, from, path, to, target, flags);
    unseen += !here || !there;
    NAMES('n', first, second, strlen(second), syscall(SYS_renameat2, from, path, to, target, flags));
}
int rename(const char *path, const char *target) { return renamed(AT_FDCWD, path, AT_FDCWD, target, 0); }
int renameat(int from, const char *path, int to, const char *target) { return renamed(from, path, to, target, 0); }
int renameat2(int from, const char *path, int to, const char *target, unsigned flags) {
    return renamed(from, path, to, target, flags);
}

int linkat(int from, const char *path, int to, const char *target, int flags) {
    char first[LONGEST], second[LONGEST];
    int here = watched(from, path, first), there = watched(to, target, second);
    if (!there) return syscall(SYS_linkat, from, path, to, target, flags);
    unseen += !here;
    NAMES('l', first, second, strlen(second), syscall(SYS_linkat, from, path, to, target, flags));
}
int link(const char *path, const char *target) { return linkat(AT_FDCWD, path, AT_FDCWD, target, 0); }

int mkdirat(int folder, const char *path, mode_t mode) {
    char whole[LONGEST];
    if (!watched(folder, path, whole)) return syscall(SYS_mkdirat, folder, path, mode);
    NAMES('m', whole, NULL, 0, syscall(SYS_mkdirat, folder, path, mode));
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int folder, const char *path, int flags) {
    char whole[LONGEST];
    if (!watched(folder, path, whole)) return syscall(SYS_unlinkat, folder, path, flags);
    char op = flags & AT_REMOVEDIR ? 'd' : 'u';
    NAMES(op, whole, NULL, 0, syscall(SYS_unlinkat, folder, path, flags));
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
