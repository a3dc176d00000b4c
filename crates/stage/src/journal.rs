// SPDX-License-Identifier: Apache-2.0
//! Journal of finished objects: one JSON line per object, which is appended and synced before the file gets its final
//! name.
//!
//! A line is valid only while the file has the recorded size and mtime, and the source object has the recorded version.
//! If a crash truncates the journal, or if a file changes later, the object is copied again. No other harm results.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use penstock_store::Version;
use penstock_store::owned::{self, Proof};
use penstock_types::{Digest, Error, Key, Result};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::dest_dir::{FileState, open_own, open_to_read};
use crate::digests::Verified;
use crate::plan::{Item, StageOptions};
use penstock_dataset::manifest::{Entry, Origin, key_text};

/// Maximum length of a line in bytes. Penstock does not write longer lines.
const MAX_LINE: u64 = 1 << 20;

/// Journal version that this build writes. This build also reads version 1: [`Origin`] accepts the field names of
/// version 1.
const JOURNAL_VERSION: u32 = 2;

/// mtime that marks a line as the retraction of an earlier line.
const RETRACTED: i64 = i64::MIN;

/// A finished object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Key of the file below the destination.
    #[serde(flatten, with = "key_text")]
    pub target: Key,
    /// Size in bytes.
    pub size: u64,
    /// mtime of the finished file.
    pub mtime_ns: i64,
    /// Digests of the finished file.
    pub digests: Vec<Digest>,
    /// Object from which the file was made.
    pub origin: Origin,
    /// mtime of the source object. The mtime identifies the object if the store has no versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_s: Option<f64>,
    /// True if the stage was run with `--decompress`.
    #[serde(default, alias = "inflate")]
    pub decompress: bool,
    /// Object version that the destination store reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
}

impl Line {
    /// Creates the line of an object that was staged as an exact copy of its source. The caller adds the fields that
    /// depend on the destination.
    pub fn new(options: &StageOptions, item: &Item, entry: &Entry, stored: Verified) -> Self {
        Self {
            target: item.target.clone(),
            size: 0,
            mtime_ns: 0,
            digests: Vec::new(),
            origin: Origin {
                digests: stored.digests,
                checked: stored.checked,
                encoding: stored.encoding.or_else(|| entry.encoding.clone()),
                decoded: item.decode,
                codec_source: item.codec_source,
                ..Origin::of(entry)
            },
            modified_s: entry.modified_s,
            decompress: options.decompress,
            version: None,
        }
    }

    /// True if the line describes the object that the listing currently shows.
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

    /// True if the line retracts the earlier line of its target. A file with the name of the target is then not
    /// Penstock's.
    pub fn is_retracted(&self) -> bool {
        self.mtime_ns == RETRACTED
    }

    /// State of the file when the line was written.
    pub fn state(&self) -> FileState {
        FileState { size: self.size, mtime_ns: self.mtime_ns }
    }
}

#[derive(Serialize, Deserialize)]
struct Head {
    penstock_journal: u32,
    from: String,
    /// Sequence number of this stage among all stages of this source into this folder. The number defines the order of
    /// the stages without a clock. Missing if a repair opened the journal, and in old journals that did not record how
    /// a stage ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turn: Option<u64>,
}

/// Marks the end of the stage that began at the last head line with a `turn`.
#[derive(Serialize, Deserialize)]
struct End {
    penstock_journal_end: u32,
    /// Number of objects that could not be staged.
    failed: u64,
}

/// State of the last stage of one source, as recorded in a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LastStage {
    /// Node and number of nodes, for example `0-of-4`.
    pub share: String,
    pub source: String,
    pub turn: u64,
    /// Number of objects that could not be staged. `None` if the stage is still running, was killed or interrupted, or
    /// ended with an error.
    pub failed: Option<u64>,
}

