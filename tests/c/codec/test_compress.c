/* Packed pieces: what is packed comes back, what would not become shorter stays raw, and a wrong packed piece is
 * refused or is one that the decoder of raw ones judges. Skipped where a library is missing, after all that can be
 * tested. */
#define _GNU_SOURCE
#include "ranks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "codec/compress.h"

enum { HEAD = sizeof(hpc_piece_head), MOST = 70000, CAP = HEAD + 4 * MOST, THREADS = 6, WHY = 256 };

static const char *const files[] = {"", "liblz4.so.1", "libsnappy.so.1", "libzstd.so.1", "libz.so.1"};
static const char *const packages[] = {"", "liblz4-1", "libsnappy1v5", "libzstd1", "zlib1g"};
static float x[MOST], residual[MOST], acc[MOST];
static uint64_t random_state = 1;

static uint32_t random_word(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static int is_here(int number) {
    char why[WHY];
    return hpc_compress_check(number, why, sizeof why) == 0;
}

/* ---- memory that ends where a page begins that nobody may touch ---- */

struct fenced {
    char *base;
    size_t nbytes, all;
};

static struct fenced fence(size_t nbytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), all = (nbytes / page + 2) * page;
    struct fenced f = {.nbytes = nbytes, .all = all};
    f.base = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(f.base != MAP_FAILED);
    CHECK(mprotect(f.base + all - page, page, PROT_NONE) == 0);
    return f;
}

/* The last nbytes of it. */
static char *last(const struct fenced *f, size_t nbytes) {
    CHECK(nbytes <= f->nbytes);
    return f->base + f->all - (size_t)sysconf(_SC_PAGESIZE) - nbytes;
}

static void unfence(struct fenced *f) {
    CHECK(munmap(f->base, f->all) == 0);
}

/* ---- pieces ---- */

enum { FLOAT4 = HPC_PIECE_SIGNS + 1, FORMS, KINDS = 4 }; /* the forms, HPC_PIECE_FLOAT4 by another number */

/* About one element in every is kept; with full, their bits are random. */
static size_t make_piece(int form, size_t n, int full, char *out) {
    static const uint32_t every[] = {1, 3, 30, 1000};
    static const int formats[] = {HPC_F32, HPC_F16, HPC_BF16};
    const int units = form == HPC_PIECE_SIGNS || form == FLOAT4;
    for (size_t i = 0; i < n; i++) {
        int large = !units && random_word() % every[form] == 0;
        float bits = (float)(random_word() >> 8) + 100;
        x[i] = full ? bits : large ? (float)(random_word() % 4 + 20) : (float)(random_word() % 3) - 1;
        if (full && !large && !units) x[i] = 0;
        residual[i] = 0;
    }
    hpc_piece_filter how = {.delta = 8, .values = full ? HPC_F32 : formats[random_word() % 3]};
    hpc_codec_config config;
    int64_t kept;
    hpc_codec_config_init(&config);
    config.unit = 50;
    const hpc_encoding encoding = {.config = &config, .made = 1};
    const hpc_codec *codec = form == FLOAT4 ? &hpc_codec_float4 : &hpc_codec_onebit;
    int64_t nbytes = units ? codec->encode(&encoding, &(hpc_codec_source){x, 0}, (int64_t)n, residual, out, CAP, &kept)
                           : hpc_piece_encode(&how, x, (int64_t)n, residual, out, CAP, NULL);
    CHECK(nbytes >= HEAD);
    return (size_t)nbytes;
}

static hpc_piece_head head_of(const char *piece) {
    hpc_piece_head head;
    memcpy(&head, piece, sizeof head);
    return head;
}

