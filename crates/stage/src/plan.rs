// SPDX-License-Identifier: Apache-2.0
//! Plan of a stage: computes the target of each object before the first byte is copied. Keys are untrusted. The plan
//! fails if a key could lead outside the destination, or if two keys cannot coexist there.

use std::borrow::Cow;
use std::time::Duration;

use penstock_codec::{Codec, strip_suffix};
use penstock_dataset::detect_codec::detect;
use penstock_types::{Error, Key, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::compress::Compression;
use penstock_dataset::manifest::{CodecSource, Entry, Manifest, OWN_PREFIX};
use penstock_dataset::{Division, SharePlan};

/// Size of one ranged read in bytes. An object up to this size is read in one request. The size is large enough that
/// requests cost little (S3 bills and limits each request), and small enough that a killed stage loses little.
pub const PART_BYTES: u64 = 8 << 20;

/// If a stage has at least this many objects, one read per object is enough to keep the store busy.
pub(crate) const BUSY: usize = 16;
/// Maximum size of an object that is read in one request by a stage with at least `BUSY` objects. A single connection
/// is slow, so a larger object at the end would delay the stage.
pub(crate) const MAX_STREAMED: u64 = 64 << 20;

/// Maximum length of a name on Linux file systems.
const NAME_MAX: usize = 255;
/// Maximum length of a path in one system call, minus space for the path of the destination.
const PATH_MAX: usize = 4000;

/// Options of a stage, validated once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageOptions {
    /// Decompress compressed objects during the copy, and drop the codec's suffix from their names.
    pub decompress: bool,
    /// Index of this node.
    pub node: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// How the objects are divided among the nodes. The `decompress` field of the division is ignored; the field above
    /// applies.
    pub division: Division,
    /// Maximum requests in flight.
    pub concurrency: usize,
    /// Maximum bytes in flight.
    pub memory: u64,
    /// Time limit of one object. An object that takes longer fails, and the stage continues with the other objects.
    pub object_deadline: Option<Duration>,
    /// Maximum decompressed bytes of one object; `None` means the highest ratio that its codec can reach.
    pub max_inflated: Option<u64>,
    /// Allow keys that differ only by case.
    pub allow_case_collisions: bool,
    /// Replace files that no stage of this source created.
    pub overwrite: bool,
    /// Compress objects that are not already compressed.
    pub compression: Option<Compression>,
}

impl StageOptions {
    /// Compression whose suffix is added to the name of the target. `None` if the name or the listing of the object
    /// shows that it is already compressed.
    pub(crate) fn compression_of(&self, entry: &Entry) -> Option<Compression> {
        let is_undone = self.decompress && entry.codec != Codec::None;
        self.compression.filter(|_| is_undone || !crate::compress::is_packed(entry))
    }

    /// Maximum decompressed size of an object of `stored` bytes: the user's limit or, without one, the highest ratio
    /// that the codec can reach.
    pub(crate) fn inflated_limit(&self, codec: Codec, stored: u64) -> u64 {
        let ratio = match codec {
            Codec::None => 1,
            Codec::Gzip => 1_100,  // deflate cannot pass 1,032:1
            Codec::Lz4 => 300,     // LZ4 cannot pass 255:1
            Codec::Zstd => 50_000, // a frame of zeros at level 19 reaches about 30,000:1
        };
        self.max_inflated.unwrap_or_else(|| stored.saturating_mul(ratio).saturating_add(1 << 20))
    }

    /// Identifier of the content transform, as recorded in journals and manifests. The same object with another
    /// transform counts as a different object.
    pub(crate) fn transform_id(&self) -> Option<String> {
        let compression = self.compression.map(|compression| format!("{}:{}", compression.codec, compression.level));
        match (self.decompress, compression) {
            (true, Some(compression)) => Some(format!("decompress,{compression}")),
            (true, None) => Some("decompress".to_owned()),
            (false, compression) => compression,
        }
    }
}

