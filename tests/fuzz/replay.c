/* Gives the files of the folders named to a fuzzer's target, without libFuzzer. */
#include "fuzz.h"

#include <dirent.h>

enum { MOST = 1 << 20 };

static int replay(const char *folder, const char *name) {
    static uint8_t room[MOST];
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return 0;
    }
    size_t size = fread(room, 1, sizeof room, file);
    fclose(file);
    fprintf(stderr, "%s\n", path);    /* before it is tried: the last one named is the one that failed */
    uint8_t *data = malloc(size + 1); /* of its size, so that ASan sees a read behind it */
    if (data == NULL) return 0;
    memcpy(data, room, size);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 1;
}

int main(int argc, char **argv) {
    int n = 0;
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        if (folder == NULL) {
            perror(argv[i]);
            return 1;
        }
        for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
            if (entry->d_name[0] != '.') n += replay(argv[i], entry->d_name);
        closedir(folder);
    }
    fprintf(stderr, "%d inputs\n", n);
    return n > 0 ? 0 : 1;
}
