//! Timestamps to set.

use std::time::SystemTime;

/// Timestamps for [`File::set_times`](crate::File::set_times); those that are not set stay as they are.
///
/// ```
/// use forebay_fs::FileTimes;
///
/// let times = FileTimes::new().set_modified(std::time::SystemTime::now());
/// println!("{times:?}");
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "must be applied to a file via `File::set_times` to have any effect"]
pub struct FileTimes {
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
}

impl FileTimes {
    /// Returns times that change nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the last access time.
    pub fn set_accessed(mut self, t: SystemTime) -> Self {
        self.accessed = Some(t);
        self
    }

    /// Sets the last modification time.
    pub fn set_modified(mut self, t: SystemTime) -> Self {
        self.modified = Some(t);
        self
    }

    pub(crate) fn into_std(self) -> std::fs::FileTimes {
        let times = std::fs::FileTimes::new();
        let times = self.accessed.map_or(times, |time| times.set_accessed(time));
        self.modified.map_or(times, |time| times.set_modified(time))
    }
}
