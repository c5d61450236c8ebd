//! Steps of compactions, and of the walk over older values, which continue without requests of clients: the leader proposes entries
//! for them.

use std::time::Duration;

use tokio::time::Instant;

use super::{Context, stopped};
use crate::proto::peer::Clean;
use crate::proto::peer::command::Change;
use crate::refusal::Refusal;

/// Pause between two steps. After a longer step the pause is as long as the step, so that requests have at least half of the time.
const PAUSE: Duration = Duration::from_millis(10);
/// Until a step that failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Proposes steps while removals are due and this member leads, until the server ends.
pub(crate) async fn run(context: Context) {
    let (mut leadership, mut stopping) = (context.node.leadership(), context.stopping.clone());
    let mut cleaning = context.followers.cleaning.subscribe();
    loop {
        let now = *leadership.borrow_and_update();
        let is_due = now.is_own && cleaning.borrow_and_update().is_unfinished;
        tokio::select! {
            () = stopped(&mut stopping) => return,
            changed = leadership.changed() => if changed.is_err() { return },
            changed = cleaning.changed(), if !is_due => if changed.is_err() { return },
            () = step(&context, now.term), if is_due => {}
        }
    }
}

/// Makes a step, and the pause after it.
async fn step(context: &Context, term: u64) {
    let begun = Instant::now();
    let pause = match context.change_leading(term, Change::Clean(Clean {})).await {
        Ok(_) => begun.elapsed().max(PAUSE),
        // As any entry, one that this alarm refuses makes a small step.
        Err(error) if error.message() == Refusal::Corrupt.text() => begun.elapsed().max(PAUSE),
        Err(error) => {
            tracing::info!(%error, "history is not tidied yet; it is tried again");
            AGAIN
        }
    };
    tokio::time::sleep(pause).await;
}
