/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The nodes of the tree of `forebay measure walk`, read with every place checked. */
#ifndef FOREBAY_TREE_H
#define FOREBAY_TREE_H

#define RECORDS_MAX 254 /* in a node of 4,096 bytes */

static __always_inline u64 mix(u64 word)
{
	word += 0x9e3779b97f4a7c15ULL;
	word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
	word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
	return word ^ (word >> 31);
}

static __always_inline u64 word_at(const u8 *page, u32 at)
{
	return *(const u64 *)(page + at);
}

/* The record's two words. `record` is below RECORDS_MAX. */
static __always_inline u64 separator(const u8 *page, u32 record)
{
	return word_at(page, FBW_TREE_RECORDS_AT + record * FBW_TREE_RECORD_BYTES);
}

static __always_inline u64 leads_to(const u8 *page, u32 record)
{
	return word_at(page, FBW_TREE_RECORDS_AT + record * FBW_TREE_RECORD_BYTES + 8);
}

static __always_inline u32 level_of(const u8 *page)
{
	return *(const u16 *)(page + FBW_TREE_LEVEL_AT);
}

/* How many records the node has, or 0 if it is not the node that belongs to `at` and is of that level: what an inner node leads to is
 * no value, whatever a damaged level says. */
static __always_inline u32 records_of(const u8 *page, u64 at, u64 level, u32 page_bytes)
{
	u32 count = *(const u16 *)(page + FBW_TREE_COUNT_AT);

	if (*(const u32 *)(page + FBW_TREE_MAGIC_AT) != FBW_TREE_MAGIC || word_at(page, FBW_TREE_POSITION_AT) != at)
		return 0;
	if (level_of(page) != level)
		return 0;
	if (count > RECORDS_MAX || FBW_TREE_RECORDS_AT + count * FBW_TREE_RECORD_BYTES > page_bytes)
		return 0;
	return count;
}

/* 1 if `a` is not above `b`, else 0, without a branch: a branch would double the verifier's work with every halving. */
static __always_inline u64 at_most(u64 a, u64 b)
{
	u64 borrow = (~b & a) | (~(a ^ b) & (b - a));

	asm volatile("" : "+r"(borrow));
	return (borrow >> 63) ^ 1;
}

/* How many of the `count` records, RECORDS_MAX at most, have a separator that is not above `wanted`. What lies behind the
 * records is looked at as well, and does not count. */
static __always_inline u32 not_above(const u8 *page, u32 count, u64 wanted)
{
	u64 found = 0;
	s32 bit;

#pragma unroll
	for (bit = 7; bit >= 0; bit--) {
		u64 record = found + (1 << bit) - 1;

		found += (at_most(record + 1, count) & at_most(separator(page, record), wanted)) << bit;
	}
	return found;
}

/* The record that leads to where `key` is, as far as this level is concerned. The first one is for everything below. */
static __always_inline u32 record_for(const u8 *page, u32 count, u64 key)
{
	u32 low = not_above(page, count, mix(key + level_of(page) + 1));

	return low ? low - 1 : 0;
}

#endif
