// SPDX-License-Identifier: Apache-2.0
//! What is done, one JSON line an object, appended and synced before a file takes its final name.
//!
//! A line is believed only together with the file: same size and mtime, same source, same version. So a journal that
//! survived a crash half-written, or a file that was changed since, costs a second read and nothing else.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;

use penstock_types::{Digest, Error, Key, Result};
use serde::{Deserialize, Serialize};

use super::jail::{FileState, open_own};
use crate::manifest::{Entry, Origin, key_text};

/// A line beyond this is no line of ours.
const MAX_LINE: u64 = 1 << 20;

/// One finished object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// The file below the destination.
    #[serde(flatten, with = "key_text")]
    pub target: Key,
    /// Its bytes.
    pub size: u64,
    /// Its mtime when it was finished.
    pub mtime_ns: i64,
    /// Digests of the file.
    pub digests: Vec<Digest>,
    /// What it was made from.
    pub origin: Origin,
    /// The source's mtime: all there is to compare where a store has no versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_s: Option<f64>,
    /// The stage was asked to inflate what is compressed.
    #[serde(default)]
    pub inflate: bool,
}

impl Line {
    /// True when the line speaks of this object, as the listing shows it now.
    pub fn is_of(&self, entry: &Entry) -> bool {
        let same_time = match (self.modified_s, entry.modified_s) {
            (Some(then), Some(now)) => (then - now).abs() < 1e-3,
            (then, now) => then == now,
        };
        self.origin.key == entry.key
            && self.origin.size == entry.size
            && self.origin.version == entry.version
            && (entry.version.is_some() || same_time)
    }

    /// The file as it was when the line was written.
    pub fn state(&self) -> FileState {
        FileState { size: self.size, mtime_ns: self.mtime_ns }
    }
}

#[derive(Serialize, Deserialize)]
struct Head {
    penstock_journal: u32,
    from: String,
}

/// The journal of one node, open for appending, with all that earlier runs (of any number of nodes) have finished.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    place: String,
    done: HashMap<Key, Line>,
}

impl Journal {
    /// Reads every `journal-*` in `folder` for lines of `source`, and opens `name` for appending.
    pub fn open(folder: &OwnedFd, name: &str, source: &str, place: &str) -> Result<Self> {
        let io = |error: std::io::Error| Error::from_io(place, &error);
        let mut done = HashMap::new();
        let mut names: Vec<String> = rustix::fs::Dir::read_from(folder)
            .map_err(|errno| io(errno.into()))?
            .filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned))
            .filter(|other| other.starts_with("journal-") && other != name)
            .collect();
        names.sort();
        for other in names {
            // Another node of a shared folder may be writing it: its torn tail is not ours to cut.
            merge(read(&open_own(folder, &other).map_err(io)?, source).map_err(io)?.0, &mut done);
        }
        let mut file = open_own(folder, name).map_err(io)?;
        let (own, whole) = read(&file, source).map_err(io)?;
        merge(own, &mut done);
        // Whatever follows the last line break was torn by a crash.
        file.set_len(whole).map_err(io)?;
        file.seek(SeekFrom::End(0)).map_err(io)?;
        let mut journal = Self { file, place: place.to_owned(), done };
        journal.append_json(&[Head { penstock_journal: 1, from: source.to_owned() }])?;
        Ok(journal)
    }

    /// What is known of a file.
    pub fn line(&self, target: &Key) -> Option<&Line> {
        self.done.get(target)
    }

    /// Appends lines, and returns once they are on disk.
    pub fn append(&mut self, lines: &[Line]) -> Result<()> {
        self.append_json(lines)
    }

    /// Keeps lines for [`Journal::line`].
    pub fn remember(&mut self, lines: impl IntoIterator<Item = Line>) {
        self.done.extend(lines.into_iter().map(|line| (line.target.clone(), line)));
    }

    fn append_json<T: Serialize>(&mut self, lines: &[T]) -> Result<()> {
        let mut text = Vec::with_capacity(lines.len() * 400);
        for line in lines {
            serde_json::to_writer(&mut text, line)
                .map_err(|error| Error::bug(format!("a journal line does not serialise: {error}")))?;
            text.push(b'\n');
        }
        let mut write = || {
            self.file.write_all(&text)?;
            self.file.sync_data()
        };
        write().map_err(|error| Error::from_io(&self.place, &error))
    }
}

/// Within a journal the later line holds; between journals that of the later file.
fn merge(lines: HashMap<Key, Line>, done: &mut HashMap<Key, Line>) {
    for (target, line) in lines {
        if done.get(&target).is_none_or(|known| known.mtime_ns <= line.mtime_ns) {
            done.insert(target, line);
        }
    }
}

