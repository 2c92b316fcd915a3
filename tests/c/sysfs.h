/* sysfs.h - a process of its own in which /sys/class and /dev hold what a test puts there, and files can be hidden. */
#ifndef HPC_TEST_SYSFS_H
#define HPC_TEST_SYSFS_H

#include "check.h"

/* Runs a function in such a process: 1 when it has returned; 0, said on stderr, if this machine lets nobody have one.
 * A check that fails there fails here. */
int sysfs_run(const char *name, void (*run)(void));

/* Both within run. path begins with /dev, or is below /sys/class. */
void sysfs_give(const char *path, const char *text);
void sysfs_hide(const char *file);

#endif
