// SPDX-License-Identifier: Apache-2.0
//! Counts the records of each object. The sources of a count, the preferred one first, are the user's declaration, the
//! manifest, a record index (Penstock's or another program's), the format, a comparison of sizes, and a scan.
//!
//! For an unknown dataset, every source except the scan may be wrong. The feed therefore counts the records that it
//! reads, and reports a difference.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use penstock_codec::{Codec, StreamDecoder, decompress_into, gzip_size_hint};
use penstock_types::{Deadline, Error, Result, with_separators};

use super::format::{FormatSpec, NextGroup, TrailerCount};
use super::scan::{Scanned, scan_object};
use super::sidecar_indexes::{Imported, SidecarIndexes};
use super::source::Source;
use penstock_dataset::manifest::Entry;
use penstock_dataset::order::Counts;
use penstock_dataset::record_index::{IndexWriter, RecordIndex, stamp};
use penstock_dataset::record_offsets::StagedOffsets;

/// Maximum number of concurrent requests for the ends of tables.
pub(super) const TRAILERS_IN_FLIGHT: usize = 64;

/// Number of bytes of the first read from the end of a table. This is enough for the row count of a table with a few
/// hundred column chunks.
const END: u64 = 64 << 10;

/// Number of bytes of the first read from the start of a group of rows.
const GROUP: u64 = 64 << 10;

/// Maximum decompressed size, in bytes, of a table that is held in memory to count its rows.
const MAX_TABLE: u64 = 8 << 30;

/// Maximum number of objects that are scanned concurrently.
pub(super) const SCANS_IN_FLIGHT: usize = 4;

/// Source of record counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountSource {
    /// The user declared the counts.
    Declared,
    /// The manifest contains the counts.
    Manifest,
    /// A record index that a scan or a stage wrote.
    Index,
    /// Indexes that another program wrote. They are beside the objects, or at a path given by the user.
    Existing,
    /// The format: the counts follow from the stored sizes, or each object is one record.
    Format,
    /// The first object was read, and all other objects have the same decompressed size.
    Sizes,
    /// A scan that read every object.
    Scan,
}

impl CountSource {
    /// All sources.
    pub const ALL: [Self; 7] =
        [Self::Declared, Self::Manifest, Self::Index, Self::Existing, Self::Format, Self::Sizes, Self::Scan];

    /// Name of the source in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Manifest => "manifest",
            Self::Index => "index",
            Self::Existing => "existing",
            Self::Format => "format",
            Self::Sizes => "sizes",
            Self::Scan => "scan",
        }
    }
}

/// Record counts, and the source of the counts.
#[derive(Debug, Clone)]
pub struct Counted {
    /// Number of records in each object.
    pub counts: Counts,
    /// Source of the counts.
    pub rung: CountSource,
    /// Identity of the dataset. It does not depend on the path from which the dataset is read.
    pub fingerprint: u128,
    /// Index with the positions of the records. `None` if the positions are not known.
    pub index: Option<Arc<RecordIndex>>,
}

/// Existing record indexes, and notes on the indexes that were ignored.
#[derive(Debug, Default)]
pub struct ExistingIndexes<'a> {
    /// Folder of Penstock's own indexes.
    pub cache: Option<&'a Path>,
    /// Indexes written by other programs.
    pub beside: Option<&'a SidecarIndexes>,
    /// Reasons why indexes were ignored.
    pub notes: Vec<String>,
}

impl Counted {
    /// Returns a `Config` error if no object has a record.
    pub(super) fn new(
        source: &Source,
        records: &[u64],
        rung: CountSource,
        index: Option<Arc<RecordIndex>>,
    ) -> Result<Self> {
        let (fingerprint, counts) = (source.manifest().fingerprint(records), Counts::of(records));
        if counts.samples() == 0 {
            return Err(no_record(source));
        }
        Ok(Self { counts, rung, fingerprint, index })
    }
}

