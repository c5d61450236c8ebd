// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/* A file becomes a list of pieces on its device, and stays as it is while it is bound.
 *
 * The file is pinned as swapon pins one: with S_SWAPFILE set, the VFS and the file systems refuse writes, new shared
 * mappings to write through, cutting, punching, reflinks and the exchange of extents with ETXTBSY, and removing or renaming
 * it with EPERM; making it longer is allowed and harmless. A mapping that is there already is seen in the mappings' count. Where the pieces lie is asked of
 * the file system, block by block; what user space could say about it is not believed. */
#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/buffer_head.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include "compat.h"
#include "walk.h"

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif

/* 48 MiB of pieces; a file in so many is slow however it is read. */
#define EXTENTS_MAX (1U << 21)

/* A file that one session or several have pinned. */
struct fbw_pin {
	struct list_head all;
	struct inode *inode;
	u32 count;
};

static LIST_HEAD(pins);
static DEFINE_MUTEX(pins_lock);

static int pin_new(struct inode *inode, u32 *refused)
{
	int error = 0;

	/* Fails if there is a shared mapping to write through, and keeps out others until the flag is set, and after. */
	if (mapping_deny_writable(inode->i_mapping)) {
		*refused = FBW_REFUSED_MAPPED;
		return -ETXTBSY;
	}
	inode_lock(inode);
	if (IS_SWAPFILE(inode)) {
		*refused = FBW_REFUSED_SWAP;
		error = -EBUSY;
	} else {
		inode->i_flags |= S_SWAPFILE;
	}
	inode_unlock(inode);
	if (error)
		mapping_allow_writable(inode->i_mapping);
	return error;
}

static int pin_file(struct fbw_session *session, struct inode *inode, u32 *refused)
{
	struct fbw_pin *pin;
	int error = 0;

	mutex_lock(&pins_lock);
	list_for_each_entry(pin, &pins, all) {
		if (pin->inode == inode) {
			pin->count++;
			session->pin = pin;
			goto out;
		}
	}
	pin = kzalloc(sizeof(*pin), GFP_KERNEL_ACCOUNT);
	if (!pin) {
		error = -ENOMEM;
		goto out;
	}
	error = pin_new(inode, refused);
	if (error) {
		kfree(pin);
		goto out;
	}
	pin->inode = inode;
	pin->count = 1;
	list_add(&pin->all, &pins);
	session->pin = pin;
out:
	mutex_unlock(&pins_lock);
	return error;
}

static void unpin_file(struct fbw_session *session)
{
	struct fbw_pin *pin = session->pin;

	if (!pin)
		return;
	session->pin = NULL;
	mutex_lock(&pins_lock);
	if (!--pin->count) {
		list_del(&pin->all);
		inode_lock(pin->inode);
		pin->inode->i_flags &= ~S_SWAPFILE;
		inode_unlock(pin->inode);
		mapping_allow_writable(pin->inode->i_mapping);
		kfree(pin);
	}
	mutex_unlock(&pins_lock);
}

/* What cannot be bound, as far as the inode says so. */
static u32 refusal(struct file *file, struct inode *inode)
{
	struct file_kattr attributes = {};

	if (inode->i_sb->s_magic != EXT4_SUPER_MAGIC && inode->i_sb->s_magic != XFS_SUPER_MAGIC)
		return FBW_REFUSED_FILE_SYSTEM;
	/* Before the next one: XFS has no bmap() for such a file. */
	if (IS_DAX(inode))
		return FBW_REFUSED_DAX;
	if (!inode->i_sb->s_bdev || !inode->i_mapping->a_ops->bmap)
		return FBW_REFUSED_FILE_SYSTEM;
	if (IS_ENCRYPTED(inode))
		return FBW_REFUSED_ENCRYPTED;
	if (IS_VERITY(inode))
		return FBW_REFUSED_VERITY;
	if (!vfs_fileattr_get(file->f_path.dentry, &attributes) && attributes.flags & FS_INLINE_DATA_FL)
		return FBW_REFUSED_INLINE;
	return 0;
}

/* Room for twice as many. */
static int grow(struct fbw_extent **extents, u32 *room)
{
	u32 wanted = *room ? *room * 2 : 64;
	struct fbw_extent *larger = kvmalloc_array(wanted, sizeof(*larger), GFP_KERNEL_ACCOUNT);

	if (!larger)
		return -ENOMEM;
	if (*room)
		memcpy(larger, *extents, *room * sizeof(*larger));
	kvfree(*extents);
	*extents = larger;
	*room = wanted;
	return 0;
}

