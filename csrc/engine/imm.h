/* The immediate of an event: the operation, the sender's slot, and the number of a share or row. */
#ifndef HPC_IMM_H
#define HPC_IMM_H

#include <stdint.h>

enum { HPC_IMM_INDEX_BITS = 24, HPC_IMM_SLOT_BITS = 5 };

typedef enum hpc_operation {
    HPC_OP_SHARE = 0,   /* index: a share; its inputs from the sender can be read in place */
    HPC_OP_ROW = 1,     /* index: a row; its input from the sender is in its receive slot */
    HPC_OP_FORWARD = 2, /* index: a row; its input from a row of the sender is in its receive slot */
    HPC_OP_PULL = 3,    /* index: a share; the sender wants its parameters; slot: HPC_ANSWERED or 0 */
    HPC_OP_ARGS = 4,    /* index: a share; the sender has put args of its rule, for its push in that slot */
    HPC_OP_EMPTY = 5,   /* index: a share; the sender pushes it without a gradient; with several stages its slot is the
                           next one, and slot says HPC_EMPTY_ROW: a row, to which a row of the sender has nothing to
                           send */
    HPC_OP_USE = 6,     /* index: a share; slot: the discipline's; the sender has put its words on a kept fold */
    HPC_OP_PASSED = 7   /* index: a row of another rank; its owner's push of these elements, which the sender passes on,
                           is in the receive slot of the receiver's own row */
} hpc_operation;

enum { HPC_EMPTY_ROW = 1 };
enum { HPC_ANSWERED = 1 }; /* the sender has had the answers to all its earlier pulls of the key */

static inline uint32_t hpc_imm(hpc_operation operation, int slot, int index) {
    return (uint32_t)operation << (HPC_IMM_INDEX_BITS + HPC_IMM_SLOT_BITS) | (uint32_t)slot << HPC_IMM_INDEX_BITS |
           (uint32_t)index;
}

static inline hpc_operation hpc_imm_operation(uint32_t imm) {
    return (hpc_operation)(imm >> (HPC_IMM_INDEX_BITS + HPC_IMM_SLOT_BITS));
}

static inline int hpc_imm_slot(uint32_t imm) {
    return (int)(imm >> HPC_IMM_INDEX_BITS & ((1u << HPC_IMM_SLOT_BITS) - 1));
}

static inline int hpc_imm_index(uint32_t imm) {
    return (int)(imm & ((1u << HPC_IMM_INDEX_BITS) - 1));
}

#endif
