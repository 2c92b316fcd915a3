/* Packs pieces, and unpacks them. A compressor is one const struct below and one line in the array. */
#include "codec/compress.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { HEAD = sizeof(hpc_piece_head), BODY = HEAD + sizeof(uint32_t), SYMBOLS = 4 };

/* ---- libraries ---- */

struct symbol {
    const char *name;
    void *pointer; /* address of a function pointer, which loading sets */
};

typedef struct compressor {
    const char *name, *file, *package;
    struct symbol symbols[SYMBOLS + 1]; /* up to the first without a name */
    pthread_once_t *once;
    void (*load)(void);
    /* Sizes are in bytes. bound returns the most room that compressing n bytes needs, or 0 if one call cannot take n
     * bytes. compress and decompress return how many bytes they have written, or 0 if they have failed. */
    size_t (*bound)(size_t n);
    size_t (*compress)(const char *from, size_t n, char *to, size_t room);
    size_t (*decompress)(const char *from, size_t n, char *to, size_t room);
} compressor;

static struct {
    int ready;
    char why[256];
} loaded[HPC_COMPRESSIONS];

static void load(int number);

/* ---- lz4 ---- */

static struct {
    int (*bound)(int n);
    int (*compress)(const char *from, char *to, int n, int room);
    int (*decompress)(const char *from, char *to, int n, int room);
} lz4;

static size_t lz4_bound(size_t n) {
    int most = n > INT_MAX ? 0 : lz4.bound((int)n);
    return most < 0 ? 0 : (size_t)most;
}

static size_t lz4_compress(const char *from, size_t n, char *to, size_t room) {
    int made = lz4.compress(from, to, (int)n, room > INT_MAX ? INT_MAX : (int)room);
    return made < 0 ? 0 : (size_t)made;
}

static size_t lz4_decompress(const char *from, size_t n, char *to, size_t room) {
    if (n > INT_MAX || room > INT_MAX) return 0;
    int made = lz4.decompress(from, to, (int)n, (int)room);
    return made < 0 ? 0 : (size_t)made;
}

static pthread_once_t lz4_once = PTHREAD_ONCE_INIT;

static void lz4_load(void) {
    load(HPC_COMPRESS_LZ4);
}

static const compressor lz4_compressor = {
    .name = "lz4",
    .file = "liblz4.so.1",
    .package = "liblz4-1",
    .symbols = {{"LZ4_compressBound", &lz4.bound},
                {"LZ4_compress_default", &lz4.compress},
                {"LZ4_decompress_safe", &lz4.decompress}},
    .once = &lz4_once,
    .load = lz4_load,
    .bound = lz4_bound,
    .compress = lz4_compress,
    .decompress = lz4_decompress,
};

/* ---- snappy ---- */

typedef enum { SNAPPY_OK = 0, SNAPPY_INVALID_INPUT = 1, SNAPPY_BUFFER_TOO_SMALL = 2 } snappy_status;

static struct {
    size_t (*bound)(size_t n);
    snappy_status (*compress)(const char *from, size_t n, char *to, size_t *room);
    snappy_status (*decompress)(const char *from, size_t n, char *to, size_t *room);
} snappy;

static size_t snappy_bound(size_t n) {
    return n > UINT32_MAX ? 0 : snappy.bound(n);
}

static size_t snappy_compress(const char *from, size_t n, char *to, size_t room) {
    return snappy.compress(from, n, to, &room) == SNAPPY_OK ? room : 0;
}

static size_t snappy_decompress(const char *from, size_t n, char *to, size_t room) {
    return snappy.decompress(from, n, to, &room) == SNAPPY_OK ? room : 0;
}

static pthread_once_t snappy_once = PTHREAD_ONCE_INIT;

static void snappy_load(void) {
    load(HPC_COMPRESS_SNAPPY);
}

static const compressor snappy_compressor = {
    .name = "snappy",
    .file = "libsnappy.so.1",
    .package = "libsnappy1v5",
    .symbols = {{"snappy_max_compressed_length", &snappy.bound},
                {"snappy_compress", &snappy.compress},
                {"snappy_uncompress", &snappy.decompress}},
    .once = &snappy_once,
    .load = snappy_load,
    .bound = snappy_bound,
    .compress = snappy_compress,
    .decompress = snappy_decompress,
};

/* ---- zstd ---- */

static struct {
    size_t (*bound)(size_t n);
    size_t (*compress)(void *to, size_t room, const void *from, size_t n, int level);
    size_t (*decompress)(void *to, size_t room, const void *from, size_t n);
    unsigned (*is_error)(size_t made);
} zstd;

static size_t zstd_made(size_t made) {
    return zstd.is_error(made) ? 0 : made;
}

static size_t zstd_bound(size_t n) {
    return zstd_made(zstd.bound(n));
}

