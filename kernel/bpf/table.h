/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The nodes of forebay-kv's tables, read with every place masked into the page. What a node says is believed only where it can be
 * checked. */
#ifndef FOREBAY_TABLE_H
#define FOREBAY_TABLE_H

static __always_inline u32 short_at(const u8 *page, u32 at)
{
	return *(const u16 *)(page + (at & (FBW_TABLE_UNIT - 1)));
}

/* Eight bytes as a number that is greater where they stand later in the order of keys. */
static __always_inline u64 word_of(const u8 *bytes)
{
	return __builtin_bswap64(*(const u64 *)bytes);
}

/* What a step may look at of a page and of its walk, as types of known sizes. */
struct fbw_sight {
	u8 bytes[2 * FBW_TABLE_UNIT];
};
struct fbw_knowledge {
	u8 bytes[FBW_SCRATCH_BYTES];
};

/* In the loop a function of its own, which the verifier looks at once and not again for every way in which a search comes
 * to a comparison: it would give up otherwise. What such a function is given it may write to, as the verifier sees it, so not in the
 * module, whose pages may only be read. */
#ifdef FBW_MODULE
#define FBW_APART static __always_inline
#else
#define FBW_APART __attribute__((noinline))
#endif
/* Older headers do not have it. */
#ifndef __arg_nonnull
#define __arg_nonnull __attribute__((btf_decl_tag("arg:nonnull")))
#endif

/* A key in the scratch, from one place to another, as one number. */
#define FBW_KEY(from, to) ((from) | (to) << 16)

/* Whether the page's `len` bytes from `at` on are above the key's: 1 above, 0 the same, -1 below. Eight bytes at a time: a page
 * has bytes behind it that may be looked at, and near the scratch's end its last eight are shifted. */
FBW_APART s32 compare(const struct fbw_sight *page __arg_nonnull, u32 at, u32 len, const struct fbw_knowledge *scratch __arg_nonnull,
		      u32 key)
{
	u32 from = key & 0xffff, to = key >> 16, rest = to > from ? to - from : 0, common = len < rest ? len : rest;
	struct bpf_iter_num it;
	s32 order = 0;
	int *i;

	bpf_iter_num_new(&it, 0, FBW_DESCENT_KEY_MAX / 8 + 1);
	while ((i = bpf_iter_num_next(&it))) {
		u32 n = *i * 8, place = (from + n) & (FBW_SCRATCH_BYTES - 1), behind = 0, unused = 0;
		u64 one, other;

		if (n >= common) {
			/* The longer one is above. */
			order = len > rest ? 1 : len < rest ? -1 : 0;
			break;
		}
		if (common - n < 8)
			unused = (8 - (common - n)) * 8;
		if (place > FBW_SCRATCH_BYTES - 8) {
			behind = (place - (FBW_SCRATCH_BYTES - 8)) * 8;
			place = FBW_SCRATCH_BYTES - 8;
		}
		one = word_of(page->bytes + ((at + n) & (FBW_TABLE_UNIT - 1))) >> unused;
		other = word_of(scratch->bytes + place) << behind >> unused;
		if (one != other) {
			order = one > other ? 1 : -1;
			break;
		}
	}
	bpf_iter_num_destroy(&it);
	return order;
}

/* Of the node's keys, which all begin with what stands behind the slots, how many are below the key, and with `limit` 1 the same as
 * it, too. The node was checked. What is left of the search lies in the scratch: of numbers in memory the verifier knows nothing, so
 * that it need not look at one halving after the other. */
FBW_APART u32 records_below(const struct fbw_sight *page __arg_nonnull, struct fbw_knowledge *scratch __arg_nonnull, u32 key, s32 limit)
{
	u32 count = short_at(page->bytes, FBW_TABLE_COUNT_AT), end = short_at(page->bytes, FBW_TABLE_END_AT);
	u32 first = short_at(page->bytes, FBW_TABLE_SLOTS_AT), prefix_at = FBW_TABLE_SLOTS_AT + count * FBW_TABLE_SLOT_BYTES;
	u32 prefix = first > prefix_at ? first - prefix_at : 0, from = key & 0xffff, to = key >> 16;
	volatile u32 *low = (u32 *)(scratch->bytes + FBW_SEARCH_LOW), *high = (u32 *)(scratch->bytes + FBW_SEARCH_HIGH);
	struct bpf_iter_num it;
	s32 order;
	int *i;

	order = compare(page, prefix_at, prefix, scratch, FBW_KEY(from, from + prefix < to ? from + prefix : to));
	if (order)
		return order > 0 ? 0 : count;
	key = FBW_KEY(from + prefix, to);
	*low = 0;
	*high = count;
	bpf_iter_num_new(&it, 0, 12);
	while ((i = bpf_iter_num_next(&it))) {
		u32 least = *low, most = *high, middle = (least + most) / 2, begin, len;
		u32 slot = FBW_TABLE_SLOTS_AT + middle * FBW_TABLE_SLOT_BYTES;

		if (least >= most)
			break;
		begin = short_at(page->bytes, slot);
		len = short_at(page->bytes, slot + 2) & ~FBW_TABLE_TAGGED;
		if (begin < first || begin + len > end)
			len = 0;
		if (compare(page, begin, len, scratch, key) < limit)
			*low = middle + 1;
		else
			*high = middle;
	}
	bpf_iter_num_destroy(&it);
	return *low;
}

/* Whether this is the node that belongs at `at`, of one unit. */
static __always_inline int belongs(const u8 *page, u64 at, u64 table, u64 level)
{
	return *(const u32 *)(page + FBW_TABLE_TABLE_AT) == table && *(const u32 *)(page + FBW_TABLE_POSITION_AT) == at / FBW_TABLE_UNIT &&
	       page[FBW_TABLE_LEVEL_AT] == level && page[FBW_TABLE_UNITS_AT] == 1;
}

/* How many records a node has, or 0 if its places cannot be right. */
static __always_inline u32 records_of(const u8 *page)
{
	u32 records = short_at(page, FBW_TABLE_COUNT_AT), end = short_at(page, FBW_TABLE_END_AT);
	u32 first = short_at(page, FBW_TABLE_SLOTS_AT);

	return end > FBW_TABLE_UNIT || first > end || first < FBW_TABLE_SLOTS_AT + records * FBW_TABLE_SLOT_BYTES ? 0 : records;
}

/* The word of a record's child, or 0 if a place cannot be right. */
static __always_inline u64 child_of(const u8 *page, u32 record, u32 records)
{
	u32 slot = FBW_TABLE_SLOTS_AT + record * FBW_TABLE_SLOT_BYTES, begin = short_at(page, slot), len = short_at(page, slot + 2);
	u32 end = short_at(page, FBW_TABLE_END_AT), behind = record + 1 < records ? short_at(page, slot + FBW_TABLE_SLOT_BYTES) : end;
	u64 child;

	if (begin < short_at(page, FBW_TABLE_SLOTS_AT) || len & FBW_TABLE_TAGGED || begin + len + 8 != behind || behind > end)
		return 0;
	child = *(const u64 *)(page + ((begin + len) & (FBW_TABLE_UNIT - 1)));
	/* A position of 32 bits that is not 0, and 1 to 9 units. */
	return !(u32)child || (child << 8) >> 40 || child >> 56 < 1 || child >> 56 > 9 ? 0 : child;
}

#endif