/// Error for a dataset without any record.
pub(super) fn no_record(source: &Source) -> Error {
    let rule = match source.format() {
        FormatSpec::Tar {} => " (a tar's samples are its members named KEY.EXTENSION)",
        FormatSpec::Csv { header: true, .. } => " after its header",
        _ => "",
    };
    let url = &source.manifest().url;
    let text = match source.manifest().objects.as_slice() {
        [] => format!("the arrays of {url} have no rows"),
        [one] => {
            let (place, size) = (source.place(0), with_separators(one.size));
            format!("{place} contains no record{rule} ({size} bytes); check that the object was written completely")
        }
        objects => {
            let count = with_separators(objects.len() as u64);
            format!(
                "none of the {count} objects of {url} contains a record{rule}; check that the objects were written completely"
            )
        }
    };
    Error::config("dataset", text)
}

/// Counts records without a scan. Reads at most one object completely, and of other objects only the few bytes that
/// contain a count or a size. Returns `None` if only a scan can count the records. If `reads_objects` is false, reads
/// no object completely, and also returns `None` if such a read is needed.
pub async fn count(
    source: &Arc<Source>,
    declared: Option<u64>,
    reads_objects: bool,
    known: &mut ExistingIndexes<'_>,
    deadline: Deadline,
) -> Result<Option<Counted>> {
    let objects = &source.manifest().objects;
    let mut index = cached(source, known.cache)?;
    // The record offsets that a stage wrote are imported as a record index.
    if !index.as_ref().is_some_and(RecordIndex::is_complete)
        && let Some(staged) = StagedOffsets::of(source.manifest())
    {
        index = Some(staged.import(source.manifest(), index.as_ref(), writer(source, known.cache)?)?);
    }
    let (mut rung, mut listed) = (CountSource::Index, None);
    if !index.as_ref().is_some_and(RecordIndex::is_complete)
        && let Some(beside) = known.beside
    {
        (index, listed) = import(source, beside, index.as_ref(), known, deadline).await?;
        rung = CountSource::Existing;
    }
    let index = index.filter(RecordIndex::is_complete).map(Arc::new);
    let counted = |records: &[u64], rung| Counted::new(source, records, rung, index.clone()).map(Some);
    if source.blocks().is_some() {
        if declared.is_some() {
            return Err(Error::config(
                "records_per_object",
                "cannot be set for arrays, because their shapes state the row counts",
            ));
        }
        let framing = source.framing();
        let records: Vec<u64> = (0..objects.len() as u64).filter_map(|block| framing.count_of_object(block)).collect();
        return Counted::new(source, &records, CountSource::Format, None).map(Some);
    }
    if let Some(each) = declared {
        return counted(&vec![each; objects.len()], CountSource::Declared);
    }
    if let Some(records) = objects.iter().map(|entry| entry.records).collect::<Option<Vec<u64>>>() {
        return counted(&records, CountSource::Manifest);
    }
    if let Some(index) = &index {
        let records: Option<Vec<u64>> = (0..objects.len() as u64).map(|object| index.count(object)).collect();
        if let Some(records) = records {
            return counted(&records, rung);
        }
    }
    if let Some(records) = listed {
        return counted(&records, CountSource::Existing);
    }
    let framing = source.framing();
    let counted_by_format: Option<Vec<u64>> =
        (0..objects.len() as u64).map(|object| framing.count_of_object(object)).collect();
    if let Some(records) = counted_by_format {
        return counted(&records, CountSource::Format);
    }
    let by_size = |object: u64| match source.codec(object) {
        Codec::None => framing.count_of_size(source.entry(object).size, &source.place(object)),
        _ => None,
    };
    if let Some(records) = (0..objects.len() as u64).map(by_size).collect::<Option<Result<Vec<u64>>>>() {
        return counted(&records?, CountSource::Format);
    }
    if let Some(most) = framing.head_for_count()
        && codecs_none(source)
    {
        let records: Vec<u64> = stream::iter(0..objects.len() as u64)
            .map(|object| async move {
                let head = source.head(object, most, deadline).await?;
                let rows = source.framing().rows_of_head(&head, source.entry(object).size, &source.place(object))?;
                Ok::<_, Error>(rows.count)
            })
            .buffered(TRAILERS_IN_FLIGHT)
            .try_collect()
            .await?;
        return counted(&records, CountSource::Format);
    }
    if framing.is_table() && codecs_none(source) {
        return counted(&tables(source, deadline).await?, CountSource::Format);
    }
    // If a format's records do not contain checksums, objects of equal size may have different counts.
    if !framing.checks_itself() || !reads_objects {
        return Ok(None);
    }
    let codecs: Vec<Codec> = (0..objects.len() as u64).map(|object| source.codec(object)).collect();
    if codecs.iter().any(|codec| !matches!(codec, Codec::None | Codec::Gzip)) {
        return Ok(None);
    }
    // If the sizes of uncompressed objects differ, a scan is needed. This check sends no request.
    let mut plain =
        objects.iter().zip(&codecs).filter(|(_, codec)| **codec == Codec::None).map(|(entry, _)| entry.size);
    let plain_size = plain.next();
    if plain.any(|size| Some(size) != plain_size) {
        return Ok(None);
    }
    let Scanned { size, spans, .. } = scan_object(source, 0, deadline).await?;
    // If the lengths of records differ, objects of equal size may have different counts.
    if spans.windows(2).any(|pair| pair[0].len != pair[1].len) || plain_size.is_some_and(|plain| plain != size) {
        return Ok(None);
    }
    let same = stream::iter((0..objects.len() as u64).filter(|&object| codecs[object as usize] == Codec::Gzip))
        .map(|object| async move {
            match source.entry(object).size {
                0 => Ok(0),
                _ => Ok(gzip_size_hint(source.last_four(object, deadline).await?)),
            }
        })
        .buffer_unordered(TRAILERS_IN_FLIGHT)
        .try_all(|hint| std::future::ready(hint == size & u64::from(u32::MAX)))
        .await?;
    let each = spans.len() as u64;
    if same { counted(&vec![each; objects.len()], CountSource::Sizes) } else { Ok(None) }
}