/// A parsed line of a journal.
#[expect(clippy::large_enum_variant, reason = "one at a time")]
enum Found<'a> {
    Head(&'a Head),
    Line { from: &'a str, line: Line, offset: u64, len: u32 },
    End { from: &'a str, failed: u64 },
}

/// Location of a line in the journal files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    mtime_ns: i64,
    offset: u64,
    len: u32,
    /// Index of the journal file; 0 is the journal of this node.
    journal: u32,
}

/// The journal of one node, open for appending. Also finds the objects that earlier runs on any number of nodes
/// finished. The lines stay on disk; memory holds only their locations.
#[derive(Debug)]
pub(crate) struct Journal {
    /// The journal of this node, followed by those of other nodes.
    files: Vec<File>,
    place: String,
    end: u64,
    done: HashMap<u64, Place>,
    source: String,
    /// Highest `turn` of this source in any journal.
    turn: u64,
}

fn hash(target: &Key) -> u64 {
    xxh3_64(target.as_bytes())
}

impl Journal {
    /// Reads every `journal-*` in `folder` for lines of `source`, and opens `name` for appending.
    pub fn open(folder: &OwnedFd, name: &str, source: &str, place: &str) -> Result<Self> {
        let io = |error: std::io::Error| Error::from_io(place, &error);
        let io_of = |name: &str| {
            let place = format!("{place}/{name}");
            move |error: std::io::Error| Error::from_io(&place, &error)
        };
        let mut names: Vec<String> = rustix::fs::Dir::read_from(folder)
            .map_err(|errno| io(errno.into()))?
            .filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned))
            .filter(|other| other.starts_with("journal-") && other != name)
            .collect();
        names.sort();
        let mut files = vec![open_own(folder, name).map_err(io_of(name))?];
        let (mut done, mut turn) = (HashMap::new(), 0);
        for other in names {
            // Do not truncate an incomplete last line here: another node that shares the folder may still write the
            // line.
            let file = open_to_read(folder, &other).map_err(io_of(&other))?;
            read(&file, source, files.len() as u32, &mut done, &mut turn).map_err(io_of(&other))?;
            files.push(file);
        }
        let whole = read(&files[0], source, 0, &mut done, &mut turn).map_err(io)?;
        // Truncate the incomplete last line that a crash left behind.
        owned::set_len(&files[0], whole, Proof::Covered).map_err(io)?;
        files[0].seek(SeekFrom::End(0)).map_err(io)?;
        let mut journal = Self { files, place: place.to_owned(), end: whole, done, source: source.to_owned(), turn };
        journal.append_head(None)?;
        Ok(journal)
    }

    /// Records that a stage begins. Until [`Journal::end_stage`] is called, `verify` reports the stage as unfinished.
    pub fn begin_stage(&mut self) -> Result<()> {
        self.turn += 1;
        self.append_head(Some(self.turn))
    }

    /// Records that the stage has ended, with the number of objects that could not be staged.
    pub fn end_stage(&mut self, failed: u64) -> Result<()> {
        self.append_json(&[End { penstock_journal_end: 1, failed }]).map(drop)
    }

    fn append_head(&mut self, turn: Option<u64>) -> Result<()> {
        self.append_json(&[Head { penstock_journal: JOURNAL_VERSION, from: self.source.clone(), turn }]).map(drop)
    }

    /// Returns the journal line of a file. An unreadable line counts as missing, so the object is copied again.
    pub fn line(&self, target: &Key) -> Option<Line> {
        let place = self.done.get(&hash(target)).filter(|place| place.mtime_ns != RETRACTED)?;
        let mut text = vec![0; place.len as usize];
        self.files.get(place.journal as usize)?.read_exact_at(&mut text, place.offset).ok()?;
        serde_json::from_slice::<Line>(&text).ok().filter(|line| line.target == *target)
    }

    /// True if the journal has a line for the file. Compares the name in the line, because an attacker can choose two
    /// object names with the same hash.
    pub fn knows(&self, target: &Key) -> bool {
        self.line(target).is_some()
    }

    /// Retracts the line of a file that did not get its final name. A file with that name then does not count as
    /// Penstock's.
    pub fn retract(&mut self, line: &Line) -> Result<()> {
        let line = Line { mtime_ns: RETRACTED, ..line.clone() };
        let places = self.append(std::slice::from_ref(&line))?;
        places.into_iter().for_each(|place| self.remember(&line.target, place));
        Ok(())
    }

    /// Appends lines and syncs the journal. Returns the locations of the lines.
    pub fn append(&mut self, lines: &[Line]) -> Result<Vec<Place>> {
        let placed = self.append_json(lines)?;
        let place =
            |(line, (offset, len)): (&Line, (u64, u32))| Place { mtime_ns: line.mtime_ns, offset, len, journal: 0 };
        Ok(lines.iter().zip(placed).map(place).collect())
    }

    /// Makes [`Journal::line`] return the line at this location.
    pub fn remember(&mut self, target: &Key, place: Place) {
        self.done.insert(hash(target), place);
    }

    fn append_json<T: Serialize>(&mut self, lines: &[T]) -> Result<Vec<(u64, u32)>> {
        let mut text = Vec::with_capacity(lines.len() * 400);
        let mut placed = Vec::with_capacity(lines.len());
        for line in lines {
            let begin = text.len();
            serde_json::to_writer(&mut text, line)
                .map_err(|error| Error::bug(format!("a journal line does not serialise: {error}")))?;
            text.push(b'\n');
            placed.push((self.end + begin as u64, (text.len() - begin) as u32));
        }
        let mut write = || {
            self.files[0].write_all(&text)?;
            self.files[0].sync_data()
        };
        write().map_err(|error| Error::from_io(&self.place, &error))?;
        self.end += text.len() as u64;
        Ok(placed)
    }
}

