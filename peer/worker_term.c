/* A newer term: the coordinator died and was started again (design 7). What belongs to the step under way and is not
 * committed is dropped: leases, reduces under way, the device's local sums; the new term leases it all anew. Plan,
 * state and version stay, and so do sums that are whole: their commit may be written and not told yet, and comes again.
 * See worker_impl.h. */
#include "peer/worker_impl.h"

void worker_new_term(struct worker *w)
{
    for (uint32_t i = 0; w->reduces && i < w->groups.n; i++)
        if (w->reduces[i] && !reduce_finished(w->reduces[i]))
            w->reduces[i] = reduce_free(w->reduces[i]);
    lease_queue_clear(&w->leases);
    worker_free_slots(w);
    w->step_leases = 0;
    if (w->phase >= WORKER_READY)
        effects_task(&w->update->fx, task_new(TASK_FORGET)); /* after what the device has begun */
    worker_heartbeat(w);                                     /* this is what it waits for */
}