/* Packs a piece where it lies and makes it raw again, with no byte to spare; returns its bytes between. */
static size_t check_round_trip(int number, char *piece, size_t nbytes) {
    static char packed[CAP];
    const size_t room = hpc_compress_room(number, nbytes), n = head_of(piece).n;
    struct fenced scratch = fence(room), raw = fence(nbytes), short_of = fence(nbytes);
    CHECK(room >= nbytes);
    char *own = memcpy(last(&short_of, nbytes), piece, nbytes);
    CHECK_EQ(hpc_piece_pack(number, own, nbytes - 1, last(&scratch, room), room), HPC_PIECE_BAD_LENGTH);
    if (nbytes > HEAD) CHECK_EQ(hpc_piece_pack(number, own, nbytes, last(&scratch, 0), 0), HPC_PIECE_NO_ROOM);
    CHECK(memcmp(own, piece, nbytes) == 0);
    int64_t made = hpc_piece_pack(number, own, nbytes, last(&scratch, room), room);
    CHECK(made >= HEAD && (size_t)made <= nbytes);
    if (!hpc_piece_is_packed(own)) {
        CHECK((size_t)made == nbytes && memcmp(own, piece, nbytes) == 0);
        CHECK(hpc_piece_unpack(own, made, last(&raw, nbytes), nbytes, last(&scratch, room), room) < 0);
    } else {
        hpc_piece_head head;
        const size_t inner = (size_t)made - HEAD - sizeof(uint32_t);
        uint32_t length;
        CHECK((size_t)made < nbytes && head_of(own).nbytes == made && head_of(own).packed == number);
        memcpy(&length, own + HEAD, sizeof length);
        CHECK_EQ(length, nbytes);
        memcpy(packed, own, (size_t)made);
        own = memcpy(last(&short_of, (size_t)made), packed, (size_t)made); /* and not a byte of it is read twice */
        CHECK_EQ(hpc_piece_read(&head, packed, made, (int64_t)n), HPC_PIECE_BAD_HEAD);
        CHECK_EQ(hpc_piece_decode_add(NULL, acc, (int64_t)n, packed, made, 1), HPC_PIECE_BAD_HEAD);
        CHECK_EQ(hpc_piece_pack(number, packed, CAP, last(&scratch, room), room), HPC_PIECE_BAD_HEAD);
        CHECK_EQ(hpc_piece_unpack(own, made, last(&raw, nbytes), nbytes - 1, last(&scratch, inner), inner),
                 HPC_PIECE_NO_ROOM);
        CHECK_EQ(hpc_piece_unpack(own, made, last(&raw, nbytes), nbytes, last(&scratch, inner), inner - 1),
                 HPC_PIECE_NO_ROOM);
        CHECK_EQ(hpc_piece_unpack(own, made, last(&raw, nbytes), nbytes, last(&scratch, inner), inner), nbytes);
        CHECK(memcmp(last(&raw, nbytes), piece, nbytes) == 0);
    }
    unfence(&short_of);
    unfence(&raw);
    unfence(&scratch);
    return (size_t)made;
}

static void test_round_trips(int number) {
    static char piece[CAP];
    static const size_t counts[] = {0, 1, 2, 5, 9, 40, 64, 257, 1000, 4096, MOST};
    int packed[FORMS] = {0};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int form = 0; form < FORMS; form++)
            for (int full = 0; full < 2; full++) {
                size_t nbytes = make_piece(form, counts[c], full, piece);
                int made = head_of(piece).form == HPC_PIECE_FLOAT4 ? FLOAT4 : head_of(piece).form;
                packed[made] += check_round_trip(number, piece, nbytes) < nbytes;
            }
    for (int form = 0; form < FORMS; form++) CHECK(packed[form] > 0);
}