/// Collects the last line of each target of `source`. Of two lines in one journal, the later line wins. Of two lines in
/// different journals, the line with the later mtime wins. Returns the number of bytes up to the end of the last
/// complete line.
fn read(
    file: &File,
    source: &str,
    journal: u32,
    done: &mut HashMap<u64, Place>,
    turn: &mut u64,
) -> std::io::Result<u64> {
    scan_all(file, |found| match found {
        Found::Line { from, line, offset, len } if from == source => {
            let place = Place { mtime_ns: line.mtime_ns, offset, len, journal };
            let known = done.entry(hash(&line.target)).or_insert(place);
            if known.journal == journal || known.mtime_ns <= place.mtime_ns {
                *known = place;
            }
        }
        Found::Head(head) if head.from == source => *turn = (*turn).max(head.turn.unwrap_or(0)),
        _ => {}
    })
}

/// Passes every line of the journal `name`, with its source, to `take`. Returns the last stage of each source. Skips
/// lines that do not parse, so that their objects count as missing.
pub(crate) fn scan(file: &File, name: &str, mut take: impl FnMut(&str, Line)) -> std::io::Result<Vec<LastStage>> {
    let share = name.trim_start_matches("journal-").trim_end_matches(".jsonl");
    let mut stages: Vec<LastStage> = Vec::new();
    scan_all(file, |found| match found {
        Found::Line { from, line, .. } => take(from, line),
        Found::Head(Head { turn: None, .. }) => {}
        Found::Head(Head { from, turn: Some(turn), .. }) => {
            stages.retain(|stage| stage.source != *from);
            stages.push(LastStage { share: share.to_owned(), source: from.clone(), turn: *turn, failed: None });
        }
        Found::End { from, failed } => {
            stages.iter_mut().filter(|stage| stage.source == from).for_each(|stage| stage.failed = Some(failed));
        }
    })?;
    Ok(stages)
}

