//! Waiting for all agents at once, while notifying them that the controller is alive.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::super::super::start_barrier::monotonic_ns;
use super::super::ALIVE_EVERY;
use super::super::clock::{Offset, RoundTrip};
use super::super::message::{FromAgent, ToAgent};
use super::{ANSWER_WITHIN, Fleet, Host};

/// Requests for each host's clock before each start.
const QUESTIONS: u64 = 8;

impl Fleet {
    /// Reads all clocks at once. Offsets of a minute ago would be off by the difference of the crystals.
    pub(super) fn ask_clocks(&mut self) -> anyhow::Result<()> {
        let mut trips = vec![Vec::new(); self.hosts.len()];
        for number in 0..QUESTIONS {
            let mut sent = Vec::with_capacity(self.hosts.len());
            for host in &mut self.hosts {
                sent.push(monotonic_ns());
                host.tell(&ToAgent::Clock { number })?;
            }
            let answers =
                self.gather(ANSWER_WITHIN, "tell its clock", |host, message, heard_ns| match message {
                    FromAgent::Clock { number: of, arrived_ns, sent_ns } if of == number => {
                        Ok(Some((arrived_ns, sent_ns, heard_ns)))
                    }
                    other => Err(host.strange(&other)),
                })?;
            for ((trips, sent_ns), (arrived_ns, answered_ns, heard_ns)) in
                trips.iter_mut().zip(sent).zip(answers)
            {
                trips.push(RoundTrip { sent_ns, arrived_ns, answered_ns, heard_ns });
            }
        }
        for (host, trips) in self.hosts.iter_mut().zip(&trips) {
            host.offset = Offset::estimate(trips).context("every host was asked")?;
        }
        Ok(())
    }

    /// Waits until `take` has returned a value for a message of every host, and returns the values.
    pub(super) fn gather<T>(
        &mut self,
        limit: Duration,
        what: &str,
        take: impl FnMut(&Host, FromAgent, u64) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<Vec<T>> {
        let everyone = vec![true; self.hosts.len()];
        let outcomes = self.gather_from(&everyone, limit, what, take)?;
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// Does the same for some of the hosts.
    pub(super) fn gather_from<T>(
        &mut self,
        wanted: &[bool],
        limit: Duration,
        what: &str,
        mut take: impl FnMut(&Host, FromAgent, u64) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<Vec<Option<T>>> {
        let deadline = Instant::now() + limit;
        let mut outcomes: Vec<Option<T>> = wanted.iter().map(|_| None).collect();
        while let Some(late) = (0..wanted.len()).find(|index| wanted[*index] && outcomes[*index].is_none()) {
            if self.said.elapsed() >= ALIVE_EVERY {
                for host in &mut self.hosts {
                    host.tell(&ToAgent::Alive)?;
                }
                self.said = Instant::now();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let until_said = ALIVE_EVERY.saturating_sub(self.said.elapsed());
            let heard = match self.inbox.recv_timeout(left.min(until_said)) {
                Ok(heard) => heard,
                Err(RecvTimeoutError::Timeout) if left > until_said => continue,
                Err(_) => anyhow::bail!(
                    "{} did not {what} within {} s; the others were stopped",
                    self.hosts[late].title(),
                    limit.as_secs()
                ),
            };
            let host = &self.hosts[heard.host];
            match heard.message {
                Ok(FromAgent::Alive) => {}
                Ok(FromAgent::Lost { why }) => {
                    anyhow::bail!("{} was lost: {why}; the others were stopped", host.title());
                }
                Ok(message) => {
                    let outcome = take(host, message, heard.arrived_ns)?;
                    outcomes[heard.host] = outcomes[heard.host].take().or(outcome);
                }
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("{} was lost; the others were stopped", host.title()));
                }
            }
        }
        Ok(outcomes)
    }
}
