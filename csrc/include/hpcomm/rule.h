/* rule.h - rules and proxes: the functions by which the owner of a chunk changes the parameters. hpcomm.h includes
 * it. */
#ifndef HPCOMM_RULE_H
#define HPCOMM_RULE_H

#ifndef HPCOMM_H
#error "include <hpcomm/hpcomm.h>, which includes rule.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* A rule is the function by which the owner of a chunk applies the folded update to the parameters. A user's rules and
 * folds have the same signatures as the built-in ones, and may come from any compiler (such as Numba's cfunc). The
 * thread that works on the chunk calls them, for one block of elements at a time. They return 0; any other number ends
 * the exchange with an error. */
enum { HPC_RULE_ARGS = 8, HPC_RULE_SLOTS = 4 };

/* param: n parameters. acc: the folded update. count: how many updates it contains. state: slots arrays of n values,
 * one after the other, zero at first. args[0] is the step, from 1; the hyperparameters are args[1] and on. */
typedef int (*hpc_apply_fn)(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n);
/* Adds weight times an update to acc[0..n), which is zero before the first update. in: the update's n elements in the
 * wire format, nbytes in all. */
typedef int (*hpc_fold_into_fn)(float *acc, int64_t n, const void *in, int64_t nbytes, double weight,
                                const double *args);

/* Replaces rows of a matrix, one after the other, by their proximal points (SFB, section 2.1). Under a rule with dual
 * it replaces rows of Z by the gradient of a conjugate. args are the rule's, but args[1] is the step of the prox: the
 * learning rate, or 1 with dual. A nonzero return value, or a NaN left in param, ends the exchange with an error. */
typedef int (*hpc_prox_fn)(float *param, int64_t rows, int64_t columns, const double *args);

typedef struct hpc_rule {
    const char *name;
    hpc_apply_fn apply;
    hpc_fold_into_fn fold; /* NULL: the weighted sum (hpc_fold) */
    int slots;             /* float32 values of state per element, 0 to HPC_RULE_SLOTS */
    unsigned fold_wires;   /* the wire formats that fold can read, as bits (1u << HPC_F32 and so on); a plan with inputs
                              in another format is refused. 0: all formats */
    double args[HPC_RULE_ARGS];
    const char *arg_names; /* names of args[1] and on, separated by spaces: "lr weight_decay"; NULL: none */
    hpc_prox_fn prox;      /* called after apply, on whole rows of the key's matrix; NULL: no prox */
    uint64_t columns;      /* with prox: elements of a row of that matrix. columns must divide the key's count, and the
                              offset and count of each row of the plan; so make columns the key's unit */
    int prox_whole; /* 1: prox gets the whole matrix at once, so the plan must have it in one row (the key's unit is its
                       count); 0: prox gets some rows at a time */
    int dual; /* 1: apply changes the state Z, zero at first, in the place of the parameters, which then become prox(Z);
                 slots must be 1 */
} hpc_rule;

/* The built-in rules, with the default arguments lr 0.01 (dual: 1) and the usual others:
 *   average                                           param = acc          (of models, which codecs send whole)
 *   assign                                            param = acc          (of updates, by any codec)
 *   sgd       1 lr  2 weight_decay                    g = acc + wd*param;  param -= lr*g
 *   proxsgd   1 lr  2 weight_decay                    sgd, for a prox      (SFB, section 2.1)
 *   dual      1 lr  2 weight_decay                    g = acc + wd*Z;      Z -= lr*g;  param = prox(Z), with lr 1
 *   momentum  1 lr  2 weight_decay  3 momentum        m = mu*m + g;        param -= lr*m
 *   nesterov  1 lr  2 weight_decay  3 momentum        m = mu*m + g;        param -= lr*(g + mu*m)
 *   adam      1 lr  2 weight_decay  3 beta1  4 beta2  5 epsilon            (Kingma and Ba, algorithm 1)
 *   adamw     1 lr  2 weight_decay  3 beta1  4 beta2  5 epsilon            param *= 1 - lr*wd, then adam without decay
 *                                                     (Loshchilov and Hutter, algorithm 2)
 * isa: the instruction set of the code; all give the same bits. HPC_ERR_INVALID if there is no rule of this name. */
HPC_API int hpc_rule_find(const char *name, int isa, hpc_rule *rule);

/* The built-in proxes, for the member prox of a rule; t is args[1], w a row:
 *   l1                3 lam          of lam |w|_1:                soft(w, t*lam)
 *   l2                3 lam          of lam/2 |w|^2:              w / (1 + t*lam)
 *   elastic_net       3 l1  4 l2     of l1 |w|_1 + l2/2 |w|^2:    soft(w, t*l1) / (1 + t*l2)
 *   l2_ball           3 radius       the nearest row with |w| <= radius
 *   simplex                          the nearest row of numbers from 0 on whose sum is 1
 *   dual_l2           3 lam          gradient of the conjugate of lam/2 |w|^2:              z / lam
 *   dual_elastic_net  3 l1  4 l2     gradient of the conjugate of l1 |w|_1 + l2/2 |w|^2:    soft(z, l1) / l2
 * soft(w, t) moves w by t towards 0, but not past it. With dual the other proxes are gradients of the conjugate of
 * their function plus 1/2 |w|^2. isa is as for hpc_rule_find. */
HPC_API int hpc_prox_find(const char *name, int isa, hpc_prox_fn *prox);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