fn codecs_none(source: &Source) -> bool {
    (0..source.manifest().objects.len() as u64).all(|object| source.codec(object) == Codec::None)
}

/// Reads the row counts of tables from the ends of the tables, with one or two requests each. A compressed table is
/// read completely.
async fn tables(source: &Arc<Source>, deadline: Deadline) -> Result<Vec<u64>> {
    let count = |object: u64| async move {
        match source.codec(object) {
            _ if source.framing().next_group(&[], 0, 0, &source.place(object)).is_some() => {
                rows_of_groups(source, object, deadline).await
            }
            Codec::None => Ok(table_end(source, object, deadline).await?.1),
            _ => rows_of_compressed(source, object, deadline).await,
        }
    };
    let in_flight = if codecs_none(source) { TRAILERS_IN_FLIGHT } else { SCANS_IN_FLIGHT };
    stream::iter(0..source.manifest().objects.len() as u64).map(count).buffered(in_flight).try_collect().await
}

/// Reads the end of an uncompressed table, with one or two requests. Returns the end and the table's row count.
pub(super) async fn table_end(source: &Arc<Source>, object: u64, deadline: Deadline) -> Result<(Bytes, u64)> {
    let (place, size) = (source.place(object), source.entry(object).size);
    let mut most = END;
    // The second attempt uses the length that the first attempt returned.
    for _ in 0..2 {
        let end = source.end(object, most, deadline).await?;
        match source.framing().count_of_end(&end, size, &place)? {
            TrailerCount::Count(count) => return Ok((end, count)),
            TrailerCount::Wants(more) => most = more,
        }
    }
    Err(Error::corrupt(place, "changed while its footer was read"))
}

