/* The combinations by operator, type and instruction set, and their names. */
#include "kernel/combine.h"
#include "base/isa.h"

static const struct {
    const char *name; /* NumPy's, as far as it has one */
    size_t size;
} types[HPC_COMBINE_TYPES] = {
    {"float32", 4}, {"float64", 8}, {"float16", 2}, {"bfloat16", 2},  {"int8", 1},
    {"uint8", 1},   {"int16", 2},   {"uint16", 2},  {"int32", 4},     {"uint32", 4},
    {"int64", 8},   {"uint64", 8},  {"bool", 1},    {"complex64", 8}, {"complex128", 16},
};

/* Returns the row of a type in these tables; -1 if there is no such type. */
static int row_of(int type) {
    enum { DTYPES = HPC_BF16 + 1 };
    if (type >= HPC_F32 && type < DTYPES) return type;
    return type >= HPC_I8 && type <= HPC_C128 ? type - HPC_I8 + DTYPES : -1;
}

/* CPUs with AVX-512F run the kernels of AVX2, which most of the time wait for memory. */
hpc_combine_fn *hpc_combine_of(int op, int type, int isa) {
    static const struct hpc_combine_kernels *const tables[] =
        HPC_BY_ISA(&hpc_combine_generic, &hpc_combine_avx2, &hpc_combine_avx2);
    int row = row_of(type);
    if (row < 0 || op < 0 || op >= HPC_COMBINE_OPS) return NULL;
    return tables[hpc_isa_resolve(isa)]->of[row][op];
}

const char *hpc_op_name(int op) {
    static const char *const names[HPC_COMBINE_OPS] = {"sum", "avg", "min", "max", "prod", "band", "bor", "bxor"};
    return op >= 0 && op < HPC_COMBINE_OPS ? names[op] : NULL;
}

const char *hpc_type_name(int type) {
    int row = row_of(type);
    return row < 0 ? NULL : types[row].name;
}

size_t hpc_element_size(int type) {
    int row = row_of(type);
    return row < 0 ? 0 : types[row].size;
}