impl Default for StageOptions {
    fn default() -> Self {
        Self {
            decompress: false,
            node: 0,
            nodes: 1,
            division: Division::default(),
            concurrency: 64,
            memory: 1 << 30,
            object_deadline: None,
            max_inflated: None,
            allow_case_collisions: false,
            overwrite: false,
            compression: None,
        }
    }
}

/// One object to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Index in the manifest.
    pub object: usize,
    /// Path of the file, relative to the destination.
    pub target: Key,
    /// Codec to decompress during the copy, detected from the name; [`Codec::None`] if the bytes are copied unchanged.
    pub decode: Codec,
    /// Where the codec was detected: suffix, encoding or content.
    pub codec_source: Option<CodecSource>,
}

impl Item {
    /// Returns the item with the codec that the Content-Encoding or the first bytes show. If the name already shows a
    /// codec, returns the item unchanged.
    pub(crate) fn with_detected_codec(&self, decompress: bool, encoding: Option<&str>, head: &[u8]) -> Self {
        match detect(self.target.as_bytes(), encoding, head) {
            Some((decode, codec_source)) if decompress && self.decode == Codec::None => {
                Self { decode, codec_source: Some(codec_source), ..self.clone() }
            }
            _ => self.clone(),
        }
    }
}

/// The objects of this node's share, and totals for every node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagePlan {
    /// Objects of this node's share, in manifest order.
    pub items: Vec<Item>,
    /// Stored bytes of this node's share.
    pub bytes: u64,
    /// Number of requests that read this node's share.
    pub requests: u64,
    /// Stored bytes of every node's share.
    pub loads: Vec<u64>,
    /// Bytes read and written for every node's share, estimated if a decompressed size is unknown.
    pub costs: Vec<u64>,
    /// Number of objects in every node's share.
    pub counts: Vec<u64>,
    /// Number of requests that read every node's share.
    pub all_requests: Vec<u64>,
}

impl StagePlan {
    /// Plans a stage. `place` is the destination path as the user wrote it. Checks the keys of all nodes, so that every
    /// node rejects the same dataset.
    pub fn new(manifest: &Manifest, options: &StageOptions, place: &str) -> Result<Self> {
        if options.node >= options.nodes {
            return Err(Error::config(
                "--node",
                format!("must be less than --nodes, {} (got {})", options.nodes, options.node),
            ));
        }
        for entry in &manifest.objects {
            check_key(&entry.key, place)?;
            let target = target_of(entry, options);
            // A key such as `a/...gz` is harmless, but becomes `a/..` without its suffix.
            if *target != *entry.key.as_bytes() && check_name(&target).is_err() {
                let how =
                    if target.len() < entry.key.as_bytes().len() { "without its suffix" } else { "with its suffix" };
                let target = Key::new(target.to_vec());
                return Err(refuse(&entry.key, place, format!("{how} the key would be `{target}`")));
            }
        }
        check_collisions(manifest, options, place)?;
        let division = Division { decompress: options.decompress, ..options.division.clone() };
        let shares = SharePlan::divide(manifest, options.nodes, &division)?;
        let items: Vec<Item> = shares
            .share(options.node)
            .into_iter()
            .map(|object| {
                let entry = &manifest.objects[object];
                let target = match target_of(entry, options) {
                    Cow::Borrowed(name) => entry.key.head(name.len()),
                    Cow::Owned(name) => Key::new(name),
                };
                let decode = if options.decompress { entry.codec } else { Codec::None };
                Item { object, target, decode, codec_source: (decode != Codec::None).then_some(CodecSource::Suffix) }
            })
            .collect();
        let requests = |at: usize, is_busy| requests_of(manifest.objects[at].size, is_busy);
        Ok(Self::of(items, &shares, options.node, requests))
    }