/// Adds up the rows of all groups of a table. Reads the starts of the groups one after another. A compressed table is
/// read completely.
async fn rows_of_groups(source: &Arc<Source>, object: u64, deadline: Deadline) -> Result<u64> {
    let (place, size) = (source.place(object), source.entry(object).size);
    if source.codec(object) != Codec::None {
        let (stored, source) = (source.fetch(object, deadline).await?.bytes, source.clone());
        let counted = tokio::task::spawn_blocking(move || {
            let mut content = Vec::new();
            decompress_into(source.codec(object), &stored, &mut content, MAX_TABLE, &place)?;
            Ok(source.framing().table(content.into(), &place)?.records())
        });
        return counted.await.map_err(|error| Error::bug(format!("counting rows: {error}")))?;
    }
    // One read usually contains several small groups.
    let (mut total, mut at, mut start, mut wants, mut read) = (0u64, 0, 0, GROUP, Bytes::new());
    loop {
        let known = read.get(usize::try_from(at - start).unwrap_or(usize::MAX)..).unwrap_or_default();
        let next = source.framing().next_group(known, at, size, &place);
        match next.ok_or_else(|| Error::bug("a table without groups"))?? {
            NextGroup::End => return Ok(total),
            NextGroup::Rows(rows, next) => {
                total = total.saturating_add(rows);
                at = next;
            }
            NextGroup::Wants(len) => {
                if known.len() as u64 >= len {
                    return Err(Error::bug("the start of a group does not contain its rows"));
                }
                wants = wants.max(len).min(size - at);
                (start, read) = (at, source.stretch(object, at, wants, deadline).await?);
                wants = GROUP;
            }
        }
    }
}

/// Reads the row count from the end of a compressed table. The table is decompressed as a stream, and only its end is
/// held in memory.
async fn rows_of_compressed(source: &Arc<Source>, object: u64, deadline: Deadline) -> Result<u64> {
    let (bytes, place) = (source.fetch(object, deadline).await?.bytes, source.place(object));
    let source = source.clone();
    let counted = tokio::task::spawn_blocking(move || {
        let (mut most, codec) = (END as usize, source.codec(object));
        loop {
            let (mut end, mut size) = (Vec::new(), 0);
            let mut inflater = StreamDecoder::new(codec, u64::MAX, &place);
            inflater.push(&bytes, &mut |inflated| {
                size += inflated.len() as u64;
                end.extend_from_slice(inflated);
                // Drop bytes only after many have accumulated, because each drop moves the remaining bytes.
                if end.len() > 2 * most {
                    end.drain(..end.len() - most);
                }
                Ok(())
            })?;
            inflater.finish()?;
            match source.framing().count_of_end(&end, size, &place)? {
                TrailerCount::Count(count) => return Ok(count),
                TrailerCount::Wants(more) if more > most as u64 => most = usize::try_from(more).unwrap_or(usize::MAX),
                TrailerCount::Wants(_) => return Err(Error::bug("the end of a table does not contain its footer")),
            }
        }
    });
    counted.await.map_err(|error| Error::bug(format!("counting rows: {error}")))?
}

/// Opens the dataset's index in the cache. Returns `None` if the cache has no valid index.
pub(super) fn cached(source: &Source, cache: Option<&Path>) -> Result<Option<RecordIndex>> {
    let path = index_path(source, cache)?;
    Ok(path.and_then(|path| RecordIndex::open(&path, &source.manifest().objects)))
}

/// Path of the dataset's index in the cache.
pub(super) fn index_path(source: &Source, cache: Option<&Path>) -> Result<Option<PathBuf>> {
    cache.map(|cache| Ok(cache.join(format!("{}.idx", source.cache_name()?)))).transpose()
}

/// Returns the counts from the index in the cache. Returns `None` if the index lacks the current version of an object.
/// Sends no request to the store.
pub fn kept(source: &Source, cache: Option<&Path>) -> Result<Option<Counted>> {
    let Some(index) = cached(source, cache)?.filter(RecordIndex::is_complete).map(Arc::new) else { return Ok(None) };
    let objects = source.manifest().objects.len() as u64;
    let Some(records) = (0..objects).map(|object| index.count(object)).collect::<Option<Vec<u64>>>() else {
        return Ok(None);
    };
    Counted::new(source, &records, CountSource::Index, Some(index)).map(Some)
}

