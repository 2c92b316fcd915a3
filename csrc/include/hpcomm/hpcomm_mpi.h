/* hpcomm_mpi.h - makes hpc_init's out-of-band allgather from an MPI communicator, in C and C++.
 *
 *     MPI_Init(&argc, &argv);
 *     hpc_oob oob;
 *     hpc_oob_from_mpi(MPI_COMM_WORLD, &oob);
 *     hpc_init(&oob, NULL, &context);
 *
 * The communicator gives rank and size, and must live until hpc_init has returned. hpc_init is collective over the
 * communicator; after that hpcomm does not call MPI. The caller links MPI; libhpcomm does not. */
#ifndef HPCOMM_MPI_H
#define HPCOMM_MPI_H

#include "hpcomm.h"

#include <limits.h>
#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A request owns the memory that MPI reads and writes. A collective cannot be cancelled: one that hpc_init left at its
 * deadline may still write to the request's memory after the caller has freed its own. */
typedef struct hpc_mpi_request {
    MPI_Request request;
    int done;
    unsigned char *bytes; /* the bytes to send, then the received bytes */
    size_t nbytes_sent, nbytes_received;
    void *recv; /* the caller's memory, filled when all bytes have come */
} hpc_mpi_request;

/* Makes a datatype of nbytes, because MPI counts elements in int. */
static inline int hpc_mpi_type(size_t nbytes, MPI_Datatype *type) {
    const size_t block = (size_t)1 << 30;
    MPI_Datatype gibibyte, parts[2];
    int lengths[2];
    MPI_Aint offsets[2];
    int rc = MPI_Type_contiguous((int)block, MPI_BYTE, &gibibyte);
    if (rc != MPI_SUCCESS) return rc;
    parts[0] = gibibyte;
    parts[1] = MPI_BYTE;
    lengths[0] = (int)(nbytes / block);
    lengths[1] = (int)(nbytes % block);
    offsets[0] = 0;
    offsets[1] = (MPI_Aint)(nbytes - nbytes % block);
    rc = MPI_Type_create_struct(2, lengths, offsets, parts, type);
    MPI_Type_free(&gibibyte);
    return rc != MPI_SUCCESS ? rc : MPI_Type_commit(type);
}

static inline int hpc_mpi_allgather(const void *send, void *recv, size_t nbytes, void *arg, void **request) {
    MPI_Comm comm = MPI_Comm_f2c((MPI_Fint)(intptr_t)arg);
    MPI_Datatype type;
    hpc_mpi_request *r;
    int size, rc;
    if (MPI_Comm_size(comm, &size) != MPI_SUCCESS) return HPC_ERR_TRANSPORT;
    r = (hpc_mpi_request *)malloc(sizeof *r);
    if (r == NULL) return HPC_ERR_MEMORY;
    r->done = 0;
    r->recv = recv;
    r->nbytes_sent = nbytes;
    r->nbytes_received = nbytes * (size_t)size;
    r->bytes = (unsigned char *)malloc(r->nbytes_sent + r->nbytes_received + 1);
    if (r->bytes == NULL) {
        free(r);
        return HPC_ERR_MEMORY;
    }
    if (nbytes > 0) memcpy(r->bytes, send, nbytes);
    rc = hpc_mpi_type(nbytes, &type);
    if (rc == MPI_SUCCESS) {
        rc = MPI_Iallgather(r->bytes, 1, type, r->bytes + nbytes, 1, type, comm, &r->request);
        MPI_Type_free(&type);
    }
    if (rc != MPI_SUCCESS) {
        free(r->bytes);
        free(r);
        return HPC_ERR_TRANSPORT;
    }
    *request = r;
    return HPC_OK;
}

static inline int hpc_mpi_test(void *request) {
    hpc_mpi_request *r = (hpc_mpi_request *)request;
    if (r->done) return HPC_OK;
    if (MPI_Test(&r->request, &r->done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return HPC_ERR_TRANSPORT;
    if (!r->done) return HPC_IN_PROGRESS;
    if (r->nbytes_received > 0) memcpy(r->recv, r->bytes + r->nbytes_sent, r->nbytes_received);
    return HPC_OK;
}

static inline int hpc_mpi_free(void *request) {
    hpc_mpi_request *r = (hpc_mpi_request *)request;
    if (!r->done) return HPC_OK; /* MPI may still write to r->bytes, so it is never freed */
    free(r->bytes);
    free(r);
    return HPC_OK;
}

/* Fills in oob. The communicator is passed as its Fortran handle, which is an int in every MPI. Returns HPC_OK or
 * HPC_ERR_TRANSPORT. */
static inline int hpc_oob_from_mpi(MPI_Comm comm, hpc_oob *oob) {
    oob->arg = (void *)(intptr_t)MPI_Comm_c2f(comm);
    oob->allgather = hpc_mpi_allgather;
    oob->test = hpc_mpi_test;
    oob->free = hpc_mpi_free;
    if (MPI_Comm_rank(comm, &oob->rank) != MPI_SUCCESS) return HPC_ERR_TRANSPORT;
    return MPI_Comm_size(comm, &oob->size) == MPI_SUCCESS ? HPC_OK : HPC_ERR_TRANSPORT;
}

#ifdef __cplusplus
}
#endif
#endif
