//! Finds a segment for the log if a fresh one does not fit: a full disk must not prevent opening, reading or truncating the log.

use std::sync::Arc;

use forebay::{Durability, File};

use super::resume::ReopenPlan;
use super::{Scene, read};
use crate::error::{Error, Result};
use crate::format::UNIT_MAX;
use crate::recover::{Outcome, recover};
use crate::segment::Segment;

impl Scene {
    /// Finds a segment for the REOPEN group that needs no space: the one prepared after the log's end, or the reserve. `cause` is
    /// the reason for the lack of a fresh one.
    ///
    /// # Errors
    /// `NoSpace` without such a segment, or without a long enough one.
    pub(super) async fn spare(&self, plan: ReopenPlan, cause: &Error) -> Result<(ReopenPlan, Arc<Segment>)> {
        if let Some(spare) = self.newest_again(&plan.outcome).await? {
            return Ok(spare);
        }
        let segment = self.reserve(&plan, cause).await?;
        Ok((plan, segment))
    }

    /// Returns the newest segment under its own number, if no group is lost with it. Either it was prepared and never used, or it
    /// holds only the start of an earlier attempt to open the log, whose records are still in their old places.
    ///
    /// The outcome is the one without that segment. So the REOPEN group is the one that the earlier attempt
    /// wrote, or would have written, and is written over it.
    async fn newest_again(&self, found: &Outcome) -> Result<Option<(ReopenPlan, Arc<Segment>)>> {
        let newest = found.max_generation;
        let mut scans = read(&self.maker, &self.found.generations, false).await?;
        let Some(at) = scans.iter().position(|scan| scan.generation == newest) else { return Ok(None) };
        if !scans.swap_remove(at).is_unused() || !found.gaps.is_empty() {
            return Ok(None);
        }
        let Ok(Some(mut outcome)) = recover(scans, &self.found.end, self.options.salvage) else {
            return Ok(None);
        };
        let same = (outcome.log_id, outcome.first, outcome.next_lsn, &outcome.recovery.lost)
            == (found.log_id, found.first, found.next_lsn, &found.recovery.lost)
            && self.values(&outcome).await? == self.values(found).await?;
        if !same || outcome.values.is_lost || outcome.max_generation + 1 != newest || !outcome.gaps.is_empty()
        {
            return Ok(None);
        }
        // The report describes the files as found.
        outcome.recovery.clone_from(&found.recovery);
        let plan = self.reopen_plan(outcome).await?;
        let segment = self.maker.adopt(newest).await?;
        if !self.fits(&plan, &segment.file, segment.bytes)? {
            segment.file.unlock().await?;
            return Ok(None);
        }
        // Its preparation may have been interrupted.
        match segment.file.allocate(0..segment.bytes).await {
            Err(error) if error.kind() == forebay::ErrorKind::NoSpace => {
                segment.file.unlock().await?;
                Ok(None)
            }
            Err(error) if error.kind() != forebay::ErrorKind::Unsupported => Err(error.into()),
            _ => {
                // The allocation as well: a group with FUA does not make it durable.
                segment.file.sync(Durability::All).await?;
                Ok(Some((plan, segment)))
            }
        }
    }

    /// Returns the log's reserve as its next segment.
    async fn reserve(&self, plan: &ReopenPlan, cause: &Error) -> Result<Arc<Segment>> {
        let generation = plan.outcome.max_generation + 1;
        match self.maker.take_reserve(generation, |file, bytes| self.fits(plan, file, bytes)).await? {
            Ok(segment) => Ok(Arc::new(segment)),
            Err(why) => {
                let bytes = self.maker.bytes.max(plan.bytes(UNIT_MAX));
                let remedy = format!("{why}, so free as many on this file system and open the log again");
                Err(Error::no_space(self.maker.path(generation), bytes, &remedy, cause))
            }
        }
    }

    /// Returns whether the REOPEN group and a mark after it fit into a segment of `bytes` bytes.
    fn fits(&self, plan: &ReopenPlan, file: &File, bytes: u64) -> Result<bool> {
        let unit = self.unit(file)?;
        Ok(plan.bytes(unit) + u64::from(unit) <= bytes)
    }
}
