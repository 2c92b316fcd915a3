/* Compression of pieces (codec/piece.h) by C libraries, each loaded when it is first needed. Otherwise these are pure
 * functions of their arguments. Any thread may call them; a thread waits for another one only while a library is
 * loaded. zstd and zlib allocate memory during a call.
 *
 * An encoder writes a raw piece. A packed piece has three parts: the raw piece's head, with the packed length and the
 * number of the compression; the length of the raw piece, a little-endian uint32; and the raw piece's body, compressed:
 * a block of lz4, snappy's raw format, a frame of zstd, or a stream of zlib. A packed piece is always shorter than the
 * raw one. Decoders take only raw pieces. */
#ifndef HPC_COMPRESS_H
#define HPC_COMPRESS_H

#include "codec/piece.h"

enum { HPC_COMPRESSIONS = HPC_COMPRESS_ZLIB + 1 };

/* Returns "none", "lz4", "snappy", "zstd" or "zlib"; NULL for another number. */
const char *hpc_compress_name(int number);

/* Loads the library. Returns 0, also for HPC_COMPRESS_NONE, which needs no library; otherwise a negative HPC_PIECE_*,
 * and writes one sentence to why: which file is missing and the command that installs it. */
int hpc_compress_check(int number, char *why, size_t cap);

/* Returns the bytes of scratch memory that packing and unpacking pieces of at most `most` bytes need; 0 for
 * HPC_COMPRESS_NONE, or if the library is missing. */
size_t hpc_compress_room(int number, size_t most);

/* Packs a raw piece of at most cap bytes in place, and returns its length. It stays raw with HPC_COMPRESS_NONE, if it
 * would not become shorter, and if the library cannot take it (lz4: above 2,113,929,216 bytes). room: bytes of scratch,
 * from hpc_compress_room. If it fails, the piece does not change, and it returns HPC_PIECE_BAD_ARGS (no such number),
 * HPC_PIECE_NO_LIBRARY, HPC_PIECE_BAD_HEAD (already packed), HPC_PIECE_BAD_LENGTH (above cap) or HPC_PIECE_NO_ROOM; all
 * are negative. */
int64_t hpc_piece_pack(int number, void *piece, size_t cap, void *scratch, size_t room);

/* Returns whether a piece is packed; it must have at least a head. */
int hpc_piece_is_packed(const void *piece);

/* Unpacks a piece of nbytes into raw. Returns the bytes of the raw piece, a length that hpc_piece_read accepts for the
 * elements in its head; or a negative HPC_PIECE_*, and then raw holds nothing of use. The piece may come from another
 * process, and may change meanwhile: its head is read once, and its compressed bytes are copied to scratch before any
 * are read. Nothing is written outside raw[0..cap) and scratch[0..room). nbytes of room are enough. piece, raw and
 * scratch must not overlap. */
int64_t hpc_piece_unpack(const void *piece, int64_t nbytes, void *raw, size_t cap, void *scratch, size_t room);

#endif