/// The last line of each target of `source`, and the bytes up to the last line break.
fn read(file: &File, source: &str) -> std::io::Result<(HashMap<Key, Line>, u64)> {
    let mut done = HashMap::new();
    let whole = scan(file, |from, line| {
        if from == source {
            done.insert(line.target.clone(), line);
        }
    })?;
    Ok((done, whole))
}

/// Gives every line, with its source, to `take`; returns the bytes up to the last line break. Lines that do not parse
/// are passed over: their objects count as missing.
pub(crate) fn scan(file: &File, mut take: impl FnMut(&str, Line)) -> std::io::Result<u64> {
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let (mut whole, mut from, mut text) = (0, None::<String>, Vec::new());
    loop {
        text.clear();
        let took = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut text)?;
        if took == 0 || text.last() != Some(&b'\n') && (took as u64) < MAX_LINE {
            return Ok(whole);
        }
        whole += took as u64;
        if let Ok(head) = serde_json::from_slice::<Head>(&text) {
            from = (head.penstock_journal == 1).then_some(head.from);
        } else if let Some(from) = &from
            && let Ok(line) = serde_json::from_slice::<Line>(&text)
        {
            take(from, line);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::jail::Jail;
    use super::*;

    fn line(name: &str) -> Line {
        Line {
            target: Key::from(name),
            size: 3,
            mtime_ns: 5,
            digests: vec!["crc32c:00000001".parse().unwrap()],
            origin: Origin::of(&Entry::new(Key::from(format!("{name}.gz").as_str()), 2)),
            modified_s: Some(7.5),
            inflate: false,
        }
    }

    fn opened(jail: &Jail, name: &str, source: &str) -> Journal {
        let folder = jail.make_folder(b"j").unwrap();
        Journal::open(&folder, name, source, "j").unwrap()
    }

    #[test]
    fn journal_remembers_what_other_nodes_did_but_not_other_sources() {
        let inside = tempfile::tempdir().unwrap();
        let jail = Jail::open(inside.path()).unwrap();
        opened(&jail, "journal-0-of-1", "s3://a/").append(&[line("a")]).unwrap();
        opened(&jail, "journal-0-of-1", "s3://b/").append(&[line("b")]).unwrap();
        let journal = opened(&jail, "journal-1-of-2", "s3://a/");
        assert_eq!(journal.line(&Key::from("a")), Some(&line("a")));
        assert_eq!(journal.line(&Key::from("b")), None);
    }

    #[test]
    fn line_is_of_the_object_only_at_the_same_version() {
        let mut entry = Entry::new(Key::from("a.gz"), 2);
        entry.modified_s = Some(7.5);
        assert!(line("a").is_of(&entry));
        entry.modified_s = Some(8.0);
        assert!(!line("a").is_of(&entry));
        entry.version = Some(penstock_store::Version("1".into()));
        assert!(!line("a").is_of(&entry));
        let mut pinned = line("a");
        pinned.origin.version = entry.version.clone();
        assert!(pinned.is_of(&entry));
    }

    proptest! {
        /// Cut anywhere, or with garbage in the middle: the lines before are kept, and appending goes on.
        #[test]
        fn prop_journal_survives_a_torn_tail(lines in 1usize..6, cut in 0usize..400, junk in prop::collection::vec(any::<u8>(), 0..30)) {
            let inside = tempfile::tempdir().unwrap();
            let jail = Jail::open(inside.path()).unwrap();
            let names: Vec<String> = (0..lines).map(|at| format!("f{at}")).collect();
            let written: Vec<Line> = names.iter().map(|name| line(name)).collect();
            opened(&jail, "journal-0-of-1", "s").append(&written).unwrap();
            let path = inside.path().join("j/journal-0-of-1");
            let mut bytes = std::fs::read(&path).unwrap();
            let keep = bytes.len().saturating_sub(cut);
            bytes.truncate(keep);
            let kept = bytes.iter().filter(|byte| **byte == b'\n').count().saturating_sub(1);
            let headless = !bytes.contains(&b'\n');
            bytes.extend_from_slice(&junk.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }).collect::<Vec<_>>());
            std::fs::write(&path, &bytes).unwrap();
            let mut again = opened(&jail, "journal-0-of-1", "s");
            again.append(&[line("last")]).unwrap();
            drop(again);
            let read = opened(&jail, "journal-0-of-1", "s");
            for (at, name) in names.iter().enumerate() {
                prop_assert_eq!(read.line(&Key::from(name.as_str())).is_some(), !headless && at < kept);
            }
            prop_assert!(read.line(&Key::from("last")).is_some());
        }
    }
}