/* A piece of zeros becomes much shorter; one of random bits stays as it is; so does one that is too short to gain. */
static void test_what_becomes_shorter(int number) {
    static char piece[CAP];
    memset(piece, 0, sizeof piece);
    int64_t nbytes = hpc_piece_finish(piece, HPC_PIECE_DENSE, HPC_F32, MOST, MOST, 4 * MOST);
    CHECK(check_round_trip(number, piece, (size_t)nbytes) < (size_t)nbytes / 10);
    for (size_t i = HEAD; i < sizeof piece; i++) piece[i] = (char)random_word();
    CHECK_EQ(check_round_trip(number, piece, (size_t)nbytes), nbytes);
    for (int n = 0; n < 64; n++) {
        memset(piece + HEAD, 1, 4 * (size_t)n);
        nbytes = hpc_piece_finish(piece, HPC_PIECE_DENSE, HPC_F32, n, n, 4 * (size_t)n);
        size_t made = check_round_trip(number, piece, (size_t)nbytes);
        CHECK(n > 2 || made == (size_t)nbytes);
        CHECK(n < 40 || made < (size_t)nbytes);
    }
}

/* ---- wrong pieces ---- */

/* Unpacks it beside a fence; what comes out, the decoder accepts or refuses. */
static int64_t unpack_any(const char *bytes, size_t nbytes, const struct fenced *in, const struct fenced *raw,
                          const struct fenced *scratch) {
    char *piece = memcpy(last(in, nbytes), bytes, nbytes);
    char *out = last(raw, raw->nbytes);
    int64_t made = hpc_piece_unpack(piece, (int64_t)nbytes, out, raw->nbytes, last(scratch, nbytes), nbytes);
    CHECK(made != 0 && made <= (int64_t)raw->nbytes);
    if (made < 0) {
        CHECK(strcmp(hpc_piece_text((int)made), hpc_piece_text(0)) != 0);
        return made;
    }
    hpc_piece_head head;
    uint32_t n = head_of(out).n;
    CHECK_OK(hpc_piece_read(&head, out, made, n));
    void *aligned = malloc((size_t)made);
    float *sum = calloc(n + 1, sizeof *sum);
    CHECK(aligned != NULL && sum != NULL);
    int status = hpc_piece_decode_add(NULL, sum, n, memcpy(aligned, out, (size_t)made), made, 1);
    CHECK(status <= 0 && sum[n] == 0);
    free(sum);
    free(aligned);
    return made;
}

static void test_corrupted(int number) {
    static char piece[CAP], scratch[2 * CAP];
    for (int form = 0; form < FORMS; form++) {
        static const size_t counts[FORMS] = {100, 300, 2000, MOST, 2000, 2000};
        size_t nbytes, made;
        do {
            nbytes = make_piece(form, counts[form], 0, piece);
            made = (size_t)hpc_piece_pack(number, piece, CAP, scratch, sizeof scratch);
        } while (made == nbytes);
        struct fenced in = fence(made), raw = fence(4 * nbytes), room = fence(made);
        CHECK_EQ(unpack_any(piece, made, &in, &raw, &room), nbytes);
        for (size_t bit = 0; bit < 8 * made; bit += RANKS_TSAN ? 101 : 1) { /* one thread: TSan finds nothing here */
            piece[bit / 8] ^= (char)(1 << bit % 8);
            int64_t out = unpack_any(piece, made, &in, &raw, &room);
            if (bit / 8 < sizeof(uint32_t)) CHECK_EQ(out, HPC_PIECE_BAD_LENGTH);
            if (bit / 8 >= HEAD && bit / 8 < HEAD + sizeof(uint32_t)) CHECK(out < 0);
            piece[bit / 8] ^= (char)(1 << bit % 8);
        }
        for (size_t less = 0; less < made; less += RANKS_TSAN ? 101 : 1) {
            char own[CAP];
            memcpy(own, piece, less);
            CHECK_EQ(unpack_any(own, less, &in, &raw, &room), HPC_PIECE_BAD_LENGTH);
            if (less < HEAD) continue;
            memcpy(own, &(uint32_t){(uint32_t)less}, sizeof(uint32_t)); /* and as if it had been packed so */
            CHECK(unpack_any(own, less, &in, &raw, &room) < 0);
        }
        unfence(&room);
        unfence(&raw);
        unfence(&in);
    }
}