    /// Builds the plan of one node. `requests` returns the number of requests for an object. The second argument of
    /// `requests` is true if the share has enough objects to keep the store busy.
    pub(crate) fn of(items: Vec<Item>, shares: &SharePlan, node: u32, requests: impl Fn(usize, bool) -> u64) -> Self {
        let counts = shares.sums(|_| 1);
        let [calm, busy] = [false, true].map(|is_busy| shares.sums(|at| requests(at, is_busy)));
        let of_node = |at: usize| if counts[at] >= BUSY as u64 { busy[at] } else { calm[at] };
        let all_requests: Vec<u64> = (0..counts.len()).map(of_node).collect();
        let node = node as usize;
        Self {
            items,
            bytes: shares.loads()[node],
            requests: all_requests[node],
            loads: shares.loads().to_vec(),
            costs: shares.costs().to_vec(),
            counts,
            all_requests,
        }
    }
}

/// Target name of an object: the key of the object. The name loses the suffix of a codec that is decompressed, and gets
/// the suffix of a codec that compresses the object.
fn target_of<'a>(entry: &'a Entry, options: &StageOptions) -> Cow<'a, [u8]> {
    let kept = match entry.codec {
        Codec::None => entry.key.as_bytes(),
        _ if options.decompress => strip_suffix(entry.key.as_bytes()),
        _ => entry.key.as_bytes(),
    };
    match options.compression_of(entry) {
        None => Cow::Borrowed(kept),
        Some(compression) => Cow::Owned([kept, compression.codec.suffix().as_bytes()].concat()),
    }
}

/// Number of requests that read an object. An object that is read in parts needs one request per part and one for the
/// checksum; any other object needs one request.
fn requests_of(size: u64, is_busy: bool) -> u64 {
    if size <= PART_BYTES || (is_busy && size <= MAX_STREAMED) { 1 } else { size.div_ceil(PART_BYTES) + 1 }
}

fn refuse(key: &Key, place: &str, reason: impl Into<String>) -> Error {
    Error::KeyRefused { key: key.to_string(), place: place.to_owned(), reason: reason.into() }
}

fn check_key(key: &Key, place: &str) -> Result<()> {
    check_name(key.as_bytes()).map_err(|reason| refuse(key, place, reason))
}

/// True for a name that a case-insensitive file system could treat as the name of one of Penstock's own files. Such
/// file systems (ext4 and F2FS with `casefold`, HFS+) also ignore zero-width code points. The comparison therefore
/// skips every non-ASCII letter except the two that fold to ASCII.
fn is_own_name(part: &[u8]) -> bool {
    let text = String::from_utf8_lossy(part);
    let folded = text.chars().filter_map(|letter| match letter {
        'ſ' => Some('s'),
        '\u{212a}' => Some('k'), // the Kelvin sign
        letter => letter.is_ascii().then(|| letter.to_ascii_lowercase()),
    });
    folded.take(OWN_PREFIX.len()).eq(OWN_PREFIX.iter().map(|byte| char::from(*byte)))
}

