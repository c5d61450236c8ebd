//! [`NameMap`]: values by names. A copy shares all of its parts, and a change copies the part that has its name.

use std::sync::Arc;

const PART_NAMES_MAX: usize = if cfg!(test) { 4 } else { 256 };

/// Names in their order, with their values. None is empty.
type Part<V> = Vec<(Arc<str>, Arc<V>)>;

/// Values by names, in the order of these.
#[derive(Clone)]
pub(super) struct NameMap<V>(Vec<Arc<Part<V>>>);

impl<V> Default for NameMap<V> {
    fn default() -> NameMap<V> {
        NameMap(Vec::new())
    }
}

impl<V: PartialEq> PartialEq for NameMap<V> {
    /// However they are divided into parts.
    fn eq(&self, other: &NameMap<V>) -> bool {
        self.iter().eq(other.iter())
    }
}

/// Returns the place of a name in a part, or else that where it would be.
fn place_of<V>(part: &[(Arc<str>, Arc<V>)], name: &str) -> Result<usize, usize> {
    part.binary_search_by(|(other, _)| (**other).cmp(name))
}

impl<V> NameMap<V> {
    /// Returns the number of the part that has a name, if any has.
    fn part_of(&self, name: &str) -> usize {
        let begins_before = |part: &Arc<Part<V>>| part.first().is_some_and(|(first, _)| **first <= *name);
        self.0.partition_point(begins_before).saturating_sub(1)
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.0.iter().flat_map(|part| part.iter()).map(|(name, value)| (&**name, &**value))
    }

    pub(super) fn get(&self, name: &str) -> Option<&V> {
        let part = self.0.get(self.part_of(name))?;
        let place = place_of(&part[..], name).ok()?;
        part.get(place).map(|(_, value)| &**value)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn insert(&mut self, name: &str, value: V) {
        let (number, value) = (self.part_of(name), Arc::new(value));
        let Some(part) = self.0.get_mut(number) else {
            self.0.push(Arc::new(vec![(Arc::from(name), value)]));
            return;
        };
        let part = Arc::make_mut(part);
        match place_of(&part[..], name) {
            Ok(place) => part[place].1 = value,
            Err(place) => part.insert(place, (Arc::from(name), value)),
        }
        if part.len() > PART_NAMES_MAX {
            let rest = part.split_off(PART_NAMES_MAX / 2);
            self.0.insert(number + 1, Arc::new(rest));
        }
    }

    /// Returns whether the name was there.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        let number = self.part_of(name);
        let Some(part) = self.0.get_mut(number) else { return false };
        let Ok(place) = place_of(&part[..], name) else { return false };
        if part.len() == 1 {
            self.0.remove(number);
        } else {
            Arc::make_mut(part).remove(place);
        }
        true
    }
}

impl<V: Clone> NameMap<V> {
    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut V> {
        let number = self.part_of(name);
        let part = self.0.get_mut(number)?;
        let place = place_of(&part[..], name).ok()?;
        let (_, value) = Arc::make_mut(part).get_mut(place)?;
        Some(Arc::make_mut(value))
    }

    /// Returns how many parts are not shared with another map.
    #[cfg(test)]
    pub(super) fn parts_apart(&self, other: &NameMap<V>) -> usize {
        let is_shared = |part: &Arc<Part<V>>| other.0.iter().any(|of| Arc::ptr_eq(of, part));
        self.0.iter().filter(|part| !is_shared(part)).count()
    }
}