/* Bytes behind the end, lengths that are too small or lead outside, and numbers that nobody has. */
static void test_refusals(int number) {
    static char piece[CAP], raw[CAP], scratch[2 * CAP];
    int64_t nbytes = hpc_piece_finish(piece, HPC_PIECE_DENSE, HPC_F32, 1000, 1000, 4000);
    memset(piece + HEAD, 0, 4000);
    int64_t made = hpc_piece_pack(number, piece, sizeof piece, scratch, sizeof scratch);
    CHECK(made < nbytes);
    const hpc_piece_head head = head_of(piece);
    const uint32_t longer = (uint32_t)made + 1, wrong[] = {0, HEAD, (uint32_t)made, 4015, 4017, UINT32_MAX};
    memcpy(piece, &longer, sizeof longer);
    piece[made] = 0;
    CHECK_EQ(hpc_piece_unpack(piece, longer, raw, sizeof raw, scratch, sizeof scratch), HPC_PIECE_BAD_PACK);
    memcpy(piece, &head, sizeof head);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(piece + HEAD, &wrong[i], sizeof *wrong);
        CHECK_EQ(hpc_piece_unpack(piece, made, raw, sizeof raw, scratch, sizeof scratch), HPC_PIECE_BAD_LENGTH);
    }
    hpc_piece_head small = head; /* a raw piece that is no longer than the packed one */
    small.n = small.entries = 1;
    memcpy(piece, &small, sizeof small);
    memcpy(piece + HEAD, &(uint32_t){HEAD + 4}, sizeof(uint32_t));
    CHECK_EQ(hpc_piece_unpack(piece, made, raw, sizeof raw, scratch, sizeof scratch), HPC_PIECE_BAD_LENGTH);
    memcpy(piece, &head, sizeof head);
    memcpy(piece + HEAD, &(uint32_t){(uint32_t)nbytes}, sizeof(uint32_t));
    for (uint16_t other = 0; other < 300; other = other == 0 ? HPC_COMPRESSIONS : other + 1) {
        memcpy(piece + offsetof(hpc_piece_head, packed), &other, sizeof other);
        CHECK_EQ(hpc_piece_unpack(piece, made, raw, sizeof raw, scratch, sizeof scratch), HPC_PIECE_BAD_HEAD);
    }
    CHECK_EQ(hpc_piece_unpack(piece, INT64_MIN, raw, sizeof raw, scratch, sizeof scratch), HPC_PIECE_BAD_LENGTH);
}

/* Another process writes over a piece while it is unpacked. What is compressed has 4,000 bytes, and the piece says that
 * they are 2,400; the length that snappy has at its start is now 2,336, now 4,000. Whoever believes the one and writes
 * by the other writes over the fence. */
static void test_changing(int number) {
    enum { N = 1000, SAYS = 600, LESS = 0x12, MORE = 0x1f, ROUNDS = 20000 };
    static char piece[CAP];
    memset(piece, 0, sizeof piece);
    int64_t nbytes = hpc_piece_finish(piece, HPC_PIECE_DENSE, HPC_F32, N, N, 4 * N);
    struct fenced in = fence(CAP), raw = fence(HEAD + 4 * SAYS), scratch = fence(2 * CAP);
    char *at = last(&in, CAP), *changing = at + HEAD + sizeof(uint32_t) + 1;
    int64_t made = hpc_piece_pack(number, piece, sizeof piece, last(&scratch, 2 * CAP), 2 * CAP);
    CHECK(hpc_piece_is_packed(piece) && made < nbytes);
    hpc_piece_head head = head_of(piece);
    head.n = head.entries = SAYS;
    memcpy(piece, &head, sizeof head);
    memcpy(piece + HEAD, &(uint32_t){(uint32_t)raw.nbytes}, sizeof(uint32_t));
    memcpy(at, piece, (size_t)made);
    CHECK(number != HPC_COMPRESS_SNAPPY || *changing == MORE);

    atomic_int *done = (atomic_int *)(void *)in.base;
    const pid_t parent = getpid(), writer = fork();
    CHECK(writer >= 0);
    if (writer == 0) prctl(PR_SET_PDEATHSIG, SIGKILL); /* it ends with a test that crashes */
    if (writer == 0 && getppid() != parent) _exit(1);
    while (writer == 0 && !atomic_load(done)) {
        atomic_store_explicit((_Atomic char *)changing, LESS, memory_order_relaxed);
        atomic_store_explicit((_Atomic char *)changing, MORE, memory_order_relaxed);
    }
    if (writer == 0) _exit(0);
    for (int round = 0; round < ROUNDS; round++)
        CHECK_EQ(
            hpc_piece_unpack(at, made, last(&raw, raw.nbytes), raw.nbytes, last(&scratch, (size_t)made), (size_t)made),
            HPC_PIECE_BAD_PACK);
    atomic_store(done, 1);
    int status;
    CHECK(waitpid(writer, &status, 0) == writer && status == 0);
    unfence(&scratch);
    unfence(&raw);
    unfence(&in);
}

