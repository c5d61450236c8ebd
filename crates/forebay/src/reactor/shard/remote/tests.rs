use super::fixture::{KEY, request};
use super::*;
use crate::io::op::OpBuffer;
use crate::reactor::shard::remote_list::RemoteList;

fn done(result: u32) -> OpOutcome {
    OpOutcome { result: Ok(result), buffer: OpBuffer::None }
}

fn poll(cell: &RemoteCell) -> Poll<Result<u32, OpFailure>> {
    cell.poll(Waker::noop()).map(|outcome| outcome.result)
}

/// Returns the node's cell and whether its future was dropped.
fn taken(node: NonNull<RemoteNode>) -> (RemotePtr, bool) {
    // SAFETY: the tests pass each node that a cell returned once.
    unsafe { RemoteCell::from_node(node) }
}

#[test]
fn a_request_is_taken_once_and_its_outcome_is_given_once() {
    let cell = request();
    assert!(poll(&cell).is_pending());
    // SAFETY: the cell was never sent, so the caller holds it.
    assert!(unsafe { cell.take_request() }.is_some());
    // SAFETY: as above.
    assert!(unsafe { cell.take_request() }.is_none());
    cell.finish(done(7));
    assert_eq!(poll(&cell), Poll::Ready(Ok(7)));
    assert_eq!(poll(&cell), Poll::Ready(Err(OpFailure::Errno(libc::ECANCELED))), "polled after the end");
}

#[test]
fn a_cancel_gives_out_a_node_unless_one_is_under_way() {
    let cell = RemoteCell::adopt(KEY);
    let node = cell.queue();
    assert!(cell.clone().cancel().is_none(), "the adoption is under way and carries the mark");
    let (same, cancelled) = taken(node);
    assert!(Arc::ptr_eq(&same, &cell) && cancelled);
    assert_eq!(same.key(), Some(KEY));

    let cell = request();
    assert_eq!(cell.key(), None);
    cell.set_key(KEY);
    let node = cell.clone().cancel().unwrap();
    assert!(cell.is_cancelled());
    assert!(taken(node).1);
    assert_eq!(Arc::strong_count(&cell), 1);
}

#[test]
fn a_cancel_after_the_end_says_nothing() {
    let cell = request();
    cell.finish(done(0));
    let kept = Arc::downgrade(&cell);
    assert!(cell.cancel().is_none());
    assert_eq!(kept.strong_count(), 0, "and nobody else keeps the cell");
}

#[test]
fn outcomes_and_cancels_cross_threads() {
    const ROUNDS: u32 = if cfg!(miri) { 10 } else { 2_000 };
    for round in 0..ROUNDS {
        let list = Arc::new(RemoteList::new());
        let cell = request();
        let kept = Arc::downgrade(&cell);
        let shard = {
            let (cell, list) = (cell.clone(), Arc::clone(&list));
            std::thread::spawn(move || {
                cell.finish(done(round));
                drop(cell);
                list.take_all(|node| assert!(taken(node).1));
            })
        };
        let answered = poll(&cell);
        assert!(matches!(answered, Poll::Pending) || answered == Poll::Ready(Ok(round)));
        if let Some(node) = cell.cancel() {
            // SAFETY: `cancel` returns a node that is in no list, with one count of the cell.
            assert!(unsafe { list.push(node) });
        }
        shard.join().unwrap();
        list.take_all(|node| assert!(taken(node).1));
        assert_eq!(kept.strong_count(), 0);
    }
}
