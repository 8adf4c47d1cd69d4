/* Counts what a process does to the files below a folder, and lets one of these calls fail, all from it on, or kills
   the process there. Preloaded; idle until `fault_arm` is called. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, SYNC, RENAME, MKDIR, REMOVE };
enum { COUNT = 0, ERROR, FULL, KILL };

#define MOST 65536
char fault_kinds[MOST];
atomic_int fault_count;
static char root[PATH_MAX];
static int armed, at, mode;

void fault_arm(const char *folder, int number, int how) {
    strncpy(root, folder, sizeof root - 1);
    at = number, mode = how, armed = 1;
}

static int below(const char *path) {
    size_t length = strlen(root);
    return strncmp(path, root, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static int below_fd(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

static int below_at(int fd, const char *path) { return path[0] == '/' ? below(path) : fd != AT_FDCWD && below_fd(fd); }

/* Whether a call is to fail; errno is set then. */
static int strike(int kind) {
    int number = ++fault_count;
    if (number <= MOST) fault_kinds[number - 1] = kind;
    if (mode == COUNT || number < at || (number > at && mode != FULL)) return 0;
    if (mode == KILL) kill(getpid(), SIGKILL), pause();
    if (mode == FULL && (kind == SYNC || kind == RENAME || kind == REMOVE)) return 0;
    errno = mode == FULL ? ENOSPC : EIO;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define ON_FD(kind, type, name, declared, passed)                        \
    type name declared {                                                 \
        if (armed && below_fd(fd) && strike(kind)) return -1;            \
        return REAL(name) passed;                                        \
    }
#define ON_PATH(kind, name, declared, passed, folder)                    \
    int name declared {                                                  \
        if (armed && below_at(folder, path) && strike(kind)) return -1;  \
        return REAL(name) passed;                                        \
    }
#define OPENS(name, declared, passed, folder)                            \
    int name declared {                                                  \
        mode_t bits = 0;                                                 \
        if (flags & (O_CREAT | __O_TMPFILE)) {                           \
            va_list rest;                                                \
            va_start(rest, flags);                                       \
            bits = va_arg(rest, mode_t);                                 \
            va_end(rest);                                                \
        }                                                                \
        if (armed && (flags & (O_CREAT | O_TRUNC)) && below_at(folder, path) && strike(CREATE)) return -1; \
        return REAL(name) passed;                                        \
    }

OPENS(open, (const char *path, int flags, ...), (path, flags, bits), AT_FDCWD)
OPENS(open64, (const char *path, int flags, ...), (path, flags, bits), AT_FDCWD)
OPENS(openat, (int fd, const char *path, int flags, ...), (fd, path, flags, bits), fd)
OPENS(openat64, (int fd, const char *path, int flags, ...), (fd, path, flags, bits), fd)
ON_FD(WRITE, ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size))
ON_FD(WRITE, ssize_t, writev, (int fd, const struct iovec *from, int count), (fd, from, count))
ON_FD(WRITE, ssize_t, pwrite, (int fd, const void *from, size_t size, off_t to), (fd, from, size, to))
ON_FD(WRITE, ssize_t, pwrite64, (int fd, const void *from, size_t size, off64_t to), (fd, from, size, to))
ON_FD(WRITE, int, ftruncate, (int fd, off_t size), (fd, size))
ON_FD(WRITE, int, ftruncate64, (int fd, off64_t size), (fd, size))
ON_FD(SYNC, int, fsync, (int fd), (fd))
ON_FD(SYNC, int, fdatasync, (int fd), (fd))
ssize_t sendfile(int, int, off_t *, size_t);
ssize_t sendfile64(int, int, off64_t *, size_t);
ON_FD(WRITE, ssize_t, sendfile, (int fd, int in, off_t *offset, size_t size), (fd, in, offset, size))
ON_FD(WRITE, ssize_t, sendfile64, (int fd, int in, off64_t *offset, size_t size), (fd, in, offset, size))
ON_PATH(RENAME, rename, (const char *path, const char *to), (path, to), AT_FDCWD)
ON_PATH(RENAME, renameat, (int fd, const char *path, int fd2, const char *to), (fd, path, fd2, to), fd)
int mkdir(const char *, mode_t);
int mkdirat(int, const char *, mode_t);
ON_PATH(MKDIR, mkdir, (const char *path, mode_t bits), (path, bits), AT_FDCWD)
ON_PATH(MKDIR, mkdirat, (int fd, const char *path, mode_t bits), (fd, path, bits), fd)
ON_PATH(REMOVE, unlink, (const char *path), (path), AT_FDCWD)
ON_PATH(REMOVE, unlinkat, (int fd, const char *path, int flags), (fd, path, flags), fd)
ON_PATH(REMOVE, rmdir, (const char *path), (path), AT_FDCWD)