/* ---- libraries ---- */

static void *pack_at_once(void *argument) {
    int number = *(const int *)argument;
    char why[WHY], piece[HEAD + 400] = {0}, raw[HEAD + 400], scratch[1000];
    if (hpc_compress_check(number, why, sizeof why) != 0) return NULL;
    int64_t nbytes = hpc_piece_finish(piece, HPC_PIECE_DENSE, HPC_F32, 100, 100, 400);
    int64_t made = hpc_piece_pack(number, piece, sizeof piece, scratch, sizeof scratch);
    CHECK(made > HEAD && made < nbytes);
    CHECK_EQ(hpc_piece_unpack(piece, made, raw, sizeof raw, scratch, sizeof scratch), nbytes);
    return NULL;
}

/* The first use of a library is that of several threads. */
static void test_threads(void) {
    pthread_t threads[THREADS];
    for (int number = 1; number < HPC_COMPRESSIONS; number++) {
        for (int t = 0; t < THREADS; t++) CHECK(pthread_create(&threads[t], NULL, pack_at_once, &number) == 0);
        for (int t = 0; t < THREADS; t++) CHECK(pthread_join(threads[t], NULL) == 0);
    }
}

static void check_missing(int number, const char *text) {
    char why[WHY] = "", piece[HEAD + 400] = {0}, before[HEAD + 400], scratch[1000];
    CHECK_EQ(hpc_compress_check(number, why, sizeof why), HPC_PIECE_NO_LIBRARY);
    CHECK(strstr(why, files[number]) == why && strstr(why, "apt-get install") != NULL);
    if (strstr(why, packages[number]) == NULL || strstr(why, text) == NULL) {
        fprintf(stderr, "%s\n", why);
        check_fail("the package in the sentence");
    }
    CHECK_EQ(hpc_compress_room(number, 1000), 0);
    hpc_piece_finish(piece, HPC_PIECE_DENSE, HPC_F32, 100, 100, 400);
    memcpy(before, piece, sizeof before);
    CHECK_EQ(hpc_piece_pack(number, piece, sizeof piece, scratch, sizeof scratch), HPC_PIECE_NO_LIBRARY);
    CHECK(memcmp(before, piece, sizeof before) == 0);
    const hpc_piece_head head = {HEAD + 30, HPC_PIECE_DENSE, HPC_F32, (uint16_t)number, 100, 100};
    memcpy(piece, &head, sizeof head);
    memcpy(piece + HEAD, &(uint32_t){sizeof piece}, sizeof(uint32_t));
    CHECK_EQ(hpc_piece_unpack(piece, HEAD + 30, before, sizeof before, scratch, sizeof scratch), HPC_PIECE_NO_LIBRARY);
}

