// SPDX-License-Identifier: Apache-2.0
//! Listing: computes one page of keys in byte order. Walks the folder and reads no file contents.
//!
//! The sorted names of a folder stay in memory until the folder's mtime changes. A flat folder of 100,000 files is
//! therefore read once, not once for each page.

use std::io;

use rustix::fs::{AtFlags, FileType, OFlags};

use crate::fs_backend::Folder;
use crate::object_metadata::Stamp;

/// Maximum length of an S3 key. A file with a longer path is not listed.
const MAX_KEY: usize = 1024;

/// Parameters of one page of a listing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query {
    pub prefix: String,
    pub delimiter: Option<String>,
    /// Only names that sort after this name are listed.
    pub after: String,
    /// Common prefix at the end of the previous page. Nothing below this prefix is listed again.
    pub done: Option<String>,
    pub most: usize,
}

/// Object or common prefix in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    Object { key: String, stamp: Stamp, etag: String },
    Prefix(String),
}

impl Item {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Object { key, .. } => key,
            Self::Prefix(prefix) => prefix,
        }
    }
}

enum Next {
    Go,
    /// Skip the remaining names with this prefix.
    Past(String),
    Stop,
}

struct Walk<'a> {
    folder: &'a Folder,
    query: &'a Query,
    items: Vec<(String, Option<Stamp>)>,
}

/// Returns one page, and whether more items follow.
pub(crate) fn page(folder: &Folder, query: &Query) -> io::Result<(Vec<Item>, bool)> {
    if query.most == 0 {
        return Ok((Vec::new(), false));
    }
    let mut walk = Walk { folder, query, items: Vec::new() };
    walk.descend("")?;
    let plain = walk.items;
    let side = side_items(folder, query)?;
    let mut merged = merge(plain, side);
    let more = merged.len() > query.most;
    merged.truncate(query.most);
    let items = folder.facts.with(|facts| {
        let etag = |key: &str, stamp: Stamp| {
            let fact = facts.get(key).filter(|fact| fact.stamp == stamp);
            fact.and_then(|fact| fact.etag.clone()).unwrap_or_else(|| stamp.etag())
        };
        let item = |(name, stamp): (String, Option<Stamp>)| match stamp {
            Some(stamp) => Item::Object { etag: etag(&name, stamp), key: name, stamp },
            None => Item::Prefix(name),
        };
        merged.into_iter().map(item).collect()
    })?;
    Ok((items, more))
}

/// Merges the sorted listings of plain files and of the side store. If both contain a key, keeps the plain file.
fn merge(plain: Vec<(String, Option<Stamp>)>, side: Vec<(String, Option<Stamp>)>) -> Vec<(String, Option<Stamp>)> {
    if side.is_empty() {
        return plain;
    }
    let mut both: Vec<_> = plain.into_iter().chain(side).collect();
    both.sort_by(|a, b| a.0.cmp(&b.0)); // stable: the plain file stays first
    both.dedup_by(|later, earlier| later.0 == earlier.0);
    both
}

fn side_items(folder: &Folder, query: &Query) -> io::Result<Vec<(String, Option<Stamp>)>> {
    let mut items: Vec<(String, Option<Stamp>)> = Vec::new();
    let mut from = query.prefix.clone().max(query.after.clone());
    // Read in batches, because one common prefix may stand for any number of keys.
    loop {
        let batch = folder.facts.side_keys(&from, 1000)?;
        let Some((last, _)) = batch.last() else { return Ok(items) };
        let next = format!("{last}\0");
        for (key, fact) in batch {
            if !key.starts_with(&query.prefix) {
                return Ok(items);
            }
            if key <= query.after {
                continue;
            }
            match roll_up(query, &key) {
                Some(prefix) if query.done.as_ref() == Some(&prefix) => {}
                Some(prefix) if items.last().is_some_and(|last| last.0 == prefix) => {}
                Some(prefix) => items.push((prefix, None)),
                None => items.push((key, Some(fact.stamp))),
            }
            if items.len() > query.most {
                return Ok(items);
            }
        }
        from = next;
    }
}

