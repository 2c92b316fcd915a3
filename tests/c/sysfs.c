#define _GNU_SOURCE
#include "sysfs.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LEFT_OUT = 77 };

static int tell(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC), ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return ok;
}

/* A file can be made by a user and a group that have a number there. */
static int become_root(uid_t user, gid_t group) {
    char users[64], groups[64];
    snprintf(users, sizeof users, "0 %u 1", (unsigned)user);
    snprintf(groups, sizeof groups, "0 %u 1", (unsigned)group);
    return tell("/proc/self/uid_map", users) && tell("/proc/self/setgroups", "deny") &&
           tell("/proc/self/gid_map", groups);
}

/* Root needs a mount namespace; anybody else, to be root in a user namespace. */
static int leave_mounts(void) {
    uid_t user = geteuid();
    gid_t group = getegid();
    return (unshare(CLONE_NEWNS) == 0 || (unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && become_root(user, group))) &&
           mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", "/sys/class", "tmpfs", 0, "mode=755") == 0 &&
           mount("none", "/dev", "tmpfs", 0, "mode=755") == 0;
}

int sysfs_run(const char *name, void (*run)(void)) {
    int status;
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (!leave_mounts()) _exit(LEFT_OUT);
        run();
        _exit(0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    if (WEXITSTATUS(status) == LEFT_OUT) {
        fprintf(stderr, "%s left out: no mount namespace here\n", name);
        return 0;
    }
    CHECK_EQ(WEXITSTATUS(status), 0);
    return 1;
}

void sysfs_give(const char *path, const char *text) {
    char file[256];
    snprintf(file, sizeof file, "%s%s", path[0] == '/' ? "" : "/sys/class/", path);
    for (char *slash = strchr(file + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(file, 0755);
        *slash = '/';
    }
    FILE *to = fopen(file, "w");
    CHECK(to != NULL);
    CHECK(fprintf(to, "%s\n", text) > 0);
    CHECK_EQ(fclose(to), 0);
}

void sysfs_hide(const char *file) {
    sysfs_give("/dev/hidden", "");
    CHECK_EQ(mount("/dev/hidden", file, NULL, MS_BIND, NULL), 0);
}