/// Imports other programs' indexes into a record index. The record index is stored in the cache, if there is one. Also
/// returns the counts from the other programs' shard list.
async fn import(
    source: &Arc<Source>,
    beside: &SidecarIndexes,
    before: Option<&RecordIndex>,
    known: &mut ExistingIndexes<'_>,
    deadline: Deadline,
) -> Result<(Option<RecordIndex>, Option<Vec<u64>>)> {
    let mut writer = writer(source, known.cache)?;
    let Imported { indexed, counts } = beside.import(source, before, &mut writer, &mut known.notes, deadline).await?;
    Ok((if indexed > 0 { Some(writer.finish(&source.manifest().objects)?) } else { None }, counts))
}

/// Creates a writer for a record index in the cache. If there is no writable cache, the index is in memory.
fn writer(source: &Source, cache: Option<&Path>) -> Result<IndexWriter> {
    let objects = source.manifest().objects.len();
    let kept = index_path(source, cache)?.and_then(|path| IndexWriter::create(&path, objects).ok());
    kept.map_or_else(|| IndexWriter::in_memory(objects), Ok)
}

/// Counts records by reading every object once. Stores the positions of the records in the cache, if there is one. An
/// object whose current version is in an older index is not read again. After an error, the index contains all objects
/// before the failed one.
pub async fn scan(source: &Arc<Source>, cache: Option<&Path>, deadline: Deadline) -> Result<Counted> {
    // A table is always read completely, so an index would be useless.
    if source.framing().is_table() {
        return Counted::new(source, &tables(source, deadline).await?, CountSource::Scan, None);
    }
    // The positions of array rows are computed, so an index would be useless.
    if source.blocks().is_some()
        && let Some(counted) = Box::pin(count(source, None, true, &mut ExistingIndexes::default(), deadline)).await?
    {
        return Ok(counted);
    }
    let objects = &source.manifest().objects;
    let before = cached(source, cache)?;
    let path = index_path(source, cache)?;
    // If the cache cannot be written, the scan continues. The next process that opens the dataset must then scan again.
    let mut writer = path.as_ref().and_then(|path| IndexWriter::create(path, objects.len()).ok());
    let known = |object: u64| before.as_ref().and_then(|index| index.spans(object));
    let mut found = stream::iter(0..objects.len() as u64)
        .map(|object| {
            let (source, known) = (source.clone(), known(object));
            async move {
                match known {
                    Some(spans) => Ok(Scanned { size: 0, records: spans.len() as u64, spans }),
                    None => scan_object(&source, object, deadline).await,
                }
            }
        })
        .buffered(SCANS_IN_FLIGHT);
    let mut records = Vec::with_capacity(objects.len());
    while let Some(scanned) = found.next().await {
        let scanned = match scanned {
            Ok(scanned) => scanned,
            Err(error) => {
                drop(found);
                if let Some(writer) = writer {
                    keep_part(writer, objects, records.len(), before.as_ref());
                }
                return Err(error);
            }
        };
        let stamp = stamp(&objects[records.len()]);
        records.push(scanned.records);
        if writer.as_mut().is_some_and(|writer| writer.push(stamp, scanned.each(source.framing())).is_err()) {
            writer = None;
        }
    }
    let index = writer.and_then(|writer| writer.finish(objects).ok()).map(Arc::new);
    Counted::new(source, &records, CountSource::Scan, index)
}

/// Stores an index of the first `done` objects, and of the later objects that an older index contains. Another process
/// can continue from the stored index.
fn keep_part(mut writer: IndexWriter, objects: &[Entry], done: usize, before: Option<&RecordIndex>) {
    for (object, entry) in objects.iter().enumerate().skip(done) {
        match before.and_then(|before| before.spans(object as u64)).map(|spans| writer.push(stamp(entry), spans)) {
            Some(Ok(())) => {}
            Some(Err(_)) => return,
            None => writer.push_unknown(entry),
        }
    }
    let _ = writer.finish(objects); // if this fails, the next open needs another scan
}
