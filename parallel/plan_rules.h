/* Inside plan*.c only: the rules of a plan without those about keys, for plans whose keys nobody has filled in yet. */
#ifndef SHOAL_PARALLEL_PLAN_RULES_H
#define SHOAL_PARALLEL_PLAN_RULES_H

#include "parallel/plan.h"

/* plan_validate, but peers may have equal keys. -E_INVAL with the rule and the place. */
int plan_check_form(const struct plan *p, uint32_t n_units, struct reason *why);

#endif