/// Returns an error with the reason if a name could lead outside the folder, or is invalid in it.
fn check_name(bytes: &[u8]) -> std::result::Result<(), String> {
    let no = |reason: &str| Err(reason.to_owned());
    if bytes.is_empty() {
        return no("the key is empty");
    }
    if bytes.contains(&0) {
        return no("the key contains a NUL byte");
    }
    if bytes.len() > PATH_MAX {
        return Err(format!("the key has {} bytes (a path has at most {PATH_MAX})", bytes.len()));
    }
    for part in bytes.split(|byte| *byte == b'/') {
        match part {
            b"" => return no("the key begins or ends with `/`, or has an empty component"),
            b"." | b".." => return no("the key has a `.` or `..` component"),
            part if is_own_name(part) => {
                return no("names that begin with .penstock are reserved for Penstock");
            }
            part if part.len() > NAME_MAX => {
                return Err(format!("the key has a component of {} bytes (a name has at most {NAME_MAX})", part.len()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the name in lower case if `folds` is set, as a case-insensitive file system compares it.
fn folded<'a>(name: &'a [u8], folds: bool, room: &'a mut Vec<u8>) -> &'a [u8] {
    if !folds {
        return name;
    }
    room.clear();
    match std::str::from_utf8(name) {
        Ok(text) if !text.is_ascii() => room.extend_from_slice(text.to_lowercase().as_bytes()),
        _ => room.extend(name.iter().map(u8::to_ascii_lowercase)),
    }
    room
}

/// Target names, indexed by their hashes (12 bytes per name). A table of the names would be as large as the manifest.
struct Names<'a> {
    manifest: &'a Manifest,
    options: &'a StageOptions,
    folds: bool,
    sorted: Vec<(u64, u32)>,
}

impl<'a> Names<'a> {
    fn target(&self, at: usize) -> Cow<'a, [u8]> {
        target_of(&self.manifest.objects[at], self.options)
    }

    fn same(&self, a: &[u8], b: &[u8]) -> bool {
        let (mut left, mut right) = (Vec::new(), Vec::new());
        folded(a, self.folds, &mut left) == folded(b, self.folds, &mut right)
    }

    /// Index of the first object whose target is `name`; `hash` is the hash of the name.
    fn find(&self, name: &[u8], hash: u64) -> Option<usize> {
        let from = self.sorted.partition_point(|(known, _)| *known < hash);
        let run = self.sorted[from..].iter().take_while(|(known, _)| *known == hash);
        run.map(|(_, at)| *at as usize).find(|&at| self.same(&self.target(at), name))
    }
}

fn check_collisions(manifest: &Manifest, options: &StageOptions, place: &str) -> Result<()> {
    let objects = &manifest.objects;
    let folds = !options.allow_case_collisions;
    let mut names = Names { manifest, options, folds, sorted: Vec::with_capacity(objects.len()) };
    let mut room = Vec::new();
    for at in 0..objects.len() {
        let hash = xxh3_64(folded(&names.target(at), folds, &mut room));
        names.sorted.push((hash, at as u32));
    }
    names.sorted.sort_unstable();
    for run in names.sorted.chunk_by(|a, b| a.0 == b.0).filter(|run| run.len() > 1) {
        for (later, &(_, at)) in run.iter().enumerate() {
            let at = at as usize;
            let others = run[..later].iter().map(|(_, other)| *other as usize);
            if let Some(other) = others.into_iter().find(|&other| names.same(&names.target(other), &names.target(at))) {
                let (key, other_key) = (&objects[at].key, &objects[other].key);
                let reason = if names.target(other) == names.target(at) {
                    let target = Key::new(names.target(at).to_vec());
                    format!("`{other_key}` would become the same file, `{target}`")
                } else {
                    format!(
                        "the key differs from `{other_key}` only in case (use --allow-case-collisions to keep both)"
                    )
                };
                return Err(refuse(key, place, reason));
            }
        }
    }
    let mut before: Cow<'_, [u8]> = Cow::Borrowed(b"");
    for at in 0..objects.len() {
        let target = names.target(at);
        // The folders that this target shares with the previous target were already checked.
        let shared = target.iter().zip(before.iter()).take_while(|(a, b)| a == b).count();
        for (cut, _) in target.iter().enumerate().skip(shared).filter(|(_, byte)| **byte == b'/') {
            let hash = xxh3_64(folded(&target[..cut], folds, &mut room));
            if let Some(other) = names.find(&target[..cut], hash) {
                let (key, other_key) = (&objects[at].key, &objects[other].key);
                return Err(refuse(key, place, format!("the key requires a folder where `{other_key}` is a file")));
            }
        }
        before = target;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plan(keys: &[&[u8]], options: &StageOptions) -> Result<StagePlan> {
        let objects = keys.iter().map(|key| Entry::new(Key::new(key.to_vec()), 10)).collect();
        StagePlan::new(&Manifest::new("s3://b/".into(), objects), options, "/dst")
    }

    fn inflating() -> StageOptions {
        StageOptions { decompress: true, ..StageOptions::default() }
    }

    #[test]
    fn plan_refuses_keys_that_leave_the_destination() {
        let long = [b'a'; 256];
        let deep = vec![b'/'; 4001];
        let hostile: [&[u8]; 16] = [
            b"",
            b"/etc/passwd",
            b"../x",
            b"a/../../x",
            b"a/..",
            b"./a",
            b"a//b",
            b"a/",
            b"a\0b",
            &long,
            &deep,
            b".penstock/stage/journal",
            b"a/.penstock-x/b",
            b".Penstock/stage/journal-0-of-1.jsonl",
            ".pen\u{200d}\u{17f}toc\u{212a}/x".as_bytes(),
            b"..",
        ];
        for key in hostile {
            let error = plan(&[b"good", key], &StageOptions::default()).unwrap_err();
            assert_eq!(error.code(), "key", "{error}");
        }
        assert!(
            plan(
                &[b"..a/b..", b"...", b"a b\xff", b"-rf", b"penstock", b".penstoc", b"\xff.p"],
                &StageOptions::default()
            )
            .is_ok()
        );
    }

    #[test]
    fn plan_refuses_names_that_collide_and_names_both() {
        for (keys, says) in [
            (&[&b"x.bin"[..], b"x.bin.gz"][..], "same file"),
            (&[b"x.zst", b"x.gz"], "same file"),
            (&[b"A/x", b"a/X"], "case"),
            (&["É".as_bytes(), "é".as_bytes()], "case"),
            (&[b"fd", b"fd/x"], "folder"),
            (&[b"FD", b"fd/x"], "folder"),
            (&[b"fd.gz", b"fd/x"], "folder"),
        ] {
            let text = plan(keys, &inflating()).unwrap_err().to_string();
            assert!(text.contains(says), "{text}");
            for key in keys {
                assert!(text.contains(&Key::new(key.to_vec()).to_string()), "{text}");
            }
        }
        for key in [&b"a/...gz"[..], b"..gz", b"a/..zst"] {
            let text = plan(&[key], &inflating()).unwrap_err().to_string();
            assert!(text.contains("without its suffix"), "{text}");
            assert!(plan(&[key], &StageOptions::default()).is_ok());
        }
        assert!(plan(&[b"x.bin", b"x.bin.gz"], &StageOptions::default()).is_ok());
        let bold = StageOptions { allow_case_collisions: true, ..StageOptions::default() };
        assert!(plan(&[b"A", b"a"], &bold).is_ok());
    }

    #[test]
    fn plan_drops_suffixes_only_when_it_inflates() {
        let names = |options: &StageOptions| -> Vec<String> {
            plan(&[b"a.gz", b"b.zst", b"c.lz4", b"d"], options)
                .unwrap()
                .items
                .iter()
                .map(|i| i.target.to_string())
                .collect()
        };
        assert_eq!(names(&inflating()), ["a", "b", "c", "d"]);
        assert_eq!(names(&StageOptions::default()), ["a.gz", "b.zst", "c.lz4", "d"]);
    }

    proptest! {
        /// Whatever keys a store holds, an accepted plan contains only distinct names inside the destination.
        #[test]
        fn prop_plan_targets_stay_inside(keys in prop::collection::btree_set("[a-cA/.\\x00]{0,6}(\\.gz)?", 1..12), nodes in 1u32..4, node in 0u32..4) {
            let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
            if let Ok(plan) = plan(&keys, &StageOptions { nodes, node, ..inflating() }) {
                for item in &plan.items {
                    let path = item.target.as_bytes();
                    prop_assert!(path.split(|b| *b == b'/').all(|part| !part.is_empty() && part != b"." && part != b".."));
                }
            }
        }
    }
}
