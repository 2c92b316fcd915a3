/* Compression of pieces (codec/piece.h) by C libraries that are loaded when they are first asked for. Pure functions of
 * their arguments but for that. Any thread may call them. A thread waits for another one only while a library is
 * loaded. zstd and zlib take memory for the time of a call.
 *
 * An encoder writes a raw piece. A packed piece has three parts. The head is the raw piece's, with another length and
 * with the number of the compression. The length of the raw piece follows, a little-endian uint32. The last part is the
 * raw piece's body, compressed: a block of lz4, snappy's raw format, a frame of zstd, or a stream of zlib. A packed
 * piece is always shorter than the raw one. Decoders take raw pieces only. */
#ifndef HPC_COMPRESS_H
#define HPC_COMPRESS_H

#include "codec/piece.h"

enum { HPC_COMPRESSIONS = HPC_COMPRESS_ZLIB + 1 };

/* "none", "lz4", "snappy", "zstd" or "zlib"; NULL for another number. */
const char *hpc_compress_name(int number);

/* Loads the library. Returns 0, also for HPC_COMPRESS_NONE, which needs none; else a negative HPC_PIECE_* and in why
 * one sentence: which file is missing and the line that installs it. */
int hpc_compress_check(int number, char *why, size_t cap);

/* Bytes of scratch that packing and unpacking pieces of at most `most` bytes needs. 0 for HPC_COMPRESS_NONE, and where
 * the library is missing. */
size_t hpc_compress_room(int number, size_t most);

/* Packs a raw piece of at most cap bytes where it lies, and returns its bytes now. It stays raw with
 * HPC_COMPRESS_NONE, where it would not become shorter, and where the library cannot take it (lz4: above 2,113,929,216
 * bytes). room: bytes of scratch, from hpc_compress_room. Negative, with the piece as it was: HPC_PIECE_BAD_ARGS (no
 * such number), HPC_PIECE_NO_LIBRARY, HPC_PIECE_BAD_HEAD (packed already), HPC_PIECE_BAD_LENGTH (not within cap),
 * HPC_PIECE_NO_ROOM. */
int64_t hpc_piece_pack(int number, void *piece, size_t cap, void *scratch, size_t room);

/* Whether a piece of at least a head is packed. */
int hpc_piece_is_packed(const void *piece);

/* Unpacks a piece of nbytes into a raw one, and returns the raw bytes: as many as hpc_piece_read takes for
 * the elements that its head says. The piece may come from another process, and may change meanwhile: its head is read
 * once, and its compressed bytes are copied to scratch before any are read. Nothing is written outside raw[0..cap) and
 * scratch[0..room), and nothing in raw is of use after a negative HPC_PIECE_*. room: nbytes are enough. The
 * three overlap nowhere. */
int64_t hpc_piece_unpack(const void *piece, int64_t nbytes, void *raw, size_t cap, void *scratch, size_t room);

#endif