static size_t zstd_compress(const char *from, size_t n, char *to, size_t room) {
    return zstd_made(zstd.compress(to, room, from, n, 1));
}

static size_t zstd_decompress(const char *from, size_t n, char *to, size_t room) {
    return zstd_made(zstd.decompress(to, room, from, n));
}

static pthread_once_t zstd_once = PTHREAD_ONCE_INIT;

static void zstd_load(void) {
    load(HPC_COMPRESS_ZSTD);
}

static const compressor zstd_compressor = {
    .name = "zstd",
    .file = "libzstd.so.1",
    .package = "libzstd1",
    .symbols = {{"ZSTD_compressBound", &zstd.bound},
                {"ZSTD_compress", &zstd.compress},
                {"ZSTD_decompress", &zstd.decompress},
                {"ZSTD_isError", &zstd.is_error}},
    .once = &zstd_once,
    .load = zstd_load,
    .bound = zstd_bound,
    .compress = zstd_compress,
    .decompress = zstd_decompress,
};

/* ---- zlib ---- */

enum { ZLIB_OK = 0 };

static struct {
    unsigned long (*bound)(unsigned long n);
    int (*compress)(unsigned char *to, unsigned long *room, const unsigned char *from, unsigned long n, int level);
    int (*decompress)(unsigned char *to, unsigned long *room, const unsigned char *from, unsigned long *n);
} zlib;

static size_t zlib_bound(size_t n) {
    return zlib.bound(n);
}

static size_t zlib_compress(const char *from, size_t n, char *to, size_t room) {
    unsigned long made = room;
    return zlib.compress((unsigned char *)to, &made, (const unsigned char *)from, n, 1) == ZLIB_OK ? made : 0;
}

static size_t zlib_decompress(const char *from, size_t n, char *to, size_t room) {
    unsigned long made = room, used = n;
    int status = zlib.decompress((unsigned char *)to, &made, (const unsigned char *)from, &used);
    return status == ZLIB_OK && used == n ? made : 0; /* unlike the others, zlib accepts bytes after the end */
}

static pthread_once_t zlib_once = PTHREAD_ONCE_INIT;

static void zlib_load(void) {
    load(HPC_COMPRESS_ZLIB);
}

static const compressor zlib_compressor = {
    .name = "zlib",
    .file = "libz.so.1",
    .package = "zlib1g",
    .symbols = {{"compressBound", &zlib.bound}, {"compress2", &zlib.compress}, {"uncompress2", &zlib.decompress}},
    .once = &zlib_once,
    .load = zlib_load,
    .bound = zlib_bound,
    .compress = zlib_compress,
    .decompress = zlib_decompress,
};

/* ---- all ---- */

static const compressor *const compressors[HPC_COMPRESSIONS] = {
    [HPC_COMPRESS_LZ4] = &lz4_compressor,
    [HPC_COMPRESS_SNAPPY] = &snappy_compressor,
    [HPC_COMPRESS_ZSTD] = &zstd_compressor,
    [HPC_COMPRESS_ZLIB] = &zlib_compressor,
};

/* Loads a library. The library is never unloaded, because any thread may be running its code. */
static void load(int number) {
    const compressor *c = compressors[number];
    char *why = loaded[number].why;
    void *library = dlopen(c->file, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *error = dlerror();
        snprintf(why, sizeof loaded->why, "%s cannot be loaded (%.128s); apt-get install %s", c->file,
                 error == NULL ? "no reason given" : error, c->package);
        return;
    }
    for (const struct symbol *s = c->symbols; s->name != NULL; s++) {
        void *found = dlsym(library, s->name);
        if (found == NULL) {
            snprintf(why, sizeof loaded->why, "%s has no %s; it is too old, apt-get install --only-upgrade %s", c->file,
                     s->name, c->package);
            return;
        }
        memcpy(s->pointer, &found, sizeof found); /* ISO C cannot convert void * to a function pointer */
    }
    loaded[number].ready = 1;
}

static int is_number(int number) {
    return number >= 0 && number < HPC_COMPRESSIONS;
}

/* Returns NULL for HPC_COMPRESS_NONE, for an unknown number, and if the library cannot be loaded. */
static const compressor *compressor_of(int number) {
    if (!is_number(number) || number == HPC_COMPRESS_NONE) return NULL;
    pthread_once(compressors[number]->once, compressors[number]->load);
    return loaded[number].ready ? compressors[number] : NULL;
}

const char *hpc_compress_name(int number) {
    if (!is_number(number)) return NULL;
    return number == HPC_COMPRESS_NONE ? "none" : compressors[number]->name;
}

