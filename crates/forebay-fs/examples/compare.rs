//! The same work by `tokio::fs` and by this crate, in turn: `cargo run --release -p forebay-fs --example compare [DIRECTORY]
//! [ROUNDS]`. Prints microseconds a call, the medians of the rounds, and the ratio of both. Cold rows drop the file from the page
//! cache before.

use std::future::Future;
use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Instant;

use futures::future::{join_all, try_join_all};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

const FILE_BYTES: u64 = 256 << 20;
const FILES: u64 = 1_000;
const PAGE: u64 = 4096;
const READS: u64 = 2_000;
const DEPTH: u64 = 32;

/// Returns the offset of the n-th read of a page, anywhere in the file.
fn offset(n: u64) -> u64 {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (FILE_BYTES / PAGE) * PAGE
}

/// Drops a file from the page cache.
fn forget(path: &Path) -> io::Result<()> {
    let file = std::fs::File::open(path)?;
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

/// Returns the microseconds that each of `calls` took.
async fn timed(calls: u64, work: impl Future<Output = io::Result<()>>) -> io::Result<f64> {
    let begin = Instant::now();
    work.await?;
    Ok(begin.elapsed().as_secs_f64() * 1e6 / calls as f64)
}

macro_rules! rows {
    ($name:ident, $fs:ident $(:: $module:ident)?) => {
        async fn $name(dir: &Path) -> io::Result<Vec<(&'static str, f64)>> {
            use $fs$(::$module)? as fs;

            let large = dir.join("large");
            let small = |n: u64| -> PathBuf { dir.join(format!("small {}", n % FILES)) };
            let mut rows = Vec::new();

            let mut page = vec![0; PAGE as usize];
            let mut file = fs::File::open(&large).await?;
            file.read_exact(&mut page).await?;
            let warm = timed(READS, async {
                for _ in 0..READS {
                    file.seek(SeekFrom::Start(0)).await?;
                    file.read_exact(&mut page).await?;
                }
                Ok(())
            });
            rows.push(("a lone warm read of 4 KiB", warm.await?));

            forget(&large)?;
            let readers = (0..DEPTH).map(|reader| {
                let large = &large;
                async move {
                    let mut file = fs::File::open(large).await?;
                    let mut page = vec![0; PAGE as usize];
                    for n in 0..READS / DEPTH {
                        file.seek(SeekFrom::Start(offset(n * DEPTH + reader))).await?;
                        file.read_exact(&mut page).await?;
                    }
                    io::Result::Ok(())
                }
            });
            let cold = timed(READS, async { try_join_all(readers).await.map(drop) });
            rows.push(("cold reads of 4 KiB at depth 32", cold.await?));

            forget(&large)?;
            let mut file = fs::File::open(&large).await?;
            let mut piece = vec![0; 1 << 20];
            let pass = timed(FILE_BYTES >> 20, async {
                while file.read(&mut piece).await? > 0 {}
                Ok(())
            });
            rows.push(("a cold pass, for each MiB", pass.await?));

            let whole = timed(READS, async {
                for n in 0..READS {
                    fs::read(small(n)).await?;
                }
                Ok(())
            });
            rows.push(("a whole file of 4 KiB", whole.await?));

            let metadata = timed(READS, async {
                let all = join_all((0..READS).map(|n| fs::metadata(small(n)))).await;
                all.into_iter().try_for_each(|found| found.map(drop))
            });
            rows.push(("metadata, all at once", metadata.await?));

            let mut file = fs::File::create(dir.join("written")).await?;
            let writes = timed(READS, async {
                for _ in 0..READS {
                    file.write_all(&[7; 100]).await?;
                    file.flush().await?;
                }
                Ok(())
            });
            rows.push(("a write of 100 bytes and its flush", writes.await?));
            Ok(rows)
        }
    };
}

rows!(of_tokio, tokio::fs);
rows!(of_this_crate, forebay_fs);

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let place = arguments.next().map_or_else(|| PathBuf::from("."), PathBuf::from);
    let rounds: usize = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(5);
    let dir = tempfile::tempdir_in(place)?;
    std::fs::write(dir.path().join("large"), vec![7; FILE_BYTES as usize])?;
    for n in 0..FILES {
        std::fs::write(dir.path().join(format!("small {n}")), [7; PAGE as usize])?;
    }
    let (mut tokio, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        tokio.push(of_tokio(dir.path()).await?);
        ours.push(of_this_crate(dir.path()).await?);
    }
    println!("{:<36} {:>12} {:>12} {:>8}", "us a call", "tokio::fs", "forebay-fs", "ratio");
    for row in 0..tokio[0].len() {
        let column = |all: &[Vec<(&'static str, f64)>]| median(all.iter().map(|rows| rows[row].1).collect());
        let (of_tokio, of_ours) = (column(&tokio), column(&ours));
        println!("{:<36} {of_tokio:>12.2} {of_ours:>12.2} {:>8.2}", tokio[0][row].0, of_ours / of_tokio);
    }
    Ok(())
}
