//! The rows with Forebay.

use std::path::Path;
use std::sync::Arc;

use forebay::{Class, Config, Engine, File, Open};

use super::job::WalkWork;
use super::lane::{Lane, Phase, Tally, count_wakes};
use super::tree::{Lookup, LookupError, Next, search};

/// Starts an engine and opens the file, if there is one, once for each shard.
///
/// # Errors
/// Errors of the engine.
pub(super) fn open(path: Option<&Path>, work: &WalkWork) -> anyhow::Result<(Engine, Vec<File>)> {
    let shards = work.shards();
    let engine = Engine::start(Config::default().shards(shards))?;
    let files = path
        .into_iter()
        .flat_map(|path| (0..shards).map(move |shard| (path, shard)))
        .map(|(path, shard)| Ok(engine.open(path, Open::read().shard(shard)).wait()?))
        .collect::<anyhow::Result<Vec<File>>>()?;
    Ok((engine, files))
}

/// Shuts down the engine after the figures were taken: figures of one that does not end well cannot be
/// trusted.
///
/// # Errors
/// The engine lost something.
pub(super) fn close(engine: Engine) -> anyhow::Result<()> {
    let report = engine.close().wait()?;
    anyhow::ensure!(
        report.leaked_operations == 0 && report.lost_shards == 0,
        "the engine lost {} shards and {} operations as it was closed",
        report.lost_shards,
        report.leaked_operations
    );
    Ok(())
}

/// `forebay-walk` and `forebay-walk-tokio`: runs one lane, in any task.
///
/// # Errors
/// A read failed, or a result was wrong.
pub(super) async fn walk(
    work: Arc<WalkWork>,
    file: File,
    lane: usize,
    phase: Arc<Phase>,
) -> anyhow::Result<Tally> {
    let mut lane = Lane::new(&work, lane, &phase)?;
    let node_bytes = work.tree.node_bytes;
    loop {
        let (root, key) = (lane.root(), lane.key());
        let walk = file.walk(root..root + node_bytes, Lookup { key, node_bytes });
        let (value, wakes) = count_wakes(walk.into_future()).await;
        if !lane.completed(value?, wakes)? {
            return Ok(lane.end());
        }
    }
}

/// Descends with a read for each node.
///
/// # Errors
/// Errors of [`walk`].
pub(super) async fn read_by_read(file: &File, node_bytes: u64, root: u64, key: u64) -> anyhow::Result<u64> {
    let mut at = root;
    loop {
        let node = file.read(at..at + node_bytes).await?;
        match search(&node, at, key).ok_or(LookupError::Damaged { position: at })? {
            Next::Child(child) => at = child,
            Next::Found(value) => return Ok(value),
        }
    }
}

/// `forebay-task`: runs one lane as a task of a shard.
///
/// # Errors
/// Errors of [`walk`].
pub(super) async fn task(
    work: Arc<WalkWork>,
    file: File,
    lane: usize,
    phase: Arc<Phase>,
) -> anyhow::Result<Tally> {
    let mut lane = Lane::new(&work, lane, &phase)?;
    let node_bytes = work.tree.node_bytes;
    loop {
        let (value, wakes) = count_wakes(read_by_read(&file, node_bytes, lane.root(), lane.key())).await;
        if !lane.completed(value?, wakes)? {
            return Ok(lane.end());
        }
    }
}

/// Runs `lanes` as tasks of `shard`, with `make` for each.
///
/// # Errors
/// Errors of the lanes, and of a shard that has ended.
pub(super) fn on_shard<Made>(
    engine: &Engine,
    shard: usize,
    lanes: Vec<usize>,
    make: impl Fn(usize) -> Made + Send + 'static,
) -> anyhow::Result<Tally>
where
    Made: Future<Output = anyhow::Result<Tally>> + 'static,
{
    let all = engine.spawn_on_shard(shard, Class::DEFAULT, move || async move {
        let tasks = lanes
            .into_iter()
            .map(|lane| Ok(forebay::shard::spawn(make(lane))?))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut tally = Tally::new()?;
        for task in tasks {
            tally.add(&task.await??)?;
        }
        anyhow::Ok(tally)
    });
    all.wait()?
}