/* Runs this program again where each library's file is empty, or is a library that has none of the functions. */
static void test_missing(const char *mode) {
    char folder[] = "/tmp/hpc_test_compress_XXXXXX", path[sizeof folder + 32];
    Dl_info libc;
    void *function = dlsym(RTLD_DEFAULT, "getpid");
    CHECK(function != NULL && dladdr(function, &libc) != 0 && mkdtemp(folder) != NULL);
    for (int number = 1; number < HPC_COMPRESSIONS; number++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[number]);
        if (strcmp(mode, "empty") == 0) {
            FILE *file = fopen(path, "w");
            CHECK(file != NULL && fclose(file) == 0);
        } else {
            char *real = realpath(libc.dli_fname, NULL);
            CHECK(real != NULL && symlink(real, path) == 0);
            free(real);
        }
    }
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        setenv("LD_LIBRARY_PATH", folder, 1);
        execl("/proc/self/exe", "test_compress", mode, (char *)NULL);
        _exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    for (int number = 1; number < HPC_COMPRESSIONS; number++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[number]);
        CHECK(unlink(path) == 0);
    }
    CHECK(rmdir(folder) == 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_names(void) {
    static const char *const names[] = {"none", "lz4", "snappy", "zstd", "zlib"};
    char why[WHY] = "", piece[HEAD] = {0};
    for (int number = 0; number < HPC_COMPRESSIONS; number++)
        CHECK(strcmp(hpc_compress_name(number), names[number]) == 0);
    CHECK(hpc_compress_name(-1) == NULL && hpc_compress_name(HPC_COMPRESSIONS) == NULL);
    CHECK_EQ(hpc_compress_check(5, why, sizeof why), HPC_PIECE_BAD_ARGS);
    CHECK(strcmp(why, "compression 5 is unknown; there are 0 (none), 1 (lz4), 2 (snappy), 3 (zstd), 4 (zlib)") == 0);
    CHECK_EQ(hpc_compress_check(-1, why, 3), HPC_PIECE_BAD_ARGS);
    CHECK_EQ(hpc_compress_check(HPC_COMPRESS_NONE, why, sizeof why), 0);
    CHECK_EQ(hpc_compress_room(HPC_COMPRESS_NONE, 1000), 0);
    CHECK_EQ(hpc_compress_room(9, 1000), 0);
    CHECK_EQ(hpc_piece_finish(piece, HPC_PIECE_DENSE, HPC_F32, 0, 0, 0), HEAD);
    CHECK_EQ(hpc_piece_pack(HPC_COMPRESS_NONE, piece, HEAD, NULL, 0), HEAD);
    CHECK_EQ(hpc_piece_pack(HPC_COMPRESSIONS, piece, HEAD, NULL, 0), HPC_PIECE_BAD_ARGS);
    CHECK_EQ(hpc_piece_pack(HPC_COMPRESS_NONE, piece, HEAD - 1, NULL, 0), HPC_PIECE_BAD_LENGTH);
    CHECK_EQ(hpc_piece_pack(HPC_COMPRESS_NONE, memset(piece, 0, HEAD), HEAD, NULL, 0), HPC_PIECE_BAD_LENGTH);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    int missing = 0;
    for (int number = 1; number < HPC_COMPRESSIONS && argc > 1; number++)
        check_missing(number, strcmp(mode, "empty") == 0 ? "cannot be loaded" : "is too old");
    if (argc > 1) return 0;
    test_threads();
    test_names();
    test_missing("empty");
    test_missing("foreign");
    for (int number = 1; number < HPC_COMPRESSIONS; number++) {
        if (!is_here(number)) {
            char why[WHY];
            check_missing(number, "cannot be loaded");
            hpc_compress_check(number, why, sizeof why);
            fprintf(stderr, "skipped %s: %s\n", hpc_compress_name(number), why);
            missing = 1;
            continue;
        }
        test_round_trips(number);
        test_what_becomes_shorter(number);
        test_corrupted(number);
        test_refusals(number);
        test_changing(number);
    }
    return missing ? 77 : 0;
}
