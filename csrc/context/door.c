/* Contexts that are called at a door (control/door.h), and how they are reached. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "context/context.h"

int hpc_context_door(const hpc_context *c, hpc_door *door) {
    _Static_assert(HPC_DOOR_NAME == sizeof c->self.control.name, "a name is whole");
    if (c == NULL || door == NULL) return hpc_fail(HPC_ERR_INVALID, "door", "door: context or door is NULL");
    memcpy(door->name, c->self.control.name, sizeof door->name);
    door->refused = hpc_control_refused(c->control);
    return HPC_OK;
}

int hpc_context_take(hpc_context *c, int fd) {
    static const char op[] = "take";
    if (c == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: context is NULL", op);
    int status = hpc_group_usable(&c->group, op);
    if (status != HPC_OK) return status;
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: fd is %d: %s", op, fd, strerror(errno));
    status = hpc_control_take(c->control, fd);
    if (status == HPC_OK) return HPC_OK;
    return hpc_fail(status, op, "%s: rank %d takes no caller: it %s", op, c->group.rank,
                    status == HPC_ERR_TIMEOUT ? "has too many now" : "has ended, or has no door");
}

int hpc_context_lead(hpc_context *c, int rank, const char *ip, int port) {
    static const char op[] = "lead";
    hpc_endpoint at;
    if (c == NULL || ip == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: context or ip is NULL", op);
    int status = hpc_group_check_rank(&c->group, rank, "rank", op);
    if (status == HPC_OK && c->connecting) status = hpc_fail(HPC_ERR_INVALID, op, "%s: connect was called already", op);
    if (status != HPC_OK) return status;
    if (!hpc_net_endpoint(ip, port, &at))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: ip is \"%.64s\" and port %d: give an IP address and a port", op, ip,
                        port);
    hpc_lead *leads = realloc(c->leads, ((size_t)c->n_leads + 1) * sizeof *leads);
    if (leads == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for an address", op);
    c->leads = leads;
    leads[c->n_leads++] = (hpc_lead){rank, at};
    return HPC_OK;
}

void hpc_context_follow_leads(const hpc_context *c, int rank, hpc_control_address *address) {
    hpc_endpoint found[HPC_ENDPOINTS] = {0};
    int n = 0;
    for (int i = 0; i < c->n_leads && n < HPC_ENDPOINTS; i++)
        if (c->leads[i].rank == rank) found[n++] = c->leads[i].at;
    if (n > 0 && address->door) memcpy(address->endpoints, found, sizeof found);
}
