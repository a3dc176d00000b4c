// SPDX-License-Identifier: Apache-2.0
//! The ladder by which record counts are found: declared, from the manifest, by a check of sizes, by a scan.
//!
//! The cheap rungs may be wrong about a strange dataset; the feed counts what it reads and says so then.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use penstock_codec::{Codec, gzip_size_hint, inflate_into};
use penstock_record::tfrecord::Frames;
use penstock_types::{Deadline, Error, Result};

use super::source::Source;
use crate::order::Counts;

/// No object may inflate to more than this while its records are counted.
const LIMIT: u64 = 8 << 30;

/// Requests under way at a time while trailers are read.
const TRAILERS_IN_FLIGHT: usize = 64;

/// Objects under way at a time in a scan, each held whole.
const SCANS_IN_FLIGHT: usize = 4;

/// How the counts were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rung {
    /// The user said so.
    Declared,
    /// The manifest knows.
    Manifest,
    /// The first object was read, and all others inflate to the same size.
    Sizes,
    /// Every object was read.
    Scan,
}

impl Rung {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Manifest => "manifest",
            Self::Sizes => "sizes",
            Self::Scan => "scan",
        }
    }
}

/// Counts, and how they were found.
#[derive(Debug, Clone)]
pub struct Counted {
    /// Records in each object.
    pub counts: Counts,
    /// How they were found.
    pub rung: Rung,
    /// The dataset's identity, whatever path it is read by.
    pub fingerprint: u128,
}

impl Counted {
    fn new(source: &Source, records: &[u64], rung: Rung) -> Self {
        let fingerprint = source.manifest().fingerprint(records);
        Self { counts: Counts::of(records), rung, fingerprint }
    }
}

/// The counts by the rungs that cost little: at most one object and four bytes of each other. `None` when only a scan
/// can tell.
pub async fn count(source: &Source, declared: Option<u64>, deadline: Deadline) -> Result<Option<Counted>> {
    let objects = &source.manifest().objects;
    if let Some(each) = declared {
        return Ok(Some(Counted::new(source, &vec![each; objects.len()], Rung::Declared)));
    }
    if let Some(records) = objects.iter().map(|entry| entry.records).collect::<Option<Vec<u64>>>() {
        return Ok(Some(Counted::new(source, &records, Rung::Manifest)));
    }
    let codecs: Vec<Codec> = (0..objects.len() as u64).map(|object| source.codec(object)).collect();
    if codecs.iter().any(|codec| !matches!(codec, Codec::None | Codec::Gzip)) {
        return Ok(None);
    }
    // Plain objects of different sizes need no request to be told apart.
    let mut plain =
        objects.iter().zip(&codecs).filter(|(_, codec)| **codec == Codec::None).map(|(entry, _)| entry.size);
    let plain_size = plain.next();
    if plain.any(|size| Some(size) != plain_size) {
        return Ok(None);
    }
    let found = source.fetch(0, deadline).await?.bytes;
    let (place, codec) = (source.place(0), codecs[0]);
    let (size, lengths) = tokio::task::spawn_blocking(move || walk(codec, &found, &place)).await.map_err(joined)??;
    // With records of several lengths, equal sizes would not mean equal counts.
    if lengths.windows(2).any(|pair| pair[0] != pair[1]) || plain_size.is_some_and(|plain| plain != size) {
        return Ok(None);
    }
    let same = stream::iter((0..objects.len() as u64).filter(|&object| codecs[object as usize] == Codec::Gzip))
        .map(|object| async move { Ok(gzip_size_hint(source.last_four(object, deadline).await?)) })
        .buffer_unordered(TRAILERS_IN_FLIGHT)
        .try_all(|hint| std::future::ready(hint == size & u64::from(u32::MAX)))
        .await?;
    let each = lengths.len() as u64;
    Ok(same.then(|| Counted::new(source, &vec![each; objects.len()], Rung::Sizes)))
}

/// The counts by reading everything once.
pub async fn scan(source: &Arc<Source>, deadline: Deadline) -> Result<Counted> {
    let records: Vec<u64> = stream::iter(0..source.manifest().objects.len() as u64)
        .map(|object| {
            let source = source.clone();
            async move {
                let found = source.fetch(object, deadline).await?.bytes;
                let (place, codec) = (source.place(object), source.codec(object));
                let walked = tokio::task::spawn_blocking(move || walk(codec, &found, &place)).await;
                Ok::<u64, Error>(walked.map_err(joined)??.1.len() as u64)
            }
        })
        .buffered(SCANS_IN_FLIGHT)
        .try_collect()
        .await?;
    Ok(Counted::new(source, &records, Rung::Scan))
}

fn joined(error: tokio::task::JoinError) -> Error {
    Error::bug(format!("counting records: {error}"))
}

/// Inflated size and the length of every record. Errs with `Corrupt` for what holds none.
fn walk(codec: Codec, bytes: &[u8], place: &str) -> Result<(u64, Vec<u64>)> {
    if bytes.is_empty() {
        return Err(Error::corrupt(place, "is empty (0 bytes) where records were expected"));
    }
    let mut inflated = Vec::new();
    let content = match codec {
        Codec::None => bytes,
        _ => {
            inflate_into(codec, bytes, &mut inflated, LIMIT, place)?;
            inflated.as_slice()
        }
    };
    let lengths: Vec<u64> = Frames::new(content, place, false)
        .map(|frame| frame.map(|frame| frame.payload.len() as u64))
        .collect::<Result<_>>()?;
    if lengths.is_empty() {
        return Err(Error::corrupt(place, "holds no record"));
    }
    Ok((content.len() as u64, lengths))
}