/* Asks for every block. The inode must not be locked: the file system locks what it has to. */
static int map_extents(struct fbw_session *session, struct inode *inode, u32 *refused)
{
	u32 bits = inode->i_blkbits, count = 0, room = 0;
	u64 block, blocks = (i_size_read(inode) + (1ULL << bits) - 1) >> bits;
	struct fbw_extent *extents = NULL, *last = NULL;
	int error = 0;

	for (block = 0; block < blocks; block++) {
		sector_t place = block;

		error = bmap(inode, &place);
		if (!error && !place) {
			*refused = FBW_REFUSED_HOLES;
			error = -ENODATA;
		}
		if (!error && fatal_signal_pending(current))
			error = -EINTR;
		if (error)
			goto failed;
		place <<= bits - SECTOR_SHIFT;
		if (last && last->sector + (last->bytes >> SECTOR_SHIFT) == place) {
			last->bytes += 1ULL << bits;
			cond_resched();
			continue;
		}
		if (count == EXTENTS_MAX) {
			*refused = FBW_REFUSED_EXTENTS;
			error = -EFBIG;
			goto failed;
		}
		if (count == room) {
			error = grow(&extents, &room);
			if (error)
				goto failed;
		}
		last = &extents[count++];
		*last = (struct fbw_extent){ .at = block << bits, .bytes = 1ULL << bits, .sector = place };
	}
	session->extents = extents;
	session->extents_count = count;
	return 0;
failed:
	kvfree(extents);
	return error;
}

static int bind_regular(struct fbw_session *session, struct file *file, struct inode *inode, u32 *refused)
{
	int error;

	*refused = refusal(file, inode);
	if (*refused)
		return -EOPNOTSUPP;
	if (!inode_owner_or_capable(file_mnt_idmap(file), inode)) {
		*refused = FBW_REFUSED_OWNER;
		return -EPERM;
	}
	session->bdev = inode->i_sb->s_bdev;
	error = pin_file(session, inode, refused);
	if (error)
		return error;
	/* What was written before has to be where it will stay, before anybody asks where. */
	inode_dio_wait(inode);
	error = vfs_fsync(file, 0);
	if (!error)
		error = map_extents(session, inode, refused);
	if (error)
		unpin_file(session);
	return error;
}

/* A block device is one piece. What others write to it past its page cache is seen, what lies in the cache is not. */
static int bind_device(struct fbw_session *session, struct file *file, struct inode *inode)
{
	int error;

	session->bdev = file_bdev(file);
	error = sync_blockdev(session->bdev);
	if (error)
		return error;
	session->extents = kvmalloc(sizeof(*session->extents), GFP_KERNEL_ACCOUNT);
	if (!session->extents)
		return -ENOMEM;
	session->extents[0] = (struct fbw_extent){ .bytes = i_size_read(inode) };
	session->extents_count = 1;
	return 0;
}

/* Binds the session to the file. With an errno, `refused` names the cause if it lies in the file. */
int fbw_bind_file(struct fbw_session *session, int fd, u32 *refused)
{
	struct file *file = fget(fd);
	struct inode *inode;
	int error;

	if (!file)
		return -EBADF;
	inode = file->f_mapping->host;
	if (!(file->f_mode & FMODE_READ)) {
		*refused = FBW_REFUSED_MODE;
		error = -EACCES;
	} else if (S_ISREG(file_inode(file)->i_mode) && inode == file_inode(file)) {
		error = bind_regular(session, file, inode, refused);
	} else if (S_ISBLK(file_inode(file)->i_mode)) {
		error = bind_device(session, file, inode);
	} else {
		*refused = S_ISREG(file_inode(file)->i_mode) ? FBW_REFUSED_FILE_SYSTEM : FBW_REFUSED_KIND;
		error = -EOPNOTSUPP;
	}
	if (error)
		goto failed;
	session->grain = bdev_logical_block_size(session->bdev);
	if (session->page_bytes < session->grain) {
		*refused = FBW_REFUSED_BLOCK;
		error = -EINVAL;
		unpin_file(session);
		goto failed;
	}
	session->is_direct = file->f_flags & O_DIRECT;
	/* A device on top of others is waited for: it takes a read that must not wait (REQ_NOWAIT, as polling needs it) only if
	 * each of its targets does, whatever it says about polling; and of its reads each has to be polled for by itself. */
	session->is_pollable = queue_is_mq(bdev_get_queue(session->bdev)) &&
			       bdev_get_queue(session->bdev)->limits.features & BLK_FEAT_POLL;
	session->inode = inode;
	session->file = file;
	return 0;
failed:
	kvfree(session->extents);
	session->extents = NULL;
	session->extents_count = 0;
	fput(file);
	return error;
}

/* Nobody looks at the extents any more, and no read is in flight. */
void fbw_unbind_file(struct fbw_session *session)
{
	if (!session->file)
		return;
	unpin_file(session);
	kvfree(session->extents);
	session->extents = NULL;
	session->extents_count = 0;
	fput(session->file);
	session->file = NULL;
}