int hpc_compress_check(int number, char *why, size_t cap) {
    if (number == HPC_COMPRESS_NONE || compressor_of(number) != NULL) return 0;
    if (is_number(number)) {
        snprintf(why, cap, "%s", loaded[number].why);
        return HPC_PIECE_NO_LIBRARY;
    }
    char known[128] = "";
    for (int n = 0; n < HPC_COMPRESSIONS; n++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%d (%s)", n == 0 ? "" : ", ", n, hpc_compress_name(n));
    }
    snprintf(why, cap, "compression %d is unknown; there are %s", number, known);
    return HPC_PIECE_BAD_ARGS;
}

size_t hpc_compress_room(int number, size_t most) {
    const compressor *c = compressor_of(number);
    size_t room = c == NULL ? 0 : c->bound(most);
    return c != NULL && room < most ? most : room;
}

/* ---- pieces ---- */

int hpc_piece_is_packed(const void *piece) {
    hpc_piece_head head;
    memcpy(&head, piece, sizeof head);
    return head.packed != HPC_COMPRESS_NONE;
}

int64_t hpc_piece_pack(int number, void *piece, size_t cap, void *scratch, size_t room) {
    const compressor *c = compressor_of(number);
    hpc_piece_head head;
    if (!is_number(number)) return HPC_PIECE_BAD_ARGS;
    if (c == NULL && number != HPC_COMPRESS_NONE) return HPC_PIECE_NO_LIBRARY;
    if (cap < sizeof head) return HPC_PIECE_BAD_LENGTH;
    memcpy(&head, piece, sizeof head);
    if (head.packed != HPC_COMPRESS_NONE) return HPC_PIECE_BAD_HEAD;
    if (head.nbytes < sizeof head || head.nbytes > cap) return HPC_PIECE_BAD_LENGTH;
    const uint32_t raw = head.nbytes;
    const size_t body = raw - HEAD, bound = c == NULL ? 0 : c->bound(body);
    if (bound == 0 || body == 0) return raw;
    if (room < bound) return HPC_PIECE_NO_ROOM;

    char *bytes = piece;
    const size_t made = c->compress(bytes + HEAD, body, scratch, room);
    if (made == 0 || BODY + made >= raw) return raw; /* also if the library had no memory: the raw piece is valid */
    head.nbytes = (uint32_t)(BODY + made);
    head.packed = (uint16_t)number;
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + HEAD, &raw, sizeof raw);
    memcpy(bytes + BODY, scratch, made);
    return head.nbytes;
}

int64_t hpc_piece_unpack(const void *piece, int64_t nbytes, void *raw, size_t cap, void *scratch, size_t room) {
    hpc_piece_head head, checked;
    uint32_t length;
    if (nbytes < BODY) return HPC_PIECE_BAD_LENGTH;
    memcpy(&head, piece, sizeof head);
    memcpy(&length, (const char *)piece + HEAD, sizeof length);
    if (head.nbytes != nbytes || length <= head.nbytes) return HPC_PIECE_BAD_LENGTH;
    if (head.packed == HPC_COMPRESS_NONE || head.packed >= HPC_COMPRESSIONS) return HPC_PIECE_BAD_HEAD;
    const size_t packed = head.nbytes - BODY, body = length - HEAD;
    const compressor *c = compressor_of(head.packed);
    head.nbytes = length;
    head.packed = HPC_COMPRESS_NONE;
    int status = hpc_piece_read(&checked, &head, length, head.n);
    if (status != 0) return status;
    if (c == NULL) return HPC_PIECE_NO_LIBRARY;
    if (cap < length || room < packed) return HPC_PIECE_NO_ROOM;

    /* snappy reads its length twice, and none of the others promises to read each byte once. */
    memcpy(scratch, (const char *)piece + BODY, packed);
    memcpy(raw, &head, sizeof head);
    if (c->decompress(scratch, packed, (char *)raw + HEAD, body) != body) return HPC_PIECE_BAD_PACK;
    return length;
}

/* ---- as slots of a codec ---- */

size_t hpc_piece_scratch(const hpc_codec_config *config, size_t most) {
    return hpc_compress_room(config->compress, most);
}

int64_t hpc_piece_pack_by(const hpc_codec_config *config, void *piece, size_t cap, void *scratch, size_t room) {
    return hpc_piece_pack(config->compress, piece, cap, scratch, room);
}

/* Accepts only the key's compression, so a core never loads a library that the key has not asked for. */
int64_t hpc_piece_unpack_by(const hpc_codec_config *config, const void *piece, int64_t nbytes, void *raw, size_t cap,
                            void *scratch, size_t room) {
    hpc_piece_head head;
    if (nbytes < (int64_t)sizeof head) return HPC_PIECE_BAD_LENGTH;
    memcpy(&head, piece, sizeof head);
    if (head.packed == HPC_COMPRESS_NONE) return 0;
    if (head.packed != config->compress) return HPC_PIECE_BAD_HEAD;
    return hpc_piece_unpack(piece, nbytes, raw, cap, scratch, room);
}
