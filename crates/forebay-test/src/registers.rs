//! Histories of clients on keys that are registers, and whether one order of all operations explains what they saw.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::Action::{Call, Response};
use todc_utils::linearizability::history::{Action, History as Recorded};
use todc_utils::specifications::Specification;

/// An operation on one key, with its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// What was there; `None` before the reply.
    Get(Option<Option<u64>>),
    /// The new value.
    Put(u64),
    /// The key is deleted.
    Delete,
    /// Expected value, new value, and whether the expected one was there.
    Swap(Option<u64>, u64, Option<bool>),
    /// A change without a reply: expected value if it has one, and new value. It may have happened or not, at any time since.
    Unknown(Option<Option<u64>>, Option<u64>),
}

/// A key: `None` until it is written.
struct Register;

impl Specification for Register {
    type State = Option<u64>;
    type Operation = Op;

    fn init() -> Option<u64> {
        None
    }

    fn apply(op: &Op, state: &Option<u64>) -> (bool, Option<u64>) {
        match *op {
            Op::Get(seen) => (seen == Some(*state), *state),
            Op::Put(value) => (true, Some(value)),
            Op::Delete => (true, None),
            Op::Swap(expected, value, swapped) => {
                let fits = *state == expected;
                (swapped == Some(fits), if fits { Some(value) } else { *state })
            }
            Op::Unknown(expected, value) => {
                let fits = expected.is_none_or(|expected| *state == expected);
                (true, if fits { value } else { *state })
            }
        }
    }
}

/// Calls and replies, each with its process.
type Actions = Vec<(usize, Action<Op>)>;

/// The operations of one round in the order of their calls and replies, by key.
#[derive(Debug, Default)]
pub struct History {
    keys: Mutex<BTreeMap<String, Actions>>,
}

impl History {
    /// Notes a call, before it is sent. A process has one call at a time.
    pub fn call(&self, process: usize, key: &str, op: Op) {
        self.note(process, key, Call(op));
    }

    /// Notes a reply, after its arrival.
    pub fn reply(&self, process: usize, key: &str, op: Op) {
        self.note(process, key, Response(op));
    }

    /// Withdraws the last call of a process, which no node has accepted.
    pub fn take_back(&self, process: usize, key: &str) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(actions) = keys.get_mut(key) else { return };
        if let Some(place) = actions.iter().rposition(|(of, _)| *of == process) {
            actions.remove(place);
        }
    }

    fn note(&self, process: usize, key: &str, action: Action<Op>) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.entry(key.to_owned()).or_default().push((process, action));
    }

    /// Returns the number of operations with a reply, and without.
    pub fn counts(&self) -> (usize, usize) {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let actions = || keys.values().flatten();
        let calls = actions().filter(|(_, action)| matches!(action, Call(_))).count();
        let replies = actions().count() - calls;
        (replies, calls - replies)
    }

    /// Searches for a linearization of the operations of each key, in a time that grows fast with the number of changes without a
    /// reply.
    ///
    /// # Errors
    /// The operations of the first key that is not linearizable.
    pub fn check(&self) -> Result<(), String> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, actions) in keys.iter() {
            if !WGLChecker::<Register>::is_linearizable(Recorded::from_actions(with_ends(actions))) {
                let mut text = format!("no order explains what was seen of {key}:");
                for (process, action) in actions {
                    let _ = write!(text, "\n  client {process:3} {action:?}");
                }
                return Err(text);
            }
        }
        Ok(())
    }
}

/// Ends the calls without a reply: reads are left out, changes end after everything else.
fn with_ends(actions: &[(usize, Action<Op>)]) -> Actions {
    let mut open: BTreeMap<usize, usize> = BTreeMap::new();
    for (place, (process, action)) in actions.iter().enumerate() {
        match action {
            Call(_) => open.insert(*process, place),
            Response(_) => open.remove(process),
        };
    }
    let mut all: Vec<Option<(usize, Action<Op>)>> = actions.iter().cloned().map(Some).collect();
    let mut ends = Vec::new();
    for (process, place) in open {
        let op = match actions[place].1 {
            Call(Op::Put(value)) => Op::Unknown(None, Some(value)),
            Call(Op::Delete) => Op::Unknown(None, None),
            Call(Op::Swap(expected, value, _)) => Op::Unknown(Some(expected), Some(value)),
            _ => {
                all[place] = None;
                continue;
            }
        };
        all[place] = Some((process, Call(op)));
        ends.push((process, Response(op)));
    }
    all.into_iter().flatten().chain(ends).collect()
}