/// Passes every parsed line of a journal to `take`. Returns the number of bytes up to the end of the last complete
/// line.
fn scan_all(file: &File, mut take: impl FnMut(Found<'_>)) -> std::io::Result<u64> {
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let (mut whole, mut from, mut text) = (0, None::<String>, Vec::new());
    loop {
        text.clear();
        let took = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut text)?;
        if took == 0 || text.last() != Some(&b'\n') && (took as u64) < MAX_LINE {
            return Ok(whole);
        }
        let offset = whole;
        whole += took as u64;
        if let Ok(head) = serde_json::from_slice::<Head>(&text) {
            from = None;
            if (1..=JOURNAL_VERSION).contains(&head.penstock_journal) {
                take(Found::Head(&head));
                from = Some(head.from);
            }
        } else if let Some(from) = &from {
            if let Ok(line) = serde_json::from_slice::<Line>(&text) {
                take(Found::Line { from, line, offset, len: took as u32 });
            } else if let Ok(End { penstock_journal_end: 1, failed }) = serde_json::from_slice(&text) {
                take(Found::End { from, failed });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dest_dir::DestDir;

    fn line(name: &str) -> Line {
        Line {
            target: Key::from(name),
            size: 3,
            mtime_ns: 5,
            digests: vec!["crc32c:00000001".parse().unwrap()],
            origin: Origin::of(&Entry::new(Key::from(format!("{name}.gz").as_str()), 2)),
            modified_s: Some(7.5),
            decompress: false,
            version: None,
        }
    }

    fn opened(dest_dir: &DestDir, name: &str, source: &str) -> Journal {
        let folder = dest_dir.make_folder(b"j").unwrap();
        Journal::open(&folder, name, source, "j").unwrap()
    }

    #[test]
    fn journal_remembers_what_other_nodes_did_but_not_other_sources() {
        let inside = tempfile::tempdir().unwrap();
        let dest_dir = DestDir::open(inside.path()).unwrap();
        opened(&dest_dir, "journal-0-of-1", "s3://a/").append(&[line("a")]).unwrap();
        opened(&dest_dir, "journal-0-of-1", "s3://b/").append(&[line("b")]).unwrap();
        let journal = opened(&dest_dir, "journal-1-of-2", "s3://a/");
        assert_eq!(journal.line(&Key::from("a")), Some(line("a")));
        assert_eq!(journal.line(&Key::from("b")), None);
    }

    #[test]
    fn journal_finds_what_it_has_just_appended_and_what_stood_there_before() {
        let inside = tempfile::tempdir().unwrap();
        let dest_dir = DestDir::open(inside.path()).unwrap();
        let names: Vec<String> = (0..20).map(|at| format!("f{at}")).collect();
        let lines: Vec<Line> = names.iter().map(|name| line(name)).collect();
        opened(&dest_dir, "journal-0-of-1", "s").append(&lines[..10]).unwrap();
        let mut journal = opened(&dest_dir, "journal-0-of-1", "s");
        let mut later = line("f3");
        later.size = 4;
        let more = [&lines[10..], std::slice::from_ref(&later)].concat();
        let places = journal.append(&more).unwrap();
        assert_eq!(journal.line(&Key::from("f12")), None);
        more.iter().zip(places).for_each(|(line, place)| journal.remember(&line.target, place));
        for (name, want) in names.iter().zip(&lines) {
            let want = if name == "f3" { &later } else { want };
            assert_eq!(journal.line(&Key::from(name.as_str())).as_ref(), Some(want), "{name}");
        }
        assert!(journal.knows(&Key::from("f0")) && !journal.knows(&Key::from("g")));
    }

    #[test]
    fn journal_knows_a_file_by_its_name_and_not_by_the_hash_of_it() {
        let inside = tempfile::tempdir().unwrap();
        let dest_dir = DestDir::open(inside.path()).unwrap();
        let mut journal = opened(&dest_dir, "journal-0-of-1", "s");
        let place = journal.append(&[line("a")]).unwrap()[0];
        journal.remember(&Key::from("a"), place);
        // Another name with the same hash.
        journal.remember(&Key::from("b"), place);
        assert!(journal.knows(&Key::from("a")) && !journal.knows(&Key::from("b")));
    }

    #[test]
    fn journal_records_which_stages_have_ended_in_an_order_that_all_journals_share() {
        let inside = tempfile::tempdir().unwrap();
        let dest_dir = DestDir::open(inside.path()).unwrap();
        let stages = |name: &str| {
            let file = File::open(inside.path().join("j").join(name)).unwrap();
            let stages = scan(&file, name, |_, _| {}).unwrap();
            stages.into_iter().map(|stage| (stage.source, stage.turn, stage.failed)).collect::<Vec<_>>()
        };
        let begun = |name: &str, source: &str| {
            let mut journal = opened(&dest_dir, name, source);
            journal.begin_stage().unwrap();
            journal.append(&[line("a")]).unwrap();
            journal
        };
        begun("journal-1-of-2", "a"); // killed
        begun("journal-0-of-1", "b").end_stage(0).unwrap();
        begun("journal-0-of-1", "a").end_stage(2).unwrap();
        begun("journal-0-of-1", "a").end_stage(0).unwrap();
        // A repair neither begins nor ends a stage.
        opened(&dest_dir, "journal-0-of-1", "a").append(&[line("a")]).unwrap();
        let s = |name: &str| name.to_owned();
        assert_eq!(stages("journal-1-of-2"), [(s("a"), 1, None)]);
        assert_eq!(stages("journal-0-of-1"), [(s("b"), 1, Some(0)), (s("a"), 3, Some(0))]);
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
        /// A journal that is truncated at any byte, or has garbage in the middle, keeps its earlier lines. Lines can be
        /// appended to such a journal.
        #[test]
        fn prop_journal_survives_a_torn_tail(lines in 1usize..6, cut in 0usize..400, junk in prop::collection::vec(any::<u8>(), 0..30)) {
            let inside = tempfile::tempdir().unwrap();
            let dest_dir = DestDir::open(inside.path()).unwrap();
            let names: Vec<String> = (0..lines).map(|at| format!("f{at}")).collect();
            let written: Vec<Line> = names.iter().map(|name| line(name)).collect();
            opened(&dest_dir, "journal-0-of-1", "s").append(&written).unwrap();
            let path = inside.path().join("j/journal-0-of-1");
            let mut bytes = std::fs::read(&path).unwrap();
            let keep = bytes.len().saturating_sub(cut);
            bytes.truncate(keep);
            let kept = bytes.iter().filter(|byte| **byte == b'\n').count().saturating_sub(1);
            let headless = !bytes.contains(&b'\n');
            bytes.extend_from_slice(&junk.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }).collect::<Vec<_>>());
            std::fs::write(&path, &bytes).unwrap();
            let mut again = opened(&dest_dir, "journal-0-of-1", "s");
            again.append(&[line("last")]).unwrap();
            drop(again);
            let read = opened(&dest_dir, "journal-0-of-1", "s");
            for (at, name) in names.iter().enumerate() {
                prop_assert_eq!(read.line(&Key::from(name.as_str())).is_some(), !headless && at < kept);
            }
            prop_assert!(read.line(&Key::from("last")).is_some());
        }
    }
}
