/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The step of a descent in a table of forebay-kv: from an inner node to the leaf in which a key is, if it is anywhere. The checksum
 * of the leaf is left to the caller, and so is whether the key lies between the leaf's first and last. */
#include "table.h"

static __always_inline u32 table_descent(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	u64 *level = (u64 *)(scratch + FBW_DESCENT_LEVEL), key_len = *(u64 *)(scratch + FBW_DESCENT_KEY_LEN), child;
	u32 records, record;

	*count = FBW_TABLE_DAMAGED;
	if (!belongs(page, at, *(u64 *)(scratch + FBW_DESCENT_TABLE), *level) || key_len > FBW_DESCENT_KEY_MAX)
		return FBW_FAIL;
	if (!*level)
		return FBW_OVER;
	records = records_of(page);
	if (!records)
		return FBW_FAIL;
	record = records_below((const struct fbw_sight *)page, (struct fbw_knowledge *)scratch,
			       FBW_KEY(FBW_DESCENT_KEY, FBW_DESCENT_KEY + (u32)key_len), 1);
	/* What is below the first separator is not in the table. */
	child = child_of(page, record ? record - 1 : 0, records);
	if (!child)
		return FBW_FAIL;
	if (child >> 56 != 1) {
		*count = FBW_TABLE_LARGER;
		return FBW_FAIL;
	}
	*level -= 1;
	next[0] = (u64)(u32)child * FBW_TABLE_UNIT;
	*count = 1;
	return FBW_READ;
}
