//! Waiting for all agents at once, while notifying them that the controller is alive.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::super::super::start_barrier::monotonic_ns;
use super::super::ALIVE_EVERY;
use super::super::clock::{Offset, RoundTrip};
use super::super::message::{FromAgent, ToAgent};
use super::{Controller, Host, REPLY_WITHIN};

/// Requests for each host's clock before each start.
const CLOCK_REQUESTS: u64 = 8;

impl Controller {
    /// Reads all clocks at once. Offsets of a minute ago would be off by the difference of the crystals.
    pub(super) fn read_clocks(&mut self) -> anyhow::Result<()> {
        let mut trips = vec![Vec::new(); self.hosts.len()];
        for number in 0..CLOCK_REQUESTS {
            let mut sent = Vec::with_capacity(self.hosts.len());
            for host in &mut self.hosts {
                sent.push(monotonic_ns());
                host.send(&ToAgent::Clock { number })?;
            }
            let replies =
                self.gather(REPLY_WITHIN, "report its clock", |host, message, received_ns| match message {
                    FromAgent::Clock { number: of, arrived_ns, sent_ns } if of == number => {
                        Ok(Some((arrived_ns, sent_ns, received_ns)))
                    }
                    other => Err(host.unexpected(&other)),
                })?;
            for ((trips, sent_ns), (arrived_ns, replied_ns, received_ns)) in
                trips.iter_mut().zip(sent).zip(replies)
            {
                trips.push(RoundTrip { sent_ns, arrived_ns, replied_ns, received_ns });
            }
        }
        for (host, trips) in self.hosts.iter_mut().zip(&trips) {
            host.offset = Offset::estimate(trips).context("every host replied")?;
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
            if self.alive_sent.elapsed() >= ALIVE_EVERY {
                for host in &mut self.hosts {
                    host.send(&ToAgent::Alive)?;
                }
                self.alive_sent = Instant::now();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let until_alive = ALIVE_EVERY.saturating_sub(self.alive_sent.elapsed());
            let received = match self.inbox.recv_timeout(left.min(until_alive)) {
                Ok(received) => received,
                Err(RecvTimeoutError::Timeout) if left > until_alive => continue,
                Err(_) => anyhow::bail!(
                    "{} did not {what} within {} s; the others were stopped",
                    self.hosts[late].title(),
                    limit.as_secs()
                ),
            };
            let host = &self.hosts[received.host];
            match received.message {
                Ok(FromAgent::Alive) => {}
                Ok(FromAgent::Lost { why }) => {
                    anyhow::bail!("{} was lost: {why}; the others were stopped", host.title());
                }
                Ok(message) => {
                    let outcome = take(host, message, received.arrived_ns)?;
                    outcomes[received.host] = outcomes[received.host].take().or(outcome);
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