/// Returns a history of one key, in the order of its actions.
#[cfg(test)]
fn of(actions: &[(usize, Action<Op>)]) -> History {
    let history = History::default();
    for (process, action) in actions {
        history.note(*process, "a", action.clone());
    }
    history
}

#[test]
fn histories_that_an_order_explains_pass() {
    let read = |value| Op::Get(Some(value));
    let fine: &[&[(usize, Action<Op>)]] = &[
        &[],
        &[
            (0, Call(Op::Put(1))),
            (0, Response(Op::Put(1))),
            (1, Call(Op::Get(None))),
            (1, Response(read(Some(1)))),
        ],
        // At the same time, either order.
        &[
            (0, Call(Op::Put(1))),
            (1, Call(Op::Get(None))),
            (1, Response(read(None))),
            (2, Call(Op::Get(None))),
            (2, Response(read(Some(1)))),
            (0, Response(Op::Put(1))),
        ],
        // A write without a reply is seen later, or never.
        &[
            (0, Call(Op::Put(1))),
            (1, Call(Op::Get(None))),
            (1, Response(read(None))),
            (1, Call(Op::Get(None))),
            (1, Response(read(Some(1)))),
        ],
        &[(0, Call(Op::Put(1))), (1, Call(Op::Get(None))), (1, Response(read(None)))],
        // So is a delete.
        &[
            (0, Call(Op::Put(1))),
            (0, Response(Op::Put(1))),
            (0, Call(Op::Delete)),
            (1, Call(Op::Get(None))),
            (1, Response(read(Some(1)))),
            (1, Call(Op::Get(None))),
            (1, Response(read(None))),
        ],
        // A swap without a reply, and a read.
        &[
            (0, Call(Op::Swap(None, 4, None))),
            (1, Call(Op::Get(None))),
            (2, Call(Op::Get(None))),
            (2, Response(read(Some(4)))),
        ],
    ];
    for (number, actions) in fine.iter().enumerate() {
        of(actions).check().unwrap_or_else(|why| panic!("{number}: {why}"));
    }
}

#[test]
fn histories_that_no_order_explains_are_found() {
    let read = |value| Op::Get(Some(value));
    let put = |process, value| [(process, Call(Op::Put(value))), (process, Response(Op::Put(value)))];
    let get = |process, value| [(process, Call(Op::Get(None))), (process, Response(read(value)))];
    let swap = |process, from, to, done| {
        [(process, Call(Op::Swap(from, to, None))), (process, Response(Op::Swap(from, to, Some(done))))]
    };
    let delete = |process| [(process, Call(Op::Delete)), (process, Response(Op::Delete))];
    let wrong: [(&str, Actions); 7] = [
        ("a lost write", [put(0, 1), get(1, None)].concat()),
        ("a stale read", [put(0, 1), put(0, 2), get(1, Some(1))].concat()),
        (
            "a read that goes back",
            [vec![(0, Call(Op::Put(1)))], get(1, Some(1)).to_vec(), get(2, None).to_vec()].concat(),
        ),
        (
            "two swaps of one value",
            [put(0, 1), swap(1, Some(1), 2, true), swap(2, Some(1), 3, true)].concat(),
        ),
        ("a swap that failed without a cause", [put(0, 1), swap(1, Some(1), 2, false)].concat()),
        ("a delete that is lost", [put(0, 1), delete(0), get(1, Some(1))].concat()),
        ("a value that nobody wrote", [put(0, 1), get(1, Some(9))].concat()),
    ];
    for (name, actions) in wrong {
        let why = of(&actions).check().expect_err(name);
        assert!(why.contains("no order explains"), "{why}");
    }
}
