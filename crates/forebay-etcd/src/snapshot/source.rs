//! [`Source`]: a snapshot to restore, of etcd or of this server.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use prost::Message;
use sha2::{Digest, Sha256};

use super::LeaseRecord;
use crate::accounts::Auth;
use crate::bolt::Reader;
use crate::mvcc::{CompactionRevisions, Failure, Import, ImportSummary, KeyRecord};
use crate::proto::authpb::{Role, User};
use crate::proto::etcdserverpb::AlarmMember;
use crate::proto::mvccpb::KeyValue;

/// The checksum that tools put behind the pages.
const SUM_BYTES: u64 = 32;
/// Pages are multiples of it, so it shows whether a file has a checksum.
const SECTOR_BYTES: u64 = 512;
/// Bytes read together for the checksum.
const READ_BYTES: usize = 1 << 20;

/// A snapshot. Reading it blocks the thread: it is for a program that does nothing else meanwhile.
#[derive(Debug)]
pub(crate) struct Source {
    reader: Reader,
    path: PathBuf,
    sum: [u8; SUM_BYTES as usize],
}

fn refused(path: &Path, text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {text}", path.display()))
}

impl Source {
    /// Opens a file, and reads all of it once for its checksum, which must be there and right if `is_sum_checked`.
    ///
    /// # Errors
    /// The file has another format, it is damaged, or it cannot be read.
    pub(crate) fn open(path: &Path, is_sum_checked: bool) -> io::Result<Source> {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let mut file = File::open(path).map_err(failed)?;
        let file_bytes = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let has_sum = file_bytes % SECTOR_BYTES == SUM_BYTES;
        if is_sum_checked && !has_sum {
            return Err(refused(
                path,
                "it has no checksum at its end: it is cut off, or was not written by `snapshot save`; a file that was \
                 copied from etcd's data directory needs --skip-hash-check",
            ));
        }
        let pages_bytes = if has_sum { file_bytes - SUM_BYTES } else { file_bytes };
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let (mut hash, mut part) = (Sha256::new(), vec![0; READ_BYTES]);
        let mut left = pages_bytes;
        while left > 0 {
            let bytes = part.len().min(usize::try_from(left).unwrap_or(READ_BYTES));
            file.read_exact(&mut part[..bytes]).map_err(failed)?;
            hash.update(&part[..bytes]);
            left -= bytes as u64;
        }
        let sum: [u8; SUM_BYTES as usize] = hash.finalize().into();
        if is_sum_checked {
            let mut written = [0; SUM_BYTES as usize];
            file.read_exact(&mut written).map_err(failed)?;
            if sum != written {
                return Err(refused(path, "it is damaged: its contents do not have the checksum at its end"));
            }
        }
        Ok(Source { reader: Reader::open(file, path, pages_bytes)?, path: path.to_path_buf(), sum })
    }

    /// Returns the checksum of the contents, in hexadecimal digits.
    pub(crate) fn sum(&self) -> String {
        self.sum.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn refused(&self, text: &str) -> Failure {
        Failure::Damaged(refused(&self.path, text).to_string())
    }

    fn failed(&self, error: &io::Error) -> Failure {
        // It names the file.
        Failure::Damaged(error.to_string())
    }

    /// Fills a state with everything but members. The revision is raised by `bump`.
    ///
    /// # Errors
    /// Damage, something that this server cannot keep, and those of the store.
    pub(crate) async fn import(&self, mut import: Import<'_>, bump: u64) -> Result<ImportSummary, Failure> {
        let failed = |error: io::Error| self.failed(&error);
        let Some(mut keys) = self.reader.bucket("key").map_err(failed)? else {
            return Err(self.refused("it has no bucket of keys: it is of something else than etcd"));
        };
        while let Some((key, value)) = keys.next().map_err(failed)? {
            let record = key_record(key, value);
            let record =
                record.ok_or_else(|| self.refused(&format!("{key:02x?} is not a record of a key")))?;
            import.add(record).await.map_err(|failure| self.named(failure))?;
        }
        if let Some(mut leases) = self.reader.bucket("lease").map_err(failed)? {
            while let Some((key, value)) = leases.next().map_err(failed)? {
                let lease = LeaseRecord::decode(value).ok().filter(|lease| lease.id.to_be_bytes() == key);
                let lease = lease.ok_or_else(|| self.refused(&format!("{key:02x?} is not a lease")))?;
                import.lease(lease.id, lease.granted_s).await.map_err(|failure| self.named(failure))?;
            }
        }
        if let Some(mut alarms) = self.reader.bucket("alarm").map_err(failed)? {
            while let Some((key, _)) = alarms.next().map_err(failed)? {
                let alarm = AlarmMember::decode(key).ok();
                let alarm = alarm.ok_or_else(|| self.refused(&format!("{key:02x?} is not an alarm")))?;
                import.alarm(alarm.member_id, alarm.alarm).await?;
            }
        }
        let auth = self.auth()?;
        if !auth.is_untouched() {
            import.auth(&auth).await.map_err(|failure| self.named(failure))?;
        }
        let compacted = CompactionRevisions {
            scheduled: self.meta_revision("scheduledCompactRev")?,
            finished: self.meta_revision("finishedCompactRev")?,
        };
        import.finish(compacted, bump).await.map_err(|failure| self.named(failure))
    }

    /// Puts the file's name before a failure.
    fn named(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Damaged(text) => self.refused(&text),
            other => other,
        }
    }

