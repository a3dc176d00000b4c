// SPDX-License-Identifier: Apache-2.0
//! Eviction queue of the node cache: evicts the entry whose next use is the latest of all entries. If the read order is
//! known, this policy causes the fewest requests (Belady, IBM Systems Journal 5(2), 1966). A new entry is not stored if
//! its next use is later than the next use of every stored entry.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use penstock_types::{Url, lock};

use super::directory::Folder;
use super::entry::{Form, Name};
use super::{AccessPlan, Extent};

/// Entries of the cache folder, ordered by their next use. The queue is built when space is needed for the first time,
/// and updated after that.
#[derive(Debug)]
pub(super) struct EvictionQueue {
    folder: Arc<Folder>,
    root: Url,
    future: Arc<dyn AccessPlan>,
    /// True if this run prefers transposed copies to stored bytes.
    reads_planes: bool,
    kept: Mutex<Option<Stock>>,
}

#[derive(Debug, Default)]
struct Stock {
    by_next_use: BTreeSet<(u64, Name)>,
    known: HashMap<Name, (u64, Option<Extent>)>,
}

impl Stock {
    fn set(&mut self, name: Name, next_use: u64, what: Option<Extent>) {
        if let Some((before, _)) = self.known.insert(name, (next_use, what)) {
            self.by_next_use.remove(&(before, name));
        }
        self.by_next_use.insert((next_use, name));
    }

    /// Recomputes the next use of entries whose time has passed. Other processes of the node have read these entries.
    fn catch_up(&mut self, future: &dyn AccessPlan) {
        let now = future.now();
        let passed: Vec<Name> = self.by_next_use.range(..(now, Name(0))).map(|entry| entry.1).collect();
        for name in passed {
            if let Some((_, Some(what))) = self.known.get(&name).cloned() {
                self.set(name, future.next_use(&what), Some(what));
            }
        }
    }
}

impl EvictionQueue {
    pub fn new(folder: Arc<Folder>, root: Url, future: Arc<dyn AccessPlan>, reads_planes: bool) -> Self {
        Self { folder, root, future, reads_planes, kept: Mutex::default() }
    }

    pub fn future(&self) -> &dyn AccessPlan {
        &*self.future
    }

    /// Updates the next use of an entry that was read or written.
    pub fn note(&self, name: Name, what: &Extent) {
        if let Some(kept) = &mut *lock(&self.kept) {
            kept.set(name, self.future.next_use(what), Some(what.clone()));
        }
    }

    /// Stops tracking an entry that was removed from the folder.
    fn forget(&self, name: Name) {
        if let Some(kept) = &mut *lock(&self.kept)
            && let Some((next_use, _)) = kept.known.remove(&name)
        {
            kept.by_next_use.remove(&(next_use, name));
        }
    }

    /// Removes an entry from the folder. Stops tracking the entry if the removal succeeds.
    pub fn forget_removed(&self, name: Option<Name>) -> std::io::Result<()> {
        let Some(name) = name else { return Ok(()) };
        self.folder.remove(name)?;
        if self.folder.find(name).is_none() {
            self.forget(name);
        }
        Ok(())
    }

    /// Returns the entry whose next use is the latest, and stops tracking it. Returns `None` if no entry has a later
    /// next use than `what`.
    pub fn later_than(&self, what: &Extent) -> Option<Name> {
        let wanted = self.future.next_use(what);
        let mut kept = lock(&self.kept);
        let kept = kept.get_or_insert_with(|| self.stock());
        kept.catch_up(self.future());
        let &(last, name) = kept.by_next_use.last().filter(|last| last.0 > wanted)?;
        kept.by_next_use.remove(&(last, name));
        kept.known.remove(&name);
        Some(name)
    }

    /// Lists all entries that the folder contains now.
    fn stock(&self) -> Stock {
        let (mut kept, mut found) = (Stock::default(), HashSet::new());
        // If the folder cannot be listed, it counts as empty.
        let _ = self.folder.each_entry(|name, _| _ = found.insert(name));
        for (object, range) in self.future.stretches() {
            // If an object is cached in two forms, only the form that this run reads gets a next use. The other form is
            // evicted first.
            let forms = [self.reads_planes.then_some(Form::Planes), Some(Form::Stored(range))];
            let mut names = forms.into_iter().flatten().filter_map(|form| Name::of(&self.root, &object, form));
            if let Some(name) = names.find(|name| found.remove(name)) {
                let what = Extent { key: object.key.clone(), range };
                kept.set(name, self.future.next_use(&what), Some(what));
            }
        }
        // Entries that this run does not read are evicted first.
        found.into_iter().for_each(|name| kept.set(name, u64::MAX, None));
        kept
    }
}
