/* The one program of all C tests. It runs the test whose name it was called by, each of which is a link to it; gdb and
 * others that follow links give the name as the first argument. */
#include <stdio.h>
#include <string.h>

/* Without prototypes: a test's main may take arguments or none. */
#define PROGRAM(name) int name();
#include "programs.h"
#undef PROGRAM

typedef struct program {
    const char *name;
    int (*run)();
} program;

static const program programs[] = {
#define PROGRAM(name) {#name, name},
#include "programs.h"
#undef PROGRAM
};

enum { USAGE = 2, PROGRAMS = sizeof programs / sizeof *programs };

static const program *find(const char *path) {
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    for (size_t i = 0; i < PROGRAMS; i++) {
        if (strcmp(programs[i].name, name) == 0) return &programs[i];
    }
    return NULL;
}

int main(int argc, char **argv) {
    const program *found = argc > 0 ? find(argv[0]) : NULL;
    if (!found && argc > 1) {
        found = find(argv[1]);
        argc--;
        argv++;
    }
    if (found) return found->run(argc, argv);
    fprintf(stderr, "usage: tests_c TEST [ARGUMENT...], where TEST is one of\n");
    for (size_t i = 0; i < PROGRAMS; i++) fprintf(stderr, "    %s\n", programs[i].name);
    return USAGE;
}
