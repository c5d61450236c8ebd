//! The possible lengths of a file of the model.

/// A length between `min` and `max`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Length {
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Length {
    pub(super) fn exactly(len: u64) -> Length {
        Length { min: len, max: len }
    }

    pub(super) fn or(self, other: Length) -> Length {
        Length { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    pub(super) fn at_least(self, end: u64) -> Length {
        Length { min: self.min.max(end), max: self.max.max(end) }
    }

    pub(super) fn perhaps(self, end: u64) -> Length {
        Length { max: self.max.max(end), ..self }
    }

    pub(super) fn is_exact(self) -> bool {
        self.min == self.max
    }
}

impl std::fmt::Display for Length {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_exact() { write!(f, "{}", self.min) } else { write!(f, "{} to {}", self.min, self.max) }
    }
}
