//! The file: a hash table of keys and values of eight bytes.

use super::table::bucket_of;

/// Records of a page.
const RECORDS: usize = 255;

/// Returns a table of these records. The first pages of the buckets are in order at the file's start, the pages that they lead to
/// behind them.
pub(crate) fn table_of(records: impl Iterator<Item = (u64, u64)>, buckets: u64) -> Vec<u8> {
    let mut contents = vec![Vec::new(); buckets as usize];
    for (key, value) in records {
        contents[bucket_of(key, buckets) as usize].push((key, value));
    }
    let mut file = vec![0; contents.len() * 4096];
    for (bucket, records) in contents.iter().enumerate() {
        let mut at = bucket * 4096;
        let pages = records.chunks(RECORDS).count().max(1);
        for number in 0..pages {
            let of_page = records.chunks(RECORDS).nth(number).unwrap_or_default();
            let next = if number + 1 < pages { file.len() } else { 0 };
            put(&mut file, at, next as u64);
            put(&mut file, at + 8, bucket as u64 | (of_page.len() as u64) << 32);
            for (place, (key, value)) in of_page.iter().enumerate() {
                put(&mut file, at + 16 + place * 16, *key);
                put(&mut file, at + 24 + place * 16, *value);
            }
            if next != 0 {
                file.resize(next + 4096, 0);
                at = next;
            }
        }
    }
    file
}

fn put(file: &mut [u8], at: usize, word: u64) {
    file[at..at + 8].copy_from_slice(&word.to_le_bytes());
}