    /// Returns users and roles.
    fn auth(&self) -> Result<Auth, Failure> {
        let failed = |error: io::Error| self.failed(&error);
        let (mut is_enabled, mut revision) = (false, 0);
        if let Some(mut auth) = self.reader.bucket("auth").map_err(failed)? {
            while let Some((key, value)) = auth.next().map_err(failed)? {
                match key {
                    b"authEnabled" => is_enabled = value == [1],
                    b"authRevision" => {
                        let number = value.try_into().map(u64::from_be_bytes);
                        revision = number.map_err(|_| self.refused("its authRevision is not a revision"))?;
                    }
                    _ => {}
                }
            }
        }
        let users = self.records::<User>("authUsers", |user| &user.name)?;
        let roles = self.records::<Role>("authRoles", |role| &role.name)?;
        Auth::of(is_enabled, revision, users, roles).map_err(|text| self.refused(&text))
    }

    /// Returns the records of a bucket, whose keys are their names.
    fn records<T: Message + Default>(&self, bucket: &str, name: fn(&T) -> &[u8]) -> Result<Vec<T>, Failure> {
        let failed = |error: io::Error| self.failed(&error);
        let Some(mut found) = self.reader.bucket(bucket).map_err(failed)? else { return Ok(Vec::new()) };
        let mut records = Vec::new();
        while let Some((key, value)) = found.next().map_err(failed)? {
            let record = T::decode(value).ok().filter(|record| name(record) == key);
            let record =
                record.ok_or_else(|| self.refused(&format!("{key:02x?} is not a record of {bucket}")))?;
            records.push(record);
        }
        Ok(records)
    }

    fn meta_revision(&self, name: &str) -> Result<Option<i64>, Failure> {
        let failed = |error: io::Error| self.failed(&error);
        let Some(mut meta) = self.reader.bucket("meta").map_err(failed)? else { return Ok(None) };
        while let Some((key, value)) = meta.next().map_err(failed)? {
            if key == name.as_bytes() {
                let revision = revision(value).filter(|revision| !revision.2);
                let revision =
                    revision.ok_or_else(|| self.refused(&format!("its {name} is not a revision")))?;
                return Ok(Some(revision.0));
            }
        }
        Ok(None)
    }
}

/// Splits the key of a revision: main and sub revision, and whether it is of a delete.
fn revision(key: &[u8]) -> Option<(i64, u64, bool)> {
    let (main, rest) = key.split_at_checked(8)?;
    let (sub, rest) = rest.strip_prefix(b"_")?.split_at_checked(8)?;
    let is_delete = match rest {
        [] => false,
        b"t" => true,
        _ => return None,
    };
    let (main, sub) = (i64::from_be_bytes(main.try_into().ok()?), u64::from_be_bytes(sub.try_into().ok()?));
    (main >= 0).then_some((main, sub, is_delete))
}

fn key_record(key: &[u8], value: &[u8]) -> Option<KeyRecord> {
    let (main, sub, is_delete) = revision(key)?;
    Some(KeyRecord { main, sub: u32::try_from(sub).ok()?, is_delete, pair: KeyValue::decode(value).ok()? })
}
