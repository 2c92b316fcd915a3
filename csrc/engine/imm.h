/* The immediate of an event: the operation, the sender's slot, and the number of a share or row. */
#ifndef HPC_IMM_H
#define HPC_IMM_H

#include <stdint.h>

enum { HPC_IMM_INDEX_BITS = 24, HPC_IMM_SLOT_BITS = 5 };

typedef enum hpc_operation {
    HPC_OP_SHARE = 0,   /* index: a share whose inputs from the sender can be read in place */
    HPC_OP_ROW = 1,     /* index: a row whose input from the sender is in its receive slot */
    HPC_OP_FORWARD = 2, /* index: a row whose input from a row of the sender is in its receive slot */
    HPC_OP_PULL = 3,    /* index: a share whose parameters the sender wants; slot: HPC_ANSWERED or 0 */
    HPC_OP_ARGS = 4,    /* the sender has put arguments of its rule for its push in slot; index: a share */
    /* The sender pushes without a gradient. index: the share; with several stages slot is 0, and the push uses the
     * sender's next slot. If slot is HPC_EMPTY_ROW, index is a row to which a row of the sender has nothing to send. */
    HPC_OP_EMPTY = 5,
    /* The sender has put its request to apply or skip a kept fold. index: a share; slot: defined by the discipline. */
    HPC_OP_USE = 6,
    HPC_OP_PASSED = 7 /* the sender passes on another rank's push, into the receive slot of the receiver's row; index:
                         the row of the same elements at the rank that made the push */
} hpc_operation;

enum { HPC_EMPTY_ROW = 1 };
enum { HPC_ANSWERED = 1 }; /* the sender has received the answers to all its earlier pulls of the key */

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