/// Returns the common prefix that the delimiter creates for `key`, if any.
fn roll_up(query: &Query, key: &str) -> Option<String> {
    let delimiter = query.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty())?;
    let at = key.get(query.prefix.len()..)?.find(delimiter)?;
    Some(key[..query.prefix.len() + at + delimiter.len()].to_owned())
}

/// Returns the index of the first name in the folder `base` whose keys may sort at or after `bound`.
fn skip_to(names: &[Box<str>], base: &str, bound: &str) -> usize {
    let Some(rest) = bound.strip_prefix(base) else { return 0 };
    let head = rest.find('/').map_or(rest, |at| &rest[..=at]);
    names.partition_point(|name| &**name < head)
}

impl Walk<'_> {
    fn descend(&mut self, base: &str) -> io::Result<Next> {
        let names = self.folder.directories.names(base, |path, flags| self.folder.open_beneath(path, flags))?;
        let query = self.query;
        let first = skip_to(&names, base, &query.after).max(skip_to(&names, base, &query.prefix));
        for name in &names[first..] {
            let key = format!("{base}{name}");
            let next = if key.ends_with('/') { self.visit_folder(&key)? } else { self.visit_file(key)? };
            match next {
                Next::Go => {}
                // The prefix also covers `base`, so the caller must skip its own names with this prefix, too.
                Next::Past(prefix) if base.starts_with(&prefix) => return Ok(Next::Past(prefix)),
                Next::Past(_) => {}
                Next::Stop => return Ok(Next::Stop),
            }
        }
        Ok(Next::Go)
    }

    fn visit_folder(&mut self, base: &str) -> io::Result<Next> {
        let query = self.query;
        let meets = base.starts_with(&query.prefix) || query.prefix.starts_with(base);
        if !meets {
            return Ok(if base > query.prefix.as_str() { Next::Stop } else { Next::Go });
        }
        let passed = query.after.as_str() > base && !query.after.starts_with(base);
        let given = |prefix: &String| {
            query.done.as_ref() == Some(prefix) || self.items.last().is_some_and(|last| last.0 == *prefix)
        };
        if passed || base.len() > MAX_KEY || roll_up(query, base).is_some_and(|prefix| given(&prefix)) {
            return Ok(Next::Go);
        }
        self.descend(base)
    }

    fn visit_file(&mut self, key: String) -> io::Result<Next> {
        let query = self.query;
        if !key.starts_with(&query.prefix) {
            return Ok(if key > query.prefix { Next::Stop } else { Next::Go });
        }
        if key <= query.after || key.len() > MAX_KEY {
            return Ok(Next::Go);
        }
        let Some(stamp) = self.folder.stat(&key) else { return Ok(Next::Go) };
        if let Some(prefix) = roll_up(query, &key) {
            let given = query.done.as_ref() == Some(&prefix) || self.items.last().is_some_and(|last| last.0 == prefix);
            if !given {
                self.items.push((prefix.clone(), None));
            }
            return Ok(if self.items.len() > query.most { Next::Stop } else { Next::Past(prefix) });
        }
        self.items.push((key, Some(stamp)));
        Ok(if self.items.len() > query.most { Next::Stop } else { Next::Go })
    }
}

impl Folder {
    /// Returns the stamp of the file at `key`. Returns `None` if it does not exist or is not a regular file.
    fn stat(&self, key: &str) -> Option<Stamp> {
        let stat = rustix::fs::statat(&self.root, key, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let stat = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => stat,
            // As in GET, a symbolic link counts as an object only if its target is a file in the folder.
            FileType::Symlink => rustix::fs::fstat(self.open_beneath(key, OFlags::PATH).ok()?).ok()?,
            _ => return None,
        };
        (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then(|| Stamp::of(&stat))
    }
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
